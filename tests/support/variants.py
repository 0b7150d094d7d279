"""Feed-forward layers beyond moe_ffn: each as MindSpore code for one rank, and as JAX for all ranks at once.

The parameters of both functions name their arguments; SHAPES says what each is on one rank.
"""

import inspect
import math

import jax
import numpy as np
from helpers import Layer, entry_weights, jax_moe_ffn
from jax import numpy as jnp
from mindspore import mint, ops

import hpmoe
from hpmoe import combine, dispatch, grouped_matmul, moe_ffn, swiglu

F = mint.nn.functional
LAYER = Layer(ep=2, T=5, H=4, I=3, E=4, K=2)
SHAPES = {
    "x": ("T", "H"), "w": ("T", "K"), "up": ("El", "H", "2I"), "down": ("El", "I", "H"), "gate": ("El", "H", "I"),
    "mid": ("El", "I", "I"), "up_bias": ("El", "2I"), "down_bias": ("El", "H"), "dense_up": ("H", "2I"),
    "dense_down": ("I", "H"), "bias": ("H",), "wide_bias": ("2I",), "scale": (1,), "row": ("T", 1),
    "batch": (1, "T", "H"), "norm": ("H",), "up2": ("El", "H", "2I"), "down2": ("El", "I", "H"), "unused": ("H", 3),
    "square": ("H", "H"), "w2": ("T", "K"), "up_rows": ("El", "2I", "H"), "down_rows": ("El", "H", "I"),
}
VARIANTS = {}


def variant(in_jax):
    def keep(f):
        VARIANTS[f.__name__] = (f, in_jax)
        return f
    return keep


def arguments(f, layer=LAYER, seed=0):
    """Random arguments of a variant with the rank axis first; ids are distinct experts of each token."""
    rng = np.random.default_rng(seed)
    sizes = {"T": layer.T, "H": layer.H, "K": layer.K, "El": layer.E // layer.ep, "I": layer.I, "2I": 2 * layer.I}
    out = []
    for name in inspect.signature(f).parameters:
        if name.startswith("ids"):
            out.append(layer.ids(rng))
        else:
            shape = tuple(sizes.get(d, d) for d in SHAPES[name])
            out.append(rng.standard_normal((layer.ep, *shape)).astype(np.float32))
    return out


# JAX spellings of the primitives: received rows are [ep, T, K, ...].

def rows_of(x, ids):
    return jnp.broadcast_to(x[:, :, None, :], (*ids.shape, x.shape[-1]))


def gmm(rows, weight, ids):
    return jnp.einsum("rtkh,rtkhn->rtkn", rows, entry_weights(weight, ids))


def gather_back(rows, w=None):
    return rows.sum(2) if w is None else jnp.einsum("rtk,rtkh->rth", w, rows)


def jax_swiglu(x):
    a, b = jnp.split(x, 2, axis=-1)
    return jax.nn.silu(a) * b


def jax_moe_with(activation):
    return lambda x, ids, w, up, down: gather_back(gmm(activation(gmm(rows_of(x, ids), up, ids)), down, ids), w)


def moe_with(activation, x, ids, w, up, down):
    rows, route = dispatch(x, ids, num_local_experts=up.shape[0])
    return combine(grouped_matmul(activation(grouped_matmul(rows, up, route)), down, route), route, w)


# Activations in plain mint.

@variant(jax_moe_with(lambda a: jax.nn.silu(a[..., :3]) * a[..., 3:]))
def split_silu(x, ids, w, up, down):
    def activation(a):
        gate, value = mint.split(a, 3, dim=-1)
        return F.silu(gate) * value
    return moe_with(activation, x, ids, w, up, down)


@variant(jax_moe_with(lambda a: jax.nn.gelu(a[..., :3], approximate=True) * a[..., 3:]))
def geglu(x, ids, w, up, down):
    def activation(a):
        gate, value = mint.chunk(a, 2, dim=-1)
        inner = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate * gate * gate)
        return 0.5 * gate * (1.0 + mint.tanh(inner)) * value
    return moe_with(activation, x, ids, w, up, down)


@variant(jax_moe_with(lambda a: jax.nn.gelu(a[..., :3], approximate=False) * a[..., 3:]))
def erf_geglu(x, ids, w, up, down):
    def activation(a):
        gate, value = a[:, :3], a[:, 3:]
        return gate * (mint.erf(gate / math.sqrt(2.0)) + 1.0) * 0.5 * value
    return moe_with(activation, x, ids, w, up, down)


@variant(lambda x, ids, w, gate, down: jax_moe_with(lambda a: jnp.square(jax.nn.relu(a)))(x, ids, w, gate, down))
def squared_relu(x, ids, w, gate, down):
    return moe_with(lambda a: mint.square(F.relu(a)), x, ids, w, gate, down)


@variant(lambda x, ids, w, gate, down: jax_moe_with(lambda a: jnp.where(a > 0, jnp.minimum(a, 1.0), 0.1 * a))(
    x, ids, w, gate, down))
def piecewise(x, ids, w, gate, down):
    return moe_with(lambda a: mint.where(a > 0, mint.minimum(a, mint.ones_like(a)), 0.1 * a), x, ids, w, gate, down)


@variant(jax_moe_with(lambda a: jax.nn.softmax(a, axis=-1)[..., :3]))
def softmax_inside(x, ids, w, up, down):
    return moe_with(lambda a: F.softmax(a, dim=-1)[:, :3], x, ids, w, up, down)


def _rms(x, weight):
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=-1, keepdims=True) + 1e-6) * weight


@variant(lambda x, norm, ids, w, up, down: jax_moe_ffn(_rms(x, norm[:, None, :]), ids, w, up, down) + x)
def rms_norm_and_residual(x, norm, ids, w, up, down):
    scale = mint.rsqrt(mint.mean(x * x, dim=-1, keepdim=True) + 1e-6)
    return moe_ffn(x * scale * norm, ids, w, up, down) + x


@variant(lambda x, ids, w, up, mid, down: gather_back(
    gmm(jnp.tanh(gmm(jax_swiglu(gmm(rows_of(x, ids), up, ids)), mid, ids)), down, ids), w))
def three_matmuls(x, ids, w, up, mid, down):
    rows, route = dispatch(x, ids, num_local_experts=up.shape[0])
    inner = mint.tanh(grouped_matmul(swiglu(grouped_matmul(rows, up, route)), mid, route))
    return combine(grouped_matmul(inner, down, route), route, w)


# Biases, scales and gates.

@variant(lambda x, ids, w, up, up_bias, down, down_bias: gather_back(
    gmm(jax_swiglu(gmm(rows_of(x, ids), up, ids) + entry_weights(up_bias, ids)), down, ids)
    + entry_weights(down_bias, ids), w))
def expert_biases(x, ids, w, up, up_bias, down, down_bias):
    rows, route = dispatch(x, ids, num_local_experts=up.shape[0])
    act = swiglu(grouped_matmul(rows, up, route, bias=up_bias))
    return combine(grouped_matmul(act, down, route, bias=down_bias), route, w)


@variant(lambda x, ids, up, down: jax_moe_ffn(x, ids, jnp.ones(ids.shape), up, down))
def without_weights(x, ids, up, down):
    rows, route = dispatch(x, ids, num_local_experts=up.shape[0])
    return combine(grouped_matmul(swiglu(grouped_matmul(rows, up, route)), down, route), route)


@variant(lambda x, ids, w, up, down, scale, row: jax_moe_ffn(x, ids, w, up, down) * scale[:, :, None] * row)
def learned_scales(x, ids, w, up, down, scale, row):
    return moe_ffn(x, ids, w, up, down) * scale * row


@variant(lambda x, ids, w, up, down: jax_moe_ffn(x, ids, jax.nn.softmax(w, -1), up, down))
def softmax_weights(x, ids, w, up, down):
    return moe_ffn(x, ids, mint.softmax(w, -1), up, down)


# Dense layers.

@variant(lambda x, dense_up, wide_bias, dense_down, bias: jax_swiglu(x @ dense_up + wide_bias[:, None]) @ dense_down
         + bias[:, None])
def dense_with_bias(x, dense_up, wide_bias, dense_down, bias):
    return swiglu(x @ dense_up + wide_bias) @ dense_down + bias


@variant(lambda x, square: jnp.einsum("rth,rnh->rtn", x, square))
def transposed_weight(x, square):
    return F.linear(x, square)


@variant(lambda x, ids, w, up, down, dense_up, dense_down: jax_swiglu(x @ dense_up) @ dense_down
         + jax_moe_ffn(x, ids, w, up, down))
def shared_expert(x, ids, w, up, down, dense_up, dense_down):
    return swiglu(x @ dense_up) @ dense_down + moe_ffn(x, ids, w, up, down)


@variant(lambda x, ids, w, up, square, down: gather_back(gmm(jax_swiglu(gmm(
    jnp.einsum("rtkh,rtkhn->rtkn", rows_of(x, ids), square[ids // up.shape[1]]), up, ids)), down, ids), w))
def dense_on_received_rows(x, ids, w, up, square, down):
    rows, route = dispatch(x, ids, num_local_experts=up.shape[0])
    return combine(grouped_matmul(swiglu(grouped_matmul(mint.matmul(rows, square), up, route)), down, route), route, w)


# Composition.

@variant(lambda x, ids, w, up, down, ids2, w2, up2, down2: jax_moe_ffn(
    x + jax_moe_ffn(x, ids, w, up, down), ids2, w2, up2, down2))
def two_layers(x, ids, w, up, down, ids2, w2, up2, down2):
    return moe_ffn(x + moe_ffn(x, ids, w, up, down), ids2, w2, up2, down2)


@variant(lambda x, ids, w, up, down: (jax_moe_ffn(x, ids, w, up, down), x, jnp.sum(x, 2, keepdims=True)))
def several_outputs(x, ids, w, up, down):
    return moe_ffn(x, ids, w, up, down), x, mint.sum(x, dim=-1, keepdim=True)


@variant(lambda x, ids, w, up, down: (2.0 * jax_moe_ffn(x, ids, w, up, down),) * 2)
def one_result_twice(x, ids, w, up, down):
    y = 2.0 * moe_ffn(x, ids, w, up, down)
    return y, y


@variant(lambda x, unused, ids, w, up, down: jax_moe_ffn(x, ids, w, up, down) + 0 * unused.sum())
def unused_input(x, unused, ids, w, up, down):
    return moe_ffn(x, ids, w, up, down)


@variant(lambda batch, ids, w, up, down: jax_moe_ffn(batch[:, 0], ids, w, up, down)[:, None])
def batched_hidden_states(batch, ids, w, up, down):
    b, s, h = batch.shape
    return moe_ffn(batch.reshape(b * s, h), ids, w, up, down).reshape(b, s, h)


@variant(lambda x, ids, w, up, down: jax_moe_ffn(jax.lax.stop_gradient(x), ids, w, up, down))
def stopped(x, ids, w, up, down):
    return moe_ffn(ops.stop_gradient(x), ids, w, up, down)


@variant(lambda x, ids, w, up, down: jnp.sum(jax_moe_ffn(x, ids, w, up, down), axis=1))
def summed_over_tokens(x, ids, w, up, down):
    return mint.sum(moe_ffn(x, ids, w, up, down), dim=0)


@variant(lambda x, ids, w, up, down: jnp.concatenate([x[..., 2:], jax_moe_ffn(x, ids, w, up, down)], axis=-1))
def concatenated(x, ids, w, up, down):
    return mint.cat([x[:, 2:], moe_ffn(x, ids, w, up, down)], dim=-1)


@variant(lambda x, ids, w, up, down: jax_moe_ffn(x, ids, w, up, down) + jax_moe_ffn(2 * x, ids, w, up, down))
def same_ids_twice(x, ids, w, up, down):
    return hpmoe.moe_ffn(x, ids, w, up, down) + hpmoe.moe_ffn(2.0 * x, ids, w, up, down)


@variant(lambda x, ids, w, up_rows, down_rows: jax_moe_ffn(x, ids, w, up_rows.swapaxes(2, 3), down_rows.swapaxes(2, 3)))
def weights_by_output(x, ids, w, up_rows, down_rows):
    return moe_ffn(x, ids, w, mint.transpose(up_rows, 1, 2), down_rows.swapaxes(-1, -2))


# What a test of any variant needs.

def differentiable(args):
    return tuple(i for i, a in enumerate(args) if a.dtype == np.float32)


def cotangents_of(in_jax, args):
    rng = np.random.default_rng(1)
    shapes = jax.tree.leaves(jax.eval_shape(in_jax, *args))
    return [rng.standard_normal(s.shape).astype(np.float32) for s in shapes]
