"""GroupedMLP: the experts, a feed-forward network each, without the router that chooses them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import mindspore as ms
from mindspore import Tensor, mint, nn

from hpmoe.balance.moving import physical_ids
from hpmoe.balance.places import keep_together, places_in_order
from hpmoe.machines.machine import Mesh
from hpmoe.nn.expert_shards import by_rank, own_experts
from hpmoe.nn.on_ranks import FLOATS, IDS, check_dtype, num_ranks, reshaped, rows_shape, shape_of, transformed
from hpmoe.nn.parameters import Frozen, check_sampled, check_sizes, normal, zeros
from hpmoe.primitives.dispatch import combine, dispatch
from hpmoe.primitives.entry_weights import dispatch_weights, of_entries
from hpmoe.primitives.grouped_matmul import grouped_matmul
from hpmoe.primitives.in_float32 import weight_beside
from hpmoe.primitives.outside_graphs import constexpr
from hpmoe.primitives.swiglu import swiglu
from hpmoe.ranks.world import World
from hpmoe.routing.capacity import DROP_POLICIES, FACTOR, is_factor
from hpmoe.support.errors import check_argument, check_flags, is_name
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.mindspore_private import keep_whole
from hpmoe.support.trees import Function, PyTree

Activation = Callable[[Tensor], Tensor]
LORA = ("lora_a1", "lora_b1", "lora_a2", "lora_b2")  # Parameters of adapters, see lora.py


@dataclasses.dataclass(frozen=True)
class Experts:
    """The computation of experts, by the options of `GroupedMLP`."""

    activation: Activation
    on_input: bool
    capacity_factor: float | None
    drop_policy: str

    def __call__(self, hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor, experts: Mapping[str, Tensor]
                 ) -> Tensor:
        """Returns the weighted sum of the outputs of each token's experts, [T, H]."""
        topk_ids = physical_ids(topk_ids, experts["places"]) if "places" in experts else topk_ids
        rows, route = dispatch(hidden_states, topk_ids, num_local_experts=experts["weight1"].shape[0],
                               capacity_factor=self.capacity_factor, drop_policy=self.drop_policy, topk_weights=topk_weights)
        if self.on_input:
            rows = rows * dispatch_weights(of_entries(topk_weights.astype(rows.dtype), route), route)
        hidden = self.activation(_adapted(rows, experts, "1", route))
        out = _adapted(hidden, experts, "2", route)
        return combine(out, route, None if self.on_input else topk_weights)


def _adapted(rows: Tensor, experts: Mapping[str, Tensor], number: str, route: PyTree) -> Tensor:
    """Returns rows times a weight of experts, with its bias and adapter if it has these."""
    out = grouped_matmul(rows, experts[f"weight{number}"], route, bias=experts.get(f"bias{number}"),
                         scale=experts.get(f"scale{number}"))
    if f"lora_a{number}" not in experts:
        return out
    low = grouped_matmul(rows, weight_beside(rows, experts[f"lora_a{number}"]), route)
    added = grouped_matmul(low, weight_beside(rows, experts[f"lora_b{number}"]), route)
    return out + added * experts["lora_scale"]


@suggests_keywords
@keep_whole
class GroupedMLP(nn.Cell):
    """The experts of a layer: sends each token to its experts, applies two grouped matmuls and an activation, and combines.

    Args:
        hidden_size: H.
        moe_ffn_hidden_size: I.
        num_moe_experts: E, the number of experts of all ranks together.
        activation: a function from rows [R, 2I], the gate's columns first, to rows [R, I], in MindSpore calls that hpmoe
            traces. `hpmoe.swiglu` by default.
        gated_linear_unit: whether weight1 has columns of a gate. If False, weight1 is [E, H, I] and the activation takes
            rows [R, I].
        add_bias_linear: whether experts have biases.
        moe_apply_probs_on_input: True multiplies the experts' inputs by topk_weights, as in Llama 4; False their outputs.
        moe_expert_capacity_factor, moe_token_drop_policy: limit of the entries (token, choice) that an expert takes from
            each rank, None for no limit; and which entries over it are dropped, see `hpmoe.dispatch`.
        init_method_std: standard deviation of the initial weights.
        dtype: dtype of the Parameters. float32 Parameters are rounded for hidden states in half precision.
        transforms: transform of the function of one rank, such as `hpmoe.chain(...)`; None makes one kernel.
        mesh: an `hpmoe.Mesh`, whose virtual ranks share tokens and experts evenly, in order; or `hpmoe.world()`, where each
            process has its own tokens, and Parameters only of its E / ep experts, or its shards, see `shard_experts`. None
            is one rank.

    Inputs:
        hidden_states: [..., H], float32 or half precision.
        topk_weights: [..., K].
        topk_ids: [..., K] int32 or int64, distinct expert ids, or -1 for no expert.

    Outputs:
        [..., H].

    Parameters:
        weight1 [E, H, 2I], weight2 [E, I, H]; bias1 [E, 2I], bias2 [E, H] if add_bias_linear; and, not trained,
        places [E] int32, the index of each expert along the first axis of the other Parameters: in order, unless a Balancer
        has moved experts. Setting another Parameter of moved experts by `set_data` makes calls raise until places is set.

    Raises:
        ArgumentError: an argument has a wrong type or value, or an input a wrong shape or dtype.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> experts = hpmoe.nn.GroupedMLP(hidden_size=8, moe_ffn_hidden_size=4, num_moe_experts=2)
        >>> experts(ms.ops.ones((3, 8)), ms.ops.ones((3, 1)), ms.Tensor([[0], [1], [0]], ms.int32)).shape
        (3, 8)
    """

    def __init__(self, *, hidden_size: int, moe_ffn_hidden_size: int, num_moe_experts: int, activation: Activation = swiglu,
                 gated_linear_unit: bool = True, add_bias_linear: bool = False, moe_apply_probs_on_input: bool = False,
                 moe_expert_capacity_factor: float | None = None, moe_token_drop_policy: str = "probs",
                 init_method_std: float = 0.02, dtype: object = ms.float32, transforms: Function | None = None,
                 mesh: Mesh | None = None):
        super().__init__()
        self.who = who = "hpmoe.nn.GroupedMLP"
        check_sizes(who, hidden_size=hidden_size, moe_ffn_hidden_size=moe_ffn_hidden_size, num_moe_experts=num_moe_experts)
        check_flags(who, gated_linear_unit=gated_linear_unit, add_bias_linear=add_bias_linear,
                    moe_apply_probs_on_input=moe_apply_probs_on_input)
        check_sampled(who, init_method_std, dtype)
        check_argument(callable(activation), who, "activation", repr(activation),
                       f"a function of rows [R, {'2I' if gated_linear_unit else 'I'}] to [R, I], such as hpmoe.swiglu")
        check_argument(moe_expert_capacity_factor is None or is_factor(moe_expert_capacity_factor), who,
                       "moe_expert_capacity_factor", repr(moe_expert_capacity_factor), f"{FACTOR}, or None")
        check_argument(is_name(moe_token_drop_policy, DROP_POLICIES), who, "moe_token_drop_policy",
                       repr(moe_token_drop_policy), f"one of {', '.join(DROP_POLICIES)}")
        self.hidden_size, self.has_bias, self.ep_size = hidden_size, add_bias_linear, num_ranks(who, mesh, num_moe_experts)
        self.num_groups, self.tp_size = (1, 1) if mesh is None else (mesh.ep, mesh.tp)
        self.has_first_shard = not isinstance(mesh, World) or mesh.tp_rank == 0  # which bias2 is trained on
        check_argument(moe_ffn_hidden_size % self.tp_size == 0, who, "moe_ffn_hidden_size", moe_ffn_hidden_size,
                       f"divisible by the mesh's tp_size, {self.tp_size}")
        wide = moe_ffn_hidden_size * (2 if gated_linear_unit else 1)
        shapes = (num_moe_experts, hidden_size, wide), (num_moe_experts, moe_ffn_hidden_size, hidden_size)
        columns = "gate_up" if gated_linear_unit else "columns"
        self.splits = {"weight1": columns, "weight2": "rows", "bias1": columns, "bias2": "first"}  # what shards divide
        self.weight1, self.weight2 = (own_experts(normal(name, shape, init_method_std, dtype), mesh, self.splits[name])
                                      for name, shape in zip(("weight1", "weight2"), shapes, strict=True))
        if add_bias_linear:
            self.bias1 = own_experts(zeros("bias1", (num_moe_experts, wide), dtype), mesh, columns)
            self.bias2 = own_experts(zeros("bias2", (num_moe_experts, hidden_size), dtype), mesh, "first")
        self.places = places_in_order(num_moe_experts)
        self.replaced: str | None = None  # the weight that was set while experts were moved, without places
        self.sizes = {"1": (hidden_size, wide), "2": (moe_ffn_hidden_size, hidden_size)}  # of whole experts' weights
        self.has_scale1, self.has_scale2 = False, False  # quantized weights; see quantized_files.py
        self.has_lora1, self.has_lora2 = False, False  # adapters; see lora.py
        self.lora_scale: PyTree = 1.0
        self.splits |= {"lora_a1": "all", "lora_b1": columns, "lora_a2": "rows", "lora_b2": "all"}
        self._keep_together()
        self.run = run = Experts(activation, moe_apply_probs_on_input, moe_expert_capacity_factor,
                                 moe_token_drop_policy if moe_expert_capacity_factor is not None else "error")

        def grouped_mlp(hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor,
                        experts: Mapping[str, Tensor]) -> Tensor:
            return run(hidden_states, topk_ids, topk_weights, experts)
        self.compute = transformed(who, grouped_mlp, transforms, mesh, (0, 0, 0, 0), Frozen(self, "experts_"))

    def _keep_together(self) -> None:
        def replaced(weight: str | None) -> None:
            self.replaced = weight
        keep_together(self.who, [p for p in self.get_parameters() if p is not self.places], self.places, replaced)

    def __setstate__(self, state: object) -> None:
        super().__setstate__(state)
        self._keep_together()

    def tensors(self) -> Mapping[str, Tensor]:
        """Returns the tensors that experts read, by name; with a rank axis if there is a mesh."""
        check_places(self.who, self.replaced)
        found = {"weight1": self._by_rank(self.weight1, "weight1"), "weight2": self._by_rank(self.weight2, "weight2")}
        if self.has_bias:
            found["bias1"] = self._by_rank(self.bias1, "bias1")
            found["bias2"] = self._by_rank(self.bias2 if self.has_first_shard else self.bias2 * 0.0, "bias2")
        if self.has_scale1:
            found["scale1"] = self._by_rank(self.scale1, "scale1")
        if self.has_scale2:
            found["scale2"] = self._by_rank(self.scale2, "scale2")
        if self.has_lora1:
            found["lora_a1"] = self._by_rank(self.lora_a1, "lora_a1")
            found["lora_b1"] = self._by_rank(self.lora_b1, "lora_b1")
        if self.has_lora2:
            found["lora_a2"] = self._by_rank(self.lora_a2, "lora_a2")
            found["lora_b2"] = self._by_rank(self.lora_b2, "lora_b2")
        if self.has_lora1 or self.has_lora2:
            found["lora_scale"] = self.lora_scale
        found["places"] = mint.broadcast_to(self.places, (self.ep_size, *self.places.shape)) if self.ep_size else self.places
        return found

    def _by_rank(self, weight: Tensor, name: str) -> Tensor:
        return by_rank(weight, self.num_groups, self.tp_size, self.splits[name]) if self.ep_size else weight

    def construct(self, hidden_states: Tensor, topk_weights: Tensor, topk_ids: Tensor) -> Tensor:
        rows = self._rows(hidden_states, self.hidden_size, "hidden_states")
        check_dtype(self.who, "hidden_states", rows.dtype, FLOATS)
        ids = self._rows(topk_ids, None, "topk_ids")
        check_dtype(self.who, "topk_ids", ids.dtype, IDS)
        weights = self._rows(topk_weights, None, "topk_weights")
        return reshaped(self.compute(rows, weights, ids, self.tensors()), hidden_states.shape)

    def _rows(self, x: Tensor, size: int | None, argument: str) -> Tensor:
        return reshaped(x, rows_shape(self.who, shape_of(x), size, self.ep_size, argument))


@constexpr
def check_places(who: str, replaced: str | None) -> None:
    check_argument(replaced is None, who, "places", f"unknown, since {replaced} was set while experts were moved",
                   "set after the weights", "A checkpoint without places has experts in order: call "
                   "layer.places.set_data(mindspore.Tensor(list(range(num_moe_experts)), mindspore.int32)).")
