"""Script of test_ring_rows.py on several ranks: outputs and gradients of virtual ranks, bit for bit."""

import mindspore as ms
from helpers import DIFFERENTIABLE, Layer, fused, tensors
from ring_rows import ring_rows
from whole_lines import say

import hpmoe

mesh = hpmoe.world()
layer = Layer(ep=mesh.size, T=9, E=2 * mesh.size, K=3)
args = tensors(layer.arguments())


def results(mesh, args):
    f = hpmoe.spmd(fused()(ring_rows(hpmoe.moe_ffn)), mesh)
    return [f(*args), *ms.grad(lambda *a: (f(*a) ** 2).sum(), DIFFERENTIABLE)(*args)]


for own, whole in zip(results(mesh, [a[mesh.rank] for a in args]), results(layer.mesh, args), strict=True):
    assert own.asnumpy().tobytes() == whole.asnumpy()[mesh.rank].tobytes()
say(f"rank {mesh.rank} has the bits of virtual ranks")
