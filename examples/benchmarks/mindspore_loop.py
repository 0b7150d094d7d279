"""The layer as MindSpore operators, one after another in blocking mode or under ms.jit: a loop over experts."""

import mindspore as ms
from mindspore import mint, ops
from mindspore.mint.nn import functional

from hpmoe.support.trees import Function

ms.runtime.launch_blocking()
vjp: Function = ms.vjp  # whose annotations know no function


def op_by_op(problem):
    return layer(problem, lambda f: f, lambda y, rows, n: mint.index_add(mint.zeros((n, y.shape[1])), 0, rows, y))


def jit(problem):
    return layer(problem, ms.jit, ops.unsorted_segment_sum)  # a graph has no index_add on the CPU


def layer(problem, transform, sum_rows):
    """The passes of the layer under `transform`, and how its results become NumPy arrays."""
    rows, order, experts = ms.Tensor(problem.rows), ms.Tensor(problem.order), problem.experts
    used = tuple(e for e, n in enumerate(problem.counts) if n)
    counts = tuple(problem.counts[e] for e in used)
    cotangent = ms.Tensor(problem.array("cotangent"))
    given = (ms.Tensor(problem.array("hidden_states")), ms.Tensor(problem.array("topk_weights")),
             *(ms.Tensor(w) for name in ("gate_up_weight", "down_weight") for w in problem.array(name)))

    def moe_ffn(x, weights, *matrices):
        received = mint.split(ops.gather(x, rows, 0), counts)
        scales = ops.gather(weights.reshape(-1, 1), order, 0)
        outputs = []
        for i in range(len(used)):
            gate, up = mint.chunk(mint.matmul(received[i], matrices[used[i]]), 2, -1)
            outputs.append(mint.matmul(functional.silu(gate) * up, matrices[experts + used[i]]))
        return sum_rows(mint.cat(outputs) * scales, rows, problem.num_tokens)

    f = transform(moe_ffn)

    def with_gradients(cotangent, *given):
        out, back = vjp(moe_ffn, *given)
        return out, back(cotangent)

    g = transform(with_gradients)

    def forward_backward():
        out, grads = g(cotangent, *given)
        return [out, *grads[:2], grads[2:2 + experts], grads[2 + experts:]]

    return {"forward": lambda: [f(*given)], "forward + backward": forward_backward}, lambda t: t.asnumpy()
