"""Script of test_world.py on several ranks: transforms that change values, whose gradients JAX knows."""

import sys
from pathlib import Path

import mindspore as ms

sys.path.append(str(Path(__file__).parents[1] / "support"))

# isort: split
from helpers import DIFFERENTIABLE, Layer, assert_close, fused, jax_vjp, tensors
from value_changes import RULES, changing, jax_layer
from whole_lines import say

import hpmoe

mesh = hpmoe.world()
layer = Layer(ep=mesh.ep)
args, cotangent = layer.arguments(), layer.cotangent()
own = tensors([a[mesh.ep_rank] for a in args])
for name in RULES:
    f = hpmoe.spmd(fused()(changing(name)(hpmoe.moe_ffn)), mesh)

    def loss(*own, f=f):
        out = f(*own)
        return (out * ms.Tensor(cotangent[mesh.ep_rank])).sum(), out
    (_, out), grads = ms.value_and_grad(loss, DIFFERENTIABLE, has_aux=True)(*own)
    want, want_grads = jax_vjp(jax_layer((name,)), args, cotangent, DIFFERENTIABLE)
    assert_close([a.asnumpy() for a in (out, *grads)], [a[mesh.ep_rank] for a in (want, *want_grads)], name)
say(f"rank {mesh.rank} has the gradients of {', '.join(RULES)}")
