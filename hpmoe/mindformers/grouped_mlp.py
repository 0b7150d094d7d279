"""A subclass of MindFormers' GroupedMLP that computes what it does as one function through the transforms."""

from __future__ import annotations

from mindspore import Tensor, mint
from mindspore.mint.nn import functional

from hpmoe.machines.machine import Mesh
from hpmoe.nn.activations import clamped_swiglu
from hpmoe.nn.grouped_mlp import Activation, Experts
from hpmoe.nn.on_ranks import transformed
from hpmoe.nn.parameters import Frozen
from hpmoe.primitives.swiglu import swiglu
from hpmoe.ranks.launchers import find_launched
from hpmoe.ranks.world import world
from hpmoe.runtime.staged_function import staged_of
from hpmoe.support.errors import check_argument
from hpmoe.support.trees import Function, PyTree

WHO = "hpmoe.mindformers"


def make_grouped_mlp(base: type, distributed: type, transforms: Function | None, mesh: Mesh | None) -> type:
    """Returns a subclass of MindFormers' GroupedMLP, with its Parameters and their names.

    If weights are sharded, each process gives its own tokens and experts to one launch of all ranks, which sends rows to
    the chosen experts; no token is added and no count goes to the host. `distributed` is the class of sharded tensors,
    DTensor. Without a mesh the ranks are the processes that MindFormers shards the experts over.
    """

    class GroupedMLP(base):
        def __init__(self, config):
            super().__init__(config)
            self.computes = Experts(activation_of(config), config.moe_apply_probs_on_input, None, "error")
            self.is_only_sharded = False  # a style of expert parallelism says so
            self.calls = {}

        def construct(self, tokens, probs, topk_indices, num_tokens_per_expert):
            weights = _local(self.weight1, distributed), _local(self.weight2, distributed)
            out = self.call_on(self.config.num_moe_experts // weights[0].shape[0])(
                mint.reshape(_local(tokens, distributed), (-1, self.hidden_size)),
                *(mint.reshape(_local(x, distributed), (-1, self.top_k)) for x in (topk_indices, probs)), *weights)
            if isinstance(tokens, distributed):
                return distributed.from_local(out, tokens.layout.mesh, tokens.layout.alias_placements)
            return out

        def call_on(self, num_ranks):
            """Returns the function of tokens, ids, routing weights and expert weights on `num_ranks` ranks."""
            if num_ranks not in self.calls:
                check_argument(num_ranks == 1 or self.is_only_sharded, WHO, "a GroupedMLP",
                               f"sharded over {num_ranks} ranks by a style that sends tokens itself",
                               "sharded by ExpertParallel or DeredundancyExpertParallel, not by OverlapExpertParallel")
                f = _function(self.computes)
                ranks = None if num_ranks == 1 else mesh or _processes(num_ranks, f, transforms)
                self.calls[num_ranks] = transformed(WHO, f, transforms, ranks, (0,) * 5, Frozen(self))
            return self.calls[num_ranks]

    for name in ("__name__", "__qualname__", "__doc__"):
        setattr(GroupedMLP, name, getattr(base, name))
    return GroupedMLP


def _processes(num_ranks: int, f: Function, transforms: Function | None) -> Mesh:
    """Returns the ranks that MindFormers shards experts over: MindSpore's world on NPUs, else the launcher's processes."""
    is_on_device = transforms is not None and staged_of(transforms(f)).is_on_device
    return Mesh(num_ranks) if is_on_device or find_launched() is None else world(num_ranks)


def _local(tensor: Tensor, distributed: type) -> Tensor:
    return tensor.to_local() if isinstance(tensor, distributed) else tensor


def _function(experts: Experts) -> Function:
    def grouped_mlp(tokens: Tensor, topk_ids: Tensor, topk_weights: Tensor, weight1: Tensor, weight2: Tensor) -> Tensor:
        return experts(tokens, topk_ids, topk_weights, {"weight1": weight1, "weight2": weight2})
    return grouped_mlp


def activation_of(config: PyTree) -> Activation:
    """Returns MindFormers' activation of rows [R, 2I], the gate's columns first, or of rows [R, I] without a gate."""
    name, clamp = config.hidden_act.lower(), config.activation_func_clamp_value
    functions = {"silu": functional.silu, "gelu": functional.gelu}
    if name == "fusedswiglu" and config.gated_linear_unit:
        return swiglu if clamp is None else clamped_swiglu(clamp)
    check_argument(name in functions, WHO, "hidden_act", repr(config.hidden_act),
                   "'silu' or 'gelu', or with gated_linear_unit 'fusedswiglu'")
    f = functions[name]

    def gated(x: Tensor) -> Tensor:
        gate, up = mint.split(x, x.shape[-1] // 2, dim=-1)
        return f(gate) * up
    return gated if config.gated_linear_unit else f
