"""The pure MoE-FFN definitions, written with public primitives only."""

from __future__ import annotations

from typing import Any

from hpmoe.primitives.dispatch import combine, dispatch
from hpmoe.primitives.grouped_matmul import grouped_matmul
from hpmoe.primitives.swiglu import swiglu


def moe_ffn(hidden_states: Any, topk_ids: Any, topk_weights: Any, gate_up_weight: Any, down_weight: Any) -> Any:
    """A mixture-of-experts feed-forward layer: dispatch, grouped matmul, SwiGLU, grouped matmul, combine.

    Args:
        hidden_states: [T, H].
        topk_ids: [T, K] int32, distinct global expert ids of each token.
        topk_weights: [T, K].
        gate_up_weight: [num_local_experts, H, 2I], the gate's columns first.
        down_weight: [num_local_experts, I, H].

    Returns:
        [T, H], out[t] = sum over k of topk_weights[t, k] * expert(topk_ids[t, k])(hidden_states[t]).

    Raises:
        ArgumentError: shapes, dtypes or ids do not fit.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> rng = np.random.default_rng(0)
        >>> x, up, down = (ms.Tensor(rng.standard_normal(s), ms.float32) for s in [(4, 8), (2, 8, 6), (2, 3, 8)])
        >>> ids = ms.Tensor([[0, 1], [1, 0], [0, 1], [1, 0]], ms.int32)
        >>> hpmoe.moe_ffn(x, ids, ms.Tensor(np.full((4, 2), 0.5), ms.float32), up, down).shape
        (4, 8)
    """
    rows, route = dispatch(hidden_states, topk_ids, num_local_experts=gate_up_weight.shape[0])
    gate_up = grouped_matmul(rows, gate_up_weight, route)
    expert_out = grouped_matmul(swiglu(gate_up), down_weight, route)
    return combine(expert_out, route, topk_weights)
