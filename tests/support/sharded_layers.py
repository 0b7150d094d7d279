"""Layers whose experts lie in shards on several ranks, and the same of whole experts in JAX."""

import mindspore as ms
import numpy as np
from helpers import DIFFERENTIABLE, Layer, jax_moe_ffn, jax_vjp

import hpmoe
from hpmoe.nn import shard_experts, unshard_experts

TOLERANCE = 2e-5
SPLITS = "gate_up", "rows"


def whole(ep=2, tp=2, **sizes):
    """Arguments of the whole layer: tokens of all ranks, and weights of all experts, [1, E, ...]."""
    layer = Layer(**{"ep": ep * tp, "T": 5, "H": 6, "I": 4, "E": 4, "K": 2, **sizes})
    x, ids, weights, up, down = layer.arguments()
    return [x, ids, weights, *(w.reshape(1, layer.E, *w.shape[2:]) for w in (up, down))], layer.cotangent()


def on_ranks(args, mesh):
    return [*args[:3], *(shard_experts(w[0], mesh, split) for w, split in zip(args[3:], SPLITS, strict=True))]


def run(f, mesh, args, cotangent, num_tokens=None):
    """Outputs and gradients, those of weights put together again."""
    layer = hpmoe.spmd(f, mesh)
    more = {} if num_tokens is None else {"num_tokens": num_tokens}

    def loss(*args):
        out = layer(*args, **more)
        return (out * ms.Tensor(cotangent)).sum(), out
    (_, out), grads = ms.value_and_grad(loss, DIFFERENTIABLE, has_aux=True)(*map(ms.Tensor, on_ranks(args, mesh)))
    x, weights, *experts = (g.asnumpy() for g in grads)
    return [out.asnumpy(), x, weights, *(unshard_experts(g, mesh, split)[None]
                                         for g, split in zip(experts, SPLITS, strict=True))]


def assert_close(found, expected, tolerance=TOLERANCE):
    for name, a, b in zip(("out", "x", "weights", "gate_up", "down"), found, expected, strict=True):
        assert np.abs(a - b).max() <= tolerance * max(1.0, np.abs(b).max()), name


def oracle(args, cotangent):
    out, grads = jax_vjp(jax_moe_ffn, args, cotangent, DIFFERENTIABLE)
    return [np.array(a) for a in (out, *grads)]
