"""Replicas of hot experts: equal numbers at every level and placement; every order proved by brute force."""

import numpy as np
import pytest
from helpers import (
    Layer,
    assert_close,
    at_stages,
    avals_of,
    fused,
    numpy_moe_ffn,
    run_half,
    run_spmd,
    stages,
    tensors,
)

import hpmoe
from hpmoe import chain, moe_ffn, replicate_experts
from hpmoe.kernels import use_blas
from hpmoe.kernels.native import find_blas

LAYERS = {
    "two ranks": Layer(ep=2, T=9, E=4, K=2),
    "one rank takes all": Layer(ep=4, T=7, E=8, K=2, routing="one rank"),
    "uneven": Layer(ep=3, T=5, E=6, K=3, num_tokens=(5, 0, 3)),
    "no tokens": Layer(ep=2, T=0),
}


def replicated(layer, replicas=1, loads=None):
    """replicate_experts by what the layer's own ids ask for, or loads that are far from it."""
    if loads is None:
        loads = np.bincount(layer.arguments()[1].reshape(-1), minlength=layer.E)
    return replicate_experts(loads=loads, replicas=replicas)


@pytest.fixture
def own_gemm():
    """Matmuls whose sums do not depend on how many rows a tile has, which those of oneDNN in float32 do."""
    use_blas(None)
    yield
    use_blas(find_blas())


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_stage(name, stage, own_gemm):
    """Against the oracle; and but for the gradients of weights bitwise what the same stage computes without copies."""
    layer = LAYERS[name]
    args, cotangent = layer.arguments(), layer.cotangent()
    want, want_grads = numpy_moe_ffn(args, cotangent, layer.num_tokens)
    plain = run_spmd(stages()[stage](moe_ffn), layer.ep, args, [cotangent], layer.num_tokens)
    for transform in (replicated(layer), replicated(layer, 2, np.arange(layer.E) ** 3)):  # wrong loads: copies without rows
        outs, grads = run_spmd(stages()[stage](transform(moe_ffn)), layer.ep, args, [cotangent], layer.num_tokens)
        assert_close([*outs, *grads], [want, *want_grads])
        if stage not in ("plain", "tiles", "overlap", "queues"):  # NumPy's matmul depends on the number of rows
            assert all((a == b).all() for a, b in zip([*outs, *grads[:2]], [*plain[0], *plain[1][:2]], strict=True))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    """The forward pass is bitwise the same; what a copy gives back is rounded once."""
    layer = Layer(ep=4, T=16, E=8, K=2, H=8, I=4, routing="one rank")
    plain, copied = (run_half(stage(moe_ffn), layer, dtype) for stage in (fused(), chain(replicated(layer), fused())))
    assert all((a == b).all() for a, b in zip(plain[:3], copied[:3], strict=True))
    for a, b in zip(plain[3:], copied[3:], strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=2.0 ** -7 * np.abs(a).max())


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_drops_are_those_without_copies(policy):
    layer = Layer(ep=2, T=8, E=4, K=1, routing="one expert")
    args = tensors(layer.arguments())

    def f(*a):
        return moe_ffn(*a, capacity_factor=0.75, drop_policy=policy, return_drop_counts=True)

    plain, copied = (hpmoe.spmd(fused()(g), hpmoe.Mesh(2))(*args) for g in (f, replicated(layer)(f)))
    assert plain[1].asnumpy().sum() > 0 and (plain[1].asnumpy() == copied[1].asnumpy()).all()
    np.testing.assert_allclose(copied[0].asnumpy(), plain[0].asnumpy(), rtol=1e-5, atol=1e-6)


def test_nothing_to_gain_changes_nothing():
    shapes = avals_of(Layer(ep=2).arguments())
    plain, copied = (f.lower(*shapes, mesh=hpmoe.Mesh(2)) for f in (hpmoe.tile_partition(moe_ffn), hpmoe.tile_partition(
        replicate_experts(moe_ffn, loads=[3, 3, 3, 3]))))
    assert plain.ops == copied.ops and (plain.deps.waits == copied.deps.waits).all()


def test_a_hot_rank_simulated():
    """One rank with four times the mean: copies bring it near the mean, weights and all."""
    from types import SimpleNamespace

    from hpmoe.commands.layer import Layer as Simulated, ids_of
    o = SimpleNamespace(ep=8, tokens=4096, hidden=2048, intermediate=1024, experts=32, top_k=2, dtype="bfloat16")
    for direction in ("forward", "backward"):
        plain, copied = (Simulated(o, direction, hpmoe.machines.ascend_a3, ids_of(o, 4.0), replicas=r) for r in (0, 1))
        lines = [layer.fused() for layer in (plain, copied)]
        spans = [layer.span_us(line) for layer, line in zip((plain, copied), lines, strict=True)]
        assert copied.least_us(lines[1].flow) < spans[1] < spans[0]
