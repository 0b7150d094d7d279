"""Random pure layers around a mixture of experts, each written at once for one rank in MindSpore and for all ranks in JAX.

A layer is a list of steps on tokens, on received rows, and on tokens again; `Layer.H` is the width throughout.
"""

import jax
import numpy as np
from hypothesis import strategies as st
from jax import numpy as jnp
from mindspore import mint
from variants import gather_back, gmm, jax_swiglu, rows_of

import hpmoe

F = mint.nn.functional
UNARY = {
    "tanh": (mint.tanh, jnp.tanh), "silu": (F.silu, jax.nn.silu), "square": (mint.square, jnp.square),
    "gauss": (lambda a: mint.exp(-a * a), lambda a: jnp.exp(-a * a)),
    "softmax": (lambda a: F.softmax(a, dim=-1), lambda a: jax.nn.softmax(a, axis=-1)),
    "center": (lambda a: a - mint.mean(a, dim=-1, keepdim=True), lambda a: a - jnp.mean(a, axis=-1, keepdims=True)),
    "norm": (lambda a: a * mint.rsqrt(mint.sum(a * a, dim=-1, keepdim=True) + 1.0),
             lambda a: a * jax.lax.rsqrt(jnp.sum(a * a, axis=-1, keepdims=True) + 1.0)),
    "leaky": (lambda a: mint.where(a > 0.1, a, 0.5 * a), lambda a: jnp.where(a > 0.1, a, 0.5 * a)),
    "roll": (lambda a: mint.cat([a[:, 1:], a[:, :1]], dim=-1),
             lambda a: jnp.concatenate([a[..., 1:], a[..., :1]], axis=-1)),
}
BINARY = {"add": (mint.add, jnp.add), "mul": (mint.mul, jnp.multiply), "maximum": (mint.maximum, jnp.maximum),
          "ratio": (lambda a, b: a / (b * b + 1.0), lambda a, b: a / (b * b + 1.0))}
TOKENS, RECEIVED = ("dense", "bias"), ("dense", "experts", "swiglu", "expert bias")


def _steps(special):
    one = st.one_of(st.tuples(st.sampled_from(sorted(UNARY)), st.integers(0, 4)),
                    st.tuples(st.sampled_from(sorted(BINARY)), st.integers(0, 4), st.integers(0, 4)),
                    st.tuples(st.sampled_from(special), st.integers(0, 4)))
    return st.lists(one, max_size=3)


programs = st.tuples(_steps(TOKENS), _steps(RECEIVED), _steps(TOKENS), st.booleans())


def arguments(layer, seed):
    """x, ids, w, then the parameters that steps use: dense, bias, experts, expert bias and the weight of swiglu."""
    rng, h, local = np.random.default_rng(seed), layer.H, layer.E // layer.ep
    shapes = [(layer.T, h), None, (layer.T, layer.K), (h, h), (h,), (local, h, h), (local, h), (local, h, 2 * h)]
    return [layer.ids(rng) if s is None else rng.standard_normal((layer.ep, *s)).astype(np.float32) / 2 for s in shapes]


def _run(steps, value, special, which):
    values = [value]
    for name, *operands in steps:
        found = [values[i % len(values)] for i in operands]
        table = UNARY if name in UNARY else BINARY
        values.append(special[name](found[0]) if name in special else table[name][which](*found))
    return values[-1]


def in_mindspore(program):
    before, inside, after, weighted = program

    def layer(x, ids, w, dense, bias, experts, expert_bias, up):
        tokens = {"dense": lambda a: mint.matmul(a, dense), "bias": lambda a: a + bias}
        start = _run(before, x, tokens, 0)
        rows, route = hpmoe.dispatch(start, ids, num_local_experts=experts.shape[0])
        special = {"dense": lambda a: mint.matmul(a, dense), "experts": lambda a: hpmoe.grouped_matmul(a, experts, route),
                   "swiglu": lambda a: hpmoe.swiglu(hpmoe.grouped_matmul(a, up, route)),
                   "expert bias": lambda a: hpmoe.grouped_matmul(a, experts, route, bias=expert_bias)}
        out = hpmoe.combine(_run(inside, rows, special, 0), route, *([w] if weighted else []))
        return start + _run(after, out, tokens, 0)
    return layer


def in_jax(program):
    before, inside, after, weighted = program

    def layer(x, ids, w, dense, bias, experts, expert_bias, up):
        local = experts.shape[1]
        tokens = {"dense": lambda a: jnp.einsum("rth,rhn->rtn", a, dense), "bias": lambda a: a + bias[:, None]}
        of_expert = expert_bias.reshape(-1, expert_bias.shape[-1])[ids]
        special = {"dense": lambda a: jnp.einsum("rtkh,rtkhn->rtkn", a, dense[ids // local]),
                   "experts": lambda a: gmm(a, experts, ids), "swiglu": lambda a: jax_swiglu(gmm(a, up, ids)),
                   "expert bias": lambda a: gmm(a, experts, ids) + of_expert}
        start = _run(before, x, tokens, 1)
        out = gather_back(_run(inside, rows_of(start, ids), special, 1), w if weighted else None)
        return start + _run(after, out, tokens, 1)
    return layer
