"""The pure MoE-FFN definitions, written with public primitives only."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor

from hpmoe.primitives.dispatch import combine, dispatch
from hpmoe.primitives.grouped_matmul import grouped_matmul
from hpmoe.primitives.in_float32 import weight_beside
from hpmoe.primitives.matmul import matmul
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.primitives.route import check_tensor, drop_counts
from hpmoe.primitives.swiglu import swiglu
from hpmoe.support.errors import check_argument, check_flags
from hpmoe.support.keywords import suggests_keywords


@suggests_keywords
def moe_ffn(hidden_states: Tensor, topk_ids: Tensor, topk_weights: Tensor, gate_up_weight: Tensor, down_weight: Tensor,
            shared_gate_up_weight: Tensor | None = None, shared_down_weight: Tensor | None = None, *,
            capacity_factor: float | None = None, drop_policy: str = "error", return_drop_counts: bool = False) -> Any:
    """Computes a mixture-of-experts feed-forward layer: dispatch, grouped matmul, SwiGLU, grouped matmul, combine.

    A shared expert takes every token. Its matmuls wait for no other rank, so matrix units compute them while rows are under
    way. A gate in front of it is one line of your own: `moe_ffn(x, ...) + mint.sigmoid(x @ g) * (swiglu(x @ up) @ down)`.

    Args:
        hidden_states: [T, H].
        topk_ids: [T, K] int32 or int64, distinct global expert ids of each token, or -1 for no expert, any number of times.
        topk_weights: [T, K], in float32 or half precision. The weight of an id of -1 is not read, and its gradient is zero.
        gate_up_weight: [num_local_experts, H, 2I], the gate's columns first. All expert weights have the dtype of
            hidden_states, or are float32 and rounded to the half precision of hidden_states.
        down_weight: [num_local_experts, I, H].
        shared_gate_up_weight, shared_down_weight: [H, 2S] and [S, H] of a shared expert; none by default.
        capacity_factor, drop_policy: limit of the entries (token, choice) that an expert takes from each rank, and which
            entries over the limit are dropped; see `hpmoe.dispatch`.
        return_drop_counts: True also returns `hpmoe.router.drop_counts`.

    Returns:
        [T, H], out[t] = sum over k of topk_weights[t, k] * expert(topk_ids[t, k])(hidden_states[t]), without dropped
        entries and ids of -1, plus shared_expert(hidden_states[t]). With return_drop_counts, a tuple of this and the drop
        counts, [num_experts] int32.

    Raises:
        ArgumentError: shapes, dtypes, ids or options do not fit, or an expert is over capacity and the policy is "error".

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> rng = np.random.default_rng(0)
        >>> x, up, down = (ms.Tensor(rng.standard_normal(s), ms.float32) for s in [(4, 8), (2, 8, 6), (2, 3, 8)])
        >>> ids = ms.Tensor([[0, 1], [1, 0], [0, 1], [1, 0]], ms.int32)
        >>> weights = ms.Tensor(np.full((4, 2), 0.5), ms.float32)
        >>> hpmoe.moe_ffn(x, ids, weights, up, down).shape
        (4, 8)
        >>> out, dropped = hpmoe.moe_ffn(x, ids, weights, up, down, capacity_factor=0.75, drop_policy="position",
        ...                              return_drop_counts=True)
        >>> dropped.asnumpy().tolist()
        [1, 1]
    """
    outside_graphs("hpmoe.moe_ffn")
    check_flags("hpmoe.moe_ffn", return_drop_counts=return_drop_counts)
    has_shared = shared_gate_up_weight is not None
    check_argument(has_shared == (shared_down_weight is not None), "hpmoe.moe_ffn",
                   f"shared_{'down' if has_shared else 'gate_up'}_weight", "None", "given, as the other of the two is")
    check_argument(bool(getattr(gate_up_weight, "shape", ())), "hpmoe.moe_ffn", "gate_up_weight",
                   f"a {type(gate_up_weight).__name__} of no dimensions", "a [num_local_experts, H, 2I] mindspore.Tensor")
    rows, route = dispatch(hidden_states, topk_ids, num_local_experts=gate_up_weight.shape[0],
                           capacity_factor=capacity_factor, drop_policy=drop_policy, topk_weights=topk_weights)
    shared = None
    if shared_gate_up_weight is not None and shared_down_weight is not None:
        shared = _shared_expert(hidden_states, shared_gate_up_weight, shared_down_weight)
    gate_up = grouped_matmul(rows, gate_up_weight, route)
    expert_out = grouped_matmul(swiglu(gate_up), down_weight, route)
    out = combine(expert_out, route, topk_weights)
    out = out + shared if has_shared else out
    return (out, drop_counts(route)) if return_drop_counts else out


def _shared_expert(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    check_tensor("hpmoe.moe_ffn", "shared_gate_up_weight", gate_up)
    check_tensor("hpmoe.moe_ffn", "shared_down_weight", down)
    gate_up, down, hidden = weight_beside(x, gate_up), weight_beside(x, down), x.shape[1]
    fits = len(gate_up.shape) == 2 and gate_up.shape[0] == hidden and gate_up.shape[1] % 2 == 0 and gate_up.dtype == x.dtype
    check_argument(fits, "hpmoe.moe_ffn", "shared_gate_up_weight", f"{gate_up.dtype} of shape {tuple(gate_up.shape)}",
                   f"{x.dtype} of shape [{hidden}, 2S], by hidden_states")
    inner = gate_up.shape[1] // 2
    check_argument(tuple(down.shape) == (inner, hidden) and down.dtype == x.dtype, "hpmoe.moe_ffn", "shared_down_weight",
                   f"{down.dtype} of shape {tuple(down.shape)}", f"{x.dtype} of shape [{inner}, {hidden}]")
    return matmul(swiglu(matmul(x, gate_up, transpose=False)), down, transpose=False)
