"""Subclasses of MindFormers' styles of expert parallelism that shard weights and leave the tokens to the kernel."""

from __future__ import annotations

from hpmoe.support.trees import Function


def make_style(base: type, distribute: Function, grouped_mlp: type) -> type:
    """A subclass of a style; what it does to other modules than `grouped_mlp`, those with LoRA say, stays as it is.

    Args:
        base: ExpertParallel or DeredundancyExpertParallel of `mindformers.pynative.distributed.expert_parallel`.
        distribute: `distribute_module` of that module.
        grouped_mlp: what `make_grouped_mlp` returned.
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
