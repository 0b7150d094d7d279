"""Layers of several precisions: float32 weights and routing weights beside half rows, scaled losses."""

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, stages, tensors
from mindspore import amp, mint

import hpmoe

HALVES = (ms.float16, ms.bfloat16)


@pytest.mark.parametrize("stage, half", [
    *((stage, ms.bfloat16) for stage in ("plain", "tiles", "queues", "fused")), ("fused", ms.float16)])
def test_master_weights_round_once_and_have_float32_gradients(half, stage):
    x, ids, weights, up, down = tensors([a[0] for a in Layer(ep=1, T=9).arguments()])
    rounded = [w.astype(half) for w in (up, down)]
    f = stages()[stage](hpmoe.moe_ffn)

    def of(weight):
        return ms.value_and_grad(lambda x, w, up, down: f(x, ids, w, up, down).astype(ms.float32).sum(), (0, 1, 2, 3))(
            x.astype(half), weights, *weight)
    value, grads = of((up, down))
    want, wanted = of(rounded)
    assert value == want
    assert [g.dtype for g in grads] == [half, ms.float32, ms.float32, ms.float32]
    for got, expected in zip(grads, wanted, strict=True):
        got, expected = (g.astype(ms.float32).asnumpy() for g in (got, expected))
        np.testing.assert_allclose(got, expected, rtol=2.0 ** (-7 if half == ms.bfloat16 else -10), atol=1e-6)


@pytest.mark.parametrize("stage, rows, factor", [
    ("plain", ms.float32, ms.float16), ("tiles", ms.float32, ms.bfloat16), ("queues", ms.float16, ms.bfloat16),
    ("fused", ms.float32, ms.float16), ("fused", ms.float32, ms.bfloat16), ("fused", ms.float16, ms.bfloat16)])
def test_routing_weights_of_another_precision_are_widened(stage, rows, factor):
    x, ids, weights, up, down = tensors([a[0] for a in Layer(ep=1, T=9).arguments()])
    f = stages()[stage](hpmoe.moe_ffn)

    def of(weights):
        args = [a.astype(rows) for a in (x, up, down)]
        return ms.value_and_grad(lambda w: f(args[0], ids, w, *args[1:]).astype(ms.float32).sum())(weights)
    value, grad = of(weights.astype(factor))
    want, wanted = of(weights.astype(factor).astype(ms.float32))
    assert value == want
    assert grad.dtype == factor
    np.testing.assert_array_equal(grad.astype(ms.float32).asnumpy(), wanted.astype(factor).astype(ms.float32).asnumpy())


@pytest.mark.parametrize("half", HALVES)
def test_a_scaled_loss_has_scaled_gradients(half):
    given = tensors([a[0] for a in Layer(ep=1, T=9).arguments()])
    x, ids, weights, up, down = (a if i == 1 else a.astype(half) for i, a in enumerate(given))
    f, scaler = stages()["fused"](hpmoe.moe_ffn), amp.DynamicLossScaler(scale_value=2 ** 8, scale_factor=2, scale_window=10)

    def grads(scaled):
        def loss(up, down):
            value = mint.sum(f(x, ids, weights, up, down).astype(ms.float32))
            return scaler.scale(value) if scaled else value
        return ms.grad(loss, (0, 1))(up, down)
    unscaled = scaler.unscale(grads(scaled=True))
    assert amp.all_finite([g.astype(ms.float32) for g in unscaled])  # there is no check of bfloat16 on a CPU
    for got, want in zip(unscaled, grads(scaled=False), strict=True):
        np.testing.assert_allclose(got.astype(ms.float32).asnumpy(), want.astype(ms.float32).asnumpy(), rtol=1e-6)
