"""The layer in NumPy with the gradients written out: a loop over experts, every array allocated once and reused."""

from functools import cached_property

import numpy as np


def layer(problem, dtype: type[np.floating] = np.float32):
    """The passes of the layer in `dtype`, and how its results become NumPy arrays."""
    loop = Layer(problem, dtype)
    return {"forward": loop.forward, "forward + backward": loop.forward_backward}, np.asarray


class Layer:
    """Inputs, and the arrays of the sorted rows; those of the backward pass are made when it first runs."""

    def __init__(self, problem, dtype):
        self.problem = problem
        self.x, self.weights, self.gate_up, self.down, self.cotangent = (
            problem.array(name).astype(dtype, copy=False)
            for name in ("hidden_states", "topk_weights", "gate_up_weight", "down_weight", "cotangent"))
        self.row_weights = self.weights.reshape(-1, 1)[problem.order]
        hidden, half = self.x.shape[1], problem.intermediate
        self.received, self.y, self.wide, self.sigmoids, self.act = (
            self.rows_of(width) for width in (hidden, hidden, 2 * half, half, half))
        self.out, self.taken = np.empty_like(self.x), np.empty_like(self.x)

    def rows_of(self, width):
        return np.empty((len(self.problem.rows), width), self.x.dtype)

    @cached_property
    def d_rows(self):
        return self.rows_of(self.x.shape[1])

    @cached_property
    def d_act(self):
        return self.rows_of(self.problem.intermediate)

    def experts(self):
        """Yields each expert's index, its slice of the rows, and gate, value, sigmoid(gate) and silu(gate) * value there."""
        half = self.problem.intermediate
        for e, r in self.problem.slices:
            yield e, r, self.wide[r, :half], self.wide[r, half:], self.sigmoids[r], self.act[r]

    def forward(self):
        np.take(self.x, self.problem.rows, 0, out=self.received)
        for e, r, gate, value, s, act in self.experts():
            np.matmul(self.received[r], self.gate_up[e], out=self.wide[r])
            sigmoid(gate, s)
            np.multiply(gate, s, out=act)
            act *= value
            np.matmul(act, self.down[e], out=self.y[r])
            self.y[r] *= self.row_weights[r]
        return [self.sum_places(self.y)]

    def forward_backward(self):
        output = self.forward()[0].copy()
        d_gate_up, d_down = np.zeros_like(self.gate_up), np.zeros_like(self.down)
        d_weights = np.empty_like(self.weights)
        np.take(self.cotangent, self.problem.rows, 0, out=self.d_rows)
        for e, r, gate, value, s, act in self.experts():
            d_rows, d_act = self.d_rows[r], self.d_act[r]
            np.matmul(d_rows, self.down[e].T, out=d_act)
            d_weights.reshape(-1)[self.problem.order[r]] = np.einsum("ri,ri->r", d_act, act)
            act *= self.row_weights[r]
            np.matmul(act.T, d_rows, out=d_down[e])
            d_act *= self.row_weights[r]
            silu_gradient(gate, value, s, d_act, act)
            np.matmul(self.received[r].T, self.wide[r], out=d_gate_up[e])
            np.matmul(self.wide[r], self.gate_up[e].T, out=d_rows)
        return [output, self.sum_places(self.d_rows), d_weights, d_gate_up, d_down]

    def sum_places(self, values):
        """[N, H]: the sum of each token's rows."""
        places = self.problem.places
        np.take(values, places[:, 0], 0, out=self.out)
        for k in range(1, places.shape[1]):
            np.take(values, places[:, k], 0, out=self.taken)
            np.add(self.out, self.taken, out=self.out)
        return self.out


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
