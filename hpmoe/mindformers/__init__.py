"""MindFormers' mixture-of-experts layers with hpmoe's kernels in them; see `enable`."""

from hpmoe.mindformers.layer_options import layer_options as layer_options
from hpmoe.mindformers.switch import disable as disable, enable as enable

__all__ = ["disable", "enable", "layer_options"]
