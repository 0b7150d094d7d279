"""The layer in MindSpore with a process for each rank: all rows go to all by AllGather, and results are summed by AllReduce.

Its CPU has neither all-to-all nor ReduceScatter, so that there is no gradient of AllGather: forward alone.
"""

from collections.abc import Callable
from typing import cast

import mindspore as ms
import numpy as np
from mindspore import communication, mint, ops
from mindspore.mint.nn import functional


def layer(problem, rank, size):
    """The pass of a rank, as of mindspore_loop. problem: the arrays of this rank."""
    communication.init("mccl")
    gather = cast(Callable[[ms.Tensor], ms.Tensor], ops.AllGather())  # whose annotations know no result
    reduce = cast(Callable[[ms.Tensor], ms.Tensor], ops.AllReduce())
    x, weights, ids = (ms.Tensor(problem[name]) for name in ("x", "weights", "ids"))
    gate_up, down = ([ms.Tensor(w) for w in problem[name]] for name in ("gate_up", "down"))
    num_local, top_k = len(gate_up), ids.shape[1]

    def moe_ffn():
        all_x, all_weights, all_ids = gather(x), gather(weights), gather(ids).asnumpy().reshape(-1)
        order = np.argsort(all_ids, kind="stable").astype(np.int32)
        counts = np.bincount(all_ids, minlength=num_local * size)
        first = int(counts[:rank * num_local].sum())
        own = counts[rank * num_local:(rank + 1) * num_local]
        order = order[first:first + int(own.sum())]
        tokens = ms.Tensor(order // top_k)
        rows, scales = ops.gather(all_x, tokens, 0), ops.gather(all_weights.reshape(-1, 1), ms.Tensor(order), 0)
        used, made = np.flatnonzero(own).tolist(), []
        for expert, part in zip(used, mint.split(rows, own[used].tolist()), strict=True):
            gate, up = mint.chunk(mint.matmul(part, gate_up[expert]), 2, -1)
            made.append(mint.matmul(functional.silu(gate) * up, down[expert]))
        whole = mint.zeros(all_x.shape)
        if made:
            whole = mint.index_add(whole, 0, tokens, mint.cat(made) * scales)
        return reduce(whole)[rank * len(x):(rank + 1) * len(x)]

    return {"forward": lambda: [moe_ffn()]}, lambda t: t.asnumpy()
