"""The layer in NumPy with the gradients written out: a loop over experts, every array allocated once and reused."""

import numpy as np


def layer(problem, dtype=np.float32):
    """The passes of the layer in `dtype`, and how its results become NumPy arrays."""
    x, weights, gate_up, down, cotangent = (
        problem.array(name).astype(dtype, copy=False)
        for name in ("hidden_states", "topk_weights", "gate_up_weight", "down_weight", "cotangent"))
    rows, places, slices, half = problem.rows, problem.places, problem.slices, problem.intermediate
    row_weights = weights.reshape(-1, 1)[problem.order]

    def buffer(width):
        return np.empty((len(rows), width), dtype)

    received, wide, narrow, act, out = buffer(x.shape[1]), buffer(2 * half), buffer(half), buffer(half), np.empty_like(x)

    def forward():
        np.take(x, rows, 0, out=received)
        y = wide_hidden()
        for e, r in slices:
            np.matmul(received[r], gate_up[e], out=wide[r])
            gate, value, s, a = wide[r, :half], wide[r, half:], narrow[r], act[r]
            sigmoid(gate, s)
            np.multiply(gate, s, out=a)
            a *= value
            np.matmul(a, down[e], out=y[r])
            y[r] *= row_weights[r]
        return [sum_places(y)]

    # Made on first use: forward alone needs only the first.
    reused = {}

    def wide_hidden(name="y"):
        if name not in reused:
            reused[name] = buffer(x.shape[1])
        return reused[name]

    def sum_places(values):
        if "taken" not in reused:
            reused["taken"] = np.empty_like(x)
        taken = reused["taken"]
        np.take(values, places[:, 0], 0, out=out)
        for k in range(1, places.shape[1]):
            np.take(values, places[:, k], 0, out=taken)
            np.add(out, taken, out=out)
        return out

    def forward_backward():
        output = forward()[0].copy()
        d_rows, d_act = wide_hidden(), buffer(half) if "d_act" not in reused else reused["d_act"]
        reused["d_act"] = d_act
        d_gate_up, d_down = np.zeros_like(gate_up), np.zeros_like(down)
        d_weights = np.empty_like(weights)
        np.take(cotangent, rows, 0, out=d_rows)
        for e, r in slices:
            gate, value, s, a, d = wide[r, :half], wide[r, half:], narrow[r], act[r], d_act[r]
            np.matmul(d_rows[r], down[e].T, out=d)
            d_weights.reshape(-1)[problem.order[r]] = np.einsum("ri,ri->r", d, a)
            a *= row_weights[r]
            np.matmul(a.T, d_rows[r], out=d_down[e])
            d *= row_weights[r]
            silu_gradient(gate, value, s, d, a)
            np.matmul(received[r].T, wide[r], out=d_gate_up[e])
            np.matmul(wide[r], gate_up[e].T, out=d_rows[r])
        return [output, sum_places(d_rows), d_weights, d_gate_up, d_down]

    return {"forward": forward, "forward + backward": forward_backward}, np.asarray


def sigmoid(x, out):
    np.negative(x, out=out)
    np.exp(out, out=out)
    out += 1
    np.reciprocal(out, out=out)


def silu_gradient(gate, value, s, d, scratch):
    """Puts the gradients of silu(gate) * value into gate and value; d is the gradient of the product, s sigmoid(gate)."""
    np.multiply(gate, s, out=scratch)  # silu(gate)
    d_value = d * scratch
    np.subtract(1, s, out=gate)
    gate *= scratch
    gate += s  # s + gate * s * (1 - s), the derivative of silu
    gate *= value
    gate *= d
    value[...] = d_value
