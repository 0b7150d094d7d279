"""enable and disable: put hpmoe's classes into the places where MindFormers takes its own from."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from hpmoe.machines.machine import Mesh
from hpmoe.mindformers.grouped_mlp import make_grouped_mlp
from hpmoe.support.errors import check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function

WHO = "hpmoe.mindformers.enable"
REPLACED: list[tuple[ModuleType, str, object]] = []  # module, name, what it was


@suggests_keywords
def enable(*, transforms: Function | None = None, mesh: Mesh | None = None) -> None:
    """Makes MindFormers build its PyNative mixture-of-experts layers with hpmoe's kernels.

    Call it before the model is built. `MoELayer` then makes a subclass of GroupedMLP, with the same Parameters: one launch
    forward and one backward. ExpertParallel and DeredundancyExpertParallel shard weights as before and send no tokens.

    Args:
        transforms: transform of the function of one rank, such as `hpmoe.chain(...)`; None makes one kernel for the CPU. On
            NPUs it ends in `hpmoe.fuse_persistent(target="ascend")`.
        mesh: the ranks that share the experts. None takes the processes that MindFormers shards experts over:
            `hpmoe.world(ep_size)`, or on NPUs MindSpore's world.

    Raises:
        ImportError: MindFormers 2.1 is not installed.
        ArgumentError: transforms is no transform, or mesh is no Mesh.

    Example:
        >>> import hpmoe.mindformers
        >>> try:
        ...     hpmoe.mindformers.enable()                  # then build and train a model as before
        ... except ImportError as error:
        ...     print(error)
        hpmoe.mindformers.enable: MindFormers 2.1 is needed: ...
    """
    check_argument(transforms is None or callable(transforms), WHO, "transforms", repr(transforms),
                   "a transform, such as hpmoe.chain(...), or None for one kernel")
    check_argument(mesh is None or isinstance(mesh, Mesh), WHO, "mesh", repr(mesh), "an hpmoe.Mesh, or None")
    disable()
    try:
        experts = import_module("mindformers.pynative.transformers.moe.experts")
        layers = import_module("mindformers.pynative.transformers.moe.moe_layer")
        styles = import_module("mindformers.pynative.distributed.expert_parallel")
        models = import_module("mindformers.pynative.base_models.gpt.parallelize")
        grouped_mlp = make_grouped_mlp(experts.GroupedMLP, experts.DTensor, transforms, mesh)
        replaced = {(layers, "GroupedMLP"): grouped_mlp}
        for name in ("ExpertParallel", "DeredundancyExpertParallel"):
            replaced[models, name] = _make_style(getattr(styles, name), styles.distribute_module, grouped_mlp)
    except (ImportError, AttributeError) as error:
        raise ImportError(f"{WHO}: MindFormers 2.1 is needed: {error}") from error
    for (module, name), new in replaced.items():
        REPLACED.append((module, name, getattr(module, name)))
        setattr(module, name, new)


def disable() -> None:
    """Makes MindFormers build its own layers again; existing layers do not change.

    Example:
        >>> import hpmoe.mindformers
        >>> hpmoe.mindformers.disable()
    """
    while REPLACED:
        setattr(*REPLACED.pop())


def _make_style(base: type, distribute: Function, grouped_mlp: type) -> type:
    """Returns a subclass of a style that shards `grouped_mlp` and leaves the tokens to its kernel.

    `base` is ExpertParallel or DeredundancyExpertParallel of `mindformers.pynative.distributed.expert_parallel`,
    `distribute` that module's `distribute_module`. Other modules, such as those with LoRA, are treated by `base`.
    """

    class ExpertParallel(base):
        def _apply(self, module, device_mesh):
            if not isinstance(module, grouped_mlp):
                return super()._apply(module, device_mesh)
            names = {name for name, _ in module.parameters_and_names()}
            plan = {name: place for name, place in self._get_parameter_shard_plan().items() if name in names}
            module.is_only_sharded = True
            return distribute(module, device_mesh, parameter_shard_plan=plan)

    for name in ("__name__", "__qualname__", "__doc__"):
        setattr(ExpertParallel, name, getattr(base, name))
    return ExpertParallel
