"""Layers of several precisions: float32 weights beside half rows, Cells under auto_mixed_precision, scaled losses."""

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, stages, tensors
from mindspore import amp, mint, nn

import hpmoe

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

HALVES = (ms.float16, ms.bfloat16)


class Moe(nn.Cell):
    """A layer with weights of its own and routing weights from a softmax of router scores."""

    def __init__(self, f, up, down, router):
        super().__init__()
        self.f, self.up, self.down = f, ms.Parameter(up, name="up"), ms.Parameter(down, name="down")
        self.router = nn.Dense(*router.shape[::-1], weight_init=router, has_bias=False)

    def construct(self, x, ids):
        scores = ms.ops.softmax(self.router(x).astype(ms.float32)).astype(x.dtype)
        return self.f(x, ids, ms.ops.gather_elements(scores, 1, ids), self.up, self.down)


def _cell(f, given):
    _, ids, _, up, down = given
    router = np.random.default_rng(7).standard_normal((up.shape[0], up.shape[1])).astype(np.float32)
    return Moe(f, up, down, ms.Tensor(router))


def _gradients(net, x, ids):
    """Those of the tokens and of all parameters."""
    def loss(x):
        return net(x, ids).astype(ms.float32).sum()
    dx, grads = ms.grad(loss, 0, ms.ParameterTuple(net.trainable_params()))(x)
    return [dx, *grads]


@pytest.mark.parametrize("level", ["O2", "O3", "auto"])
@pytest.mark.parametrize("stage", ["tiles", "fused"])
def test_a_cell_under_auto_mixed_precision(level, stage):
    given = tensors([a[0] for a in Layer(ep=1, T=16, H=8, I=6).arguments()])
    x, ids = given[:2]
    exact = _gradients(_cell(hpmoe.moe_ffn, given), x, ids)
    mixed = _gradients(amp.auto_mixed_precision(_cell(stages()[stage](hpmoe.moe_ffn), given), level, ms.float16), x, ids)
    for got, want in zip(mixed, exact, strict=True):
        assert got.dtype == ms.float32
        got, want = got.asnumpy(), want.asnumpy()
        np.testing.assert_allclose(got, want, atol=0.01 * np.abs(want).max())


@pytest.mark.parametrize("stage, half", [
    *((stage, ms.bfloat16) for stage in ("plain", "tiles", "queues", "fused")), ("fused", ms.float16)])
def test_master_weights_are_rounded_once_and_have_float32_gradients(half, stage):
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
