"""More of error_cases.py: hpmoe.mindformers where there is no MindFormers."""

import sys
from unittest import mock

from error_cases import cases

import hpmoe


def _without_mindformers():
    with mock.patch.dict(sys.modules, {"mindformers": None}):
        hpmoe.mindformers.enable()


cases("mindformers.enable", {
    "without MindFormers": _without_mindformers,
    "no transform": lambda: hpmoe.mindformers.enable(transforms="fused"),
    "a mesh by its size": lambda: hpmoe.mindformers.enable(mesh=2),
})
SIZES = {"hidden_size": 8, "moe_ffn_hidden_size": 4, "num_moe_experts": 4}
cases("mindformers.layer_options", {
    "no sizes": lambda: hpmoe.mindformers.layer_options({"hidden_size": 8}),
    "forced balance": lambda: hpmoe.mindformers.layer_options({**SIZES, "moe_router_force_expert_balance": True}),
})
