"""GroupedMLP: the experts, a feed-forward network each, without the router that chooses them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
from mindspore import mint, nn

from hpmoe.balance.moving import physical_ids
from hpmoe.machines.machine import Mesh
from hpmoe.nn.on_ranks import by_rank, num_ranks, on_all, rows_shape, transformed
from hpmoe.nn.parameters import check_drawn, check_flags, check_sizes, normal, zeros
from hpmoe.primitives.dispatch import combine, dispatch
from hpmoe.primitives.grouped_matmul import grouped_matmul
from hpmoe.primitives.swiglu import swiglu
from hpmoe.support.errors import check_argument

Activation = Callable[[Any], Any]


def run_experts(hidden_states: Any, topk_ids: Any, topk_weights: Any, experts: dict[str, Any], activation: Activation,
                on_input: bool) -> Any:
    """What each token's experts compute of it, weighted and summed, [T, H]; `on_input` weighs what they are given."""
    topk_ids = physical_ids(topk_ids, experts["places"]) if "places" in experts else topk_ids
    given = hidden_states * topk_weights.astype(hidden_states.dtype) if on_input else hidden_states
    rows, route = dispatch(given, topk_ids, num_local_experts=experts["weight1"].shape[0])
    hidden = activation(grouped_matmul(rows, experts["weight1"], route, bias=experts.get("bias1")))
    out = grouped_matmul(hidden, experts["weight2"], route, bias=experts.get("bias2"))
    return combine(out, route, None if on_input else topk_weights)


class GroupedMLP(nn.Cell):
    """The experts of a layer: two grouped matmuls and an activation between them, of rows sent to whom the router chose.

    Args:
        hidden_size: H.
        moe_ffn_hidden_size: I.
        num_moe_experts: E, of all ranks together.
        activation: a function of rows [R, 2I], the gate's columns first, to rows [R, I]; written in calls of MindSpore that
            hpmoe traces. `hpmoe.swiglu` by default.
        gated_linear_unit: whether weight1 has columns of a gate; without, it is [E, H, I], and so are the activation's rows.
        add_bias_linear: whether experts have biases.
        moe_apply_probs_on_input: whether weights multiply what experts are given instead of what they return; of one expert
            for each token, as in Llama 4.
        init_method_std: the standard deviation that weights are drawn with.
        dtype: of the Parameters; beside hidden states in half precision float32 ones are rounded, and trained as they are.
        transforms: of the function of one rank; None makes one kernel of it.
        mesh: virtual ranks that share tokens and experts evenly, in order; None is one rank.

    Inputs:
        hidden_states: [..., H], float32 or half precision.
        topk_weights: [..., K].
        topk_ids: [..., K] int32 or int64, distinct expert ids, or -1 for no expert.

    Outputs:
        [..., H].

    Parameters:
        weight1 [E, H, 2I], weight2 [E, I, H]; bias1 [E, 2I], bias2 [E, H] where add_bias_linear.

    Raises:
        ArgumentError: an argument does not fit.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> experts = hpmoe.nn.GroupedMLP(hidden_size=8, moe_ffn_hidden_size=4, num_moe_experts=2)
        >>> experts(ms.ops.ones((3, 8)), ms.ops.ones((3, 1)), ms.Tensor([[0], [1], [0]], ms.int32)).shape
        (3, 8)
    """

    def __init__(self, *, hidden_size: int, moe_ffn_hidden_size: int, num_moe_experts: int, activation: Activation = swiglu,
                 gated_linear_unit: bool = True, add_bias_linear: bool = False, moe_apply_probs_on_input: bool = False,
                 init_method_std: float = 0.02, dtype: Any = ms.float32, transforms: Any = None, mesh: Mesh | None = None):
        super().__init__()
        self.who = "hpmoe.nn.GroupedMLP"
        check_sizes(self.who, hidden_size=hidden_size, moe_ffn_hidden_size=moe_ffn_hidden_size,
                    num_moe_experts=num_moe_experts)
        check_flags(self.who, gated_linear_unit=gated_linear_unit, add_bias_linear=add_bias_linear,
                    moe_apply_probs_on_input=moe_apply_probs_on_input)
        check_drawn(self.who, init_method_std, dtype)
        check_argument(callable(activation), self.who, "activation", repr(activation), "a function of rows")
        self.hidden_size, self.has_bias = hidden_size, add_bias_linear
        wide = moe_ffn_hidden_size * (2 if gated_linear_unit else 1)
        self.weight1 = normal("weight1", (num_moe_experts, hidden_size, wide), init_method_std, dtype)
        self.weight2 = normal("weight2", (num_moe_experts, moe_ffn_hidden_size, hidden_size), init_method_std, dtype)
        if add_bias_linear:
            self.bias1 = zeros("bias1", (num_moe_experts, wide), dtype)
            self.bias2 = zeros("bias2", (num_moe_experts, hidden_size), dtype)

        def grouped_mlp(hidden_states, topk_weights, topk_ids, experts):
            return run_experts(hidden_states, topk_ids, topk_weights, experts, activation, moe_apply_probs_on_input)
        self.compute = transformed(self.who, grouped_mlp, transforms, mesh, 0)
        self.places: Any = None  # where each expert lies, [E] int32, when a Balancer has moved them
        self.ep_size = num_ranks(self.who, mesh, num_moe_experts)

    def tensors(self):
        """What experts read, by name; with a rank axis where there is a mesh."""
        found = {"weight1": by_rank(self.weight1, self.ep_size), "weight2": by_rank(self.weight2, self.ep_size)}
        if self.has_bias:
            found["bias1"] = by_rank(self.bias1, self.ep_size)
            found["bias2"] = by_rank(self.bias2, self.ep_size)
        if self.places is not None:
            found["places"] = on_all(self.places, self.ep_size)
        return found

    def construct(self, hidden_states, topk_weights, topk_ids):
        rows = mint.reshape(hidden_states, rows_shape(self.who, hidden_states.shape, self.hidden_size, self.ep_size))
        top_k = topk_ids.shape[-1]
        ids = mint.reshape(topk_ids, rows_shape(self.who, topk_ids.shape, top_k, self.ep_size, "topk_ids"))
        weights = mint.reshape(topk_weights, rows_shape(self.who, topk_weights.shape, top_k, self.ep_size, "topk_weights"))
        return mint.reshape(self.compute(rows, weights, ids, self.tensors()), hidden_states.shape)
