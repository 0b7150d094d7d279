"""The MoE-FFN of all ranks as plain MindSpore operators, one after another: what `hpmoe` is compared with."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import mint, ops
from mindspore.mint.nn import functional

from hpmoe.primitives.in_float32 import in_float32


@in_float32
def moe_ffn_op_by_op(hidden_states: ms.Tensor, topk_ids: ms.Tensor, topk_weights: ms.Tensor, gate_up_weight: ms.Tensor,
                     down_weight: ms.Tensor) -> ms.Tensor:
    """Computes `spmd(moe_ffn, mesh)` on arrays with a rank axis, without ranks, tiles or hpmoe's primitives.

    Rows are gathered in the order of their experts, which the host computes; an expert without rows costs nothing. The
    weights are split once: indexing them in the loop would give every expert a gradient of full size. Half precision is
    computed in float32 and cast back at the end, since MindSpore's CPU has no bfloat16 matmul.
    """
    num_tokens, hidden_size = hidden_states.shape[0] * hidden_states.shape[1], hidden_states.shape[2]
    num_experts = gate_up_weight.shape[0] * gate_up_weight.shape[1]
    ids = topk_ids.asnumpy().reshape(-1)
    order = np.argsort(ids, kind="stable").astype(np.int32)
    counts = np.bincount(ids, minlength=num_experts)
    tokens = ms.Tensor(order // topk_ids.shape[2])

    rows = ops.gather(hidden_states.reshape(num_tokens, hidden_size), tokens, 0)
    weights = ops.gather(topk_weights.reshape(-1, 1), ms.Tensor(order), 0)
    used = np.flatnonzero(counts)
    gate_up, down = _experts(gate_up_weight), _experts(down_weight)
    outputs = []
    for expert, x in zip(used.tolist(), mint.split(rows, counts[used].tolist()), strict=True):
        gate, up = mint.chunk(mint.matmul(x, gate_up[expert]), 2, -1)
        outputs.append(mint.matmul(functional.silu(gate) * up, down[expert]))
    summed = mint.index_add(mint.zeros((num_tokens, hidden_size)), 0, tokens, mint.cat(outputs) * weights)
    return summed.reshape(hidden_states.shape)


def _experts(weight: ms.Tensor) -> tuple[ms.Tensor, ...]:
    """Returns the matrix of each expert, by split, whose gradient is one concat; MindSpore's CPU lacks that of unbind."""
    return mint.split(weight.reshape(-1, weight.shape[-1]), weight.shape[-2])
