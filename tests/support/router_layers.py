"""Layers whose router is inside the function, and the same in JAX, which sees all ranks at once."""

import functools

import jax
import mindspore as ms
import numpy as np
from helpers import Layer, jax_moe_ffn, jax_vjp, token_mask
from jax import numpy as jnp
from mindspore import mint

import hpmoe

POSITIONS = (0, 1, 2, 3)


def router(x, gate, top_k):
    """Softmax, top-k and renormalised weights."""
    weights, ids = mint.topk(mint.softmax(x @ gate, dim=-1), top_k, dim=-1)
    return ids, weights / weights.sum(-1, keepdim=True)


def routed_ffn(x, gate, up, down, top_k=2):
    ids, weights = router(x, gate, top_k)
    return hpmoe.moe_ffn(x, ids.astype(ms.int32), weights, up, down)


def two_layers(x, gate, up, down, gate_2, up_2, down_2):
    """The second layer's tokens, and so its route, depend on the first layer."""
    x = x + routed_ffn(x, gate, up, down)
    return x + routed_ffn(x, gate_2, up_2, down_2, top_k=3)


def side_by_side(x, gate, up, down, gate_2, up_2, down_2):
    return routed_ffn(x, gate, up, down) + routed_ffn(x, gate_2, up_2, down_2, top_k=3)


def jax_router(x, gate, top_k):
    probs = jax.nn.softmax(jnp.einsum("rth,rhe->rte", x, gate))
    ids = jnp.argsort(jax.lax.stop_gradient(-probs), axis=-1, stable=True)[..., :top_k]  # lax.top_k refuses no tokens
    weights = jnp.take_along_axis(probs, ids, axis=-1)
    return ids, weights / weights.sum(-1, keepdims=True)


def jax_routed_ffn(x, gate, up, down, top_k=2):
    return jax_moe_ffn(x, *jax_router(x, gate, top_k), up, down)


def jax_two_layers(x, gate, up, down, gate_2, up_2, down_2):
    x = x + jax_routed_ffn(x, gate, up, down)
    return x + jax_routed_ffn(x, gate_2, up_2, down_2, top_k=3)


def jax_side_by_side(x, gate, up, down, gate_2, up_2, down_2):
    return jax_routed_ffn(x, gate, up, down) + jax_routed_ffn(x, gate_2, up_2, down_2, top_k=3)


IN_JAX = {routed_ffn: jax_routed_ffn, two_layers: jax_two_layers, side_by_side: jax_side_by_side}


def arguments(layer, layers=1, seed=0):
    """hidden_states, then gate, gate_up_weight and down_weight of each layer; the rank axis first."""
    rng = np.random.default_rng(seed)
    gate = rng.standard_normal((layers, layer.H, layer.E)).astype(np.float32)
    gates = np.broadcast_to(gate[:, None], (layers, layer.ep, layer.H, layer.E)).copy()
    parts = [layer.arguments(seed + i) for i in range(layers)]
    return [parts[0][0], *(a for g, part in zip(gates, parts, strict=True) for a in (g, *part[3:]))]


def num_layers(f):
    return 1 if f is routed_ffn else 2


def positions(f):
    return tuple(range(1 + 3 * num_layers(f)))


@functools.cache
def expected(f, layer):
    """(output, gradients of all arguments) in float64."""
    def masked(*args):
        return IN_JAX[f](*args) * token_mask((layer.ep, layer.T), layer.num_tokens)
    return jax_vjp(masked, arguments(layer, num_layers(f)), layer.cotangent(), positions(f))


LAYERS = {
    "one rank": Layer(ep=1, T=7, E=5), "two ranks": Layer(ep=2, T=7), "four ranks": Layer(ep=4, T=6, E=8),
    "uneven": Layer(ep=3, T=5, E=6, num_tokens=(5, 0, 2)),
    "no tokens": Layer(ep=2, T=0), "one token": Layer(ep=2, T=1),
}
