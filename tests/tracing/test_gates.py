"""Operations that gates are written with: values and gradients are those of JAX, at bounds, ties and infinities too."""

import jax
import mindspore as ms
import numpy as np
import pytest
from helpers import assert_close, stages
from jax import numpy as jnp
from mindspore import Tensor, mint, ops
from router_runs import traced

import hpmoe
from hpmoe import ShapeDtypeStruct

F, INF = mint.nn.functional, np.inf
T, N = 6, 8


def staged(stage, **options):
    return traced if stage == "program" else stages(**options)[stage]


GATES = {
    "prelu": (lambda x, y: F.prelu(x, y[0]), lambda x, y: jnp.where(x > 0, x, x * y[0])),
    "prelu, one slope": (lambda x, y: ops.prelu(x, y[0, :1]), lambda x, y: jnp.where(x > 0, x, x * y[0, :1])),
    "threshold": (lambda x, y: F.threshold(x, 0.5, 20.0), lambda x, y: jnp.where(x > 0.5, x, 20.0)),
    "hardshrink": (lambda x, y: F.hardshrink(x), lambda x, y: jnp.where(jnp.abs(x) > 0.5, x, 0.0)),
    "softshrink": (lambda x, y: F.softshrink(x), lambda x, y: jnp.where(jnp.abs(x) > 0.5, x - jnp.sign(x) * 0.5, 0.0)),
    "softsign": (lambda x, y: ops.softsign(x), lambda x, y: jax.nn.soft_sign(x)),
    "nan_to_num": (lambda x, y: mint.nan_to_num(mint.log(x)), lambda x, y: jnp.nan_to_num(jnp.log(x))),
    "nan_to_num of these": (lambda x, y: mint.log(x).nan_to_num(1.0, 2.0, -2.0),
                            lambda x, y: jnp.nan_to_num(jnp.log(x), nan=1.0, posinf=2.0, neginf=-2.0)),
    "logaddexp": (lambda x, y: mint.logaddexp(x * 40, y), lambda x, y: jnp.logaddexp(x * 40, y)),
    "logaddexp2": (lambda x, y: mint.logaddexp2(x, y), lambda x, y: jnp.logaddexp2(x, y)),
    "mse_loss of each": (lambda x, y: F.mse_loss(x, y, reduction="none"), lambda x, y: (x - y) ** 2),
    "l1_loss of each": (lambda x, y: F.l1_loss(x, y, reduction="none"), lambda x, y: jnp.where(x == y, 0.0, jnp.abs(x - y))),
    "repeat_interleave": (lambda x, y: mint.repeat_interleave(x, 3, dim=1), lambda x, y: jnp.repeat(x, 3, 1)),
    "repeat_interleave of a method": (lambda x, y: x.repeat_interleave(2, -1), lambda x, y: jnp.repeat(x, 2, 1)),
    "flip": (lambda x, y: mint.flip(x, (1,)), lambda x, y: x[:, ::-1]),
    "roll": (lambda x, y: mint.roll(x, 3, 1), lambda x, y: jnp.roll(x, 3, 1)),
    "roll back": (lambda x, y: x.roll(-11, -1), lambda x, y: jnp.roll(x, -11, 1)),
}
WHOLE = {
    "mse_loss": (lambda x, y: F.mse_loss(x, y), lambda x, y: ((x - y) ** 2).mean()),
    "mse_loss, summed": (lambda x, y: F.mse_loss(x, y, reduction="sum"), lambda x, y: ((x - y) ** 2).sum()),
    "l1_loss": (lambda x, y: mint.nn.L1Loss()(x, y), lambda x, y: jnp.where(x == y, 0.0, jnp.abs(x - y)).mean()),
    "flip of rows": (lambda x, y: ops.flip(x, (0, 1)), lambda x, y: x[::-1, ::-1]),
    "roll of all": (lambda x, y: mint.roll(x, 5), lambda x, y: jnp.roll(x, 5)),
    "roll of both": (lambda x, y: mint.roll(x, (1, -2), (0, 1)), lambda x, y: jnp.roll(x, (1, -2), (0, 1))),
    "repeat_interleave of all": (lambda x, y: mint.repeat_interleave(x, 2), lambda x, y: jnp.repeat(x, 2)),
}


def values():
    """With values at the bounds of operations, and some that are equal."""
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal((T, N)).astype(np.float32) for _ in range(2))
    x[0, :5], x[1, :4] = [0.0, 0.5, -0.5, 1e-20, -0.0], y[1, :4]
    return x, y


@pytest.mark.parametrize("name, stage", [
    *((name, stage) for i, name in enumerate(GATES) for stage in ["fused", *["program"] * (i % 3 == 0)]),
    *((name, "program") for name in WHOLE)])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, for logarithms of negative numbers
def test_values_and_gradients_are_those_of_jax(name, stage):
    f, reference = (GATES | WHOLE)[name]
    x, y = values()
    want, vjp = jax.vjp(reference, x, y)
    cotangent = np.random.default_rng(5).standard_normal(want.shape).astype(np.float32)
    run = staged(stage, rows=4, cols=4)(f)
    (out, grads) = ms.value_and_grad(lambda x, y: (lambda out: ((out * Tensor(cotangent)).sum(), out))(run(x, y)), (0, 1),
                                     has_aux=True)(Tensor(x), Tensor(y))
    got, wanted = [out[1], *grads], [want, *vjp(cotangent)]
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a.asnumpy(), b, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("stage", ["program", "fused"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, for infinities
def test_infinities(stage):
    x = np.array([[INF, -INF, INF, -INF, -INF, 2.0]], np.float32)
    y = np.array([[INF, -INF, 1.0, 3.0, INF, -INF]], np.float32)
    run = staged(stage)
    assert run(mint.logaddexp)(Tensor(x), Tensor(y)).asnumpy().tolist() == [[INF, -INF, INF, 3.0, INF, 2.0]]
    for dtype, largest in (("float32", 3.4028234663852886e38), ("bfloat16", 3.3895313892515355e38), ("float16", 65504.0)):
        out = run(lambda x: mint.nan_to_num(x))(Tensor(np.array([[np.nan, INF, -INF, 1.5]], np.float32)).astype(
            getattr(ms, dtype))).astype(ms.float32)
        assert out.asnumpy().tolist() == [[0.0, np.float32(largest), -np.float32(largest), 1.5]]


def test_a_gate_of_them_in_half_precision_is_rounded_once():
    def gate(x):
        return F.softshrink(x, 0.25), ops.softsign(x)

    x = Tensor(values()[0]).astype(ms.bfloat16)
    program = hpmoe.trace(gate, ShapeDtypeStruct((T, N), "bfloat16"))
    assert [a.aval.dtype for a in program.outputs] == ["bfloat16", "bfloat16"]
    wide = x.astype(ms.float32).asnumpy()
    want = [Tensor(a).astype(ms.bfloat16).astype(ms.float32).asnumpy() for a in (
        wide - np.clip(wide, -0.25, 0.25), wide / (1 + np.abs(wide)))]
    assert_close([o.astype(ms.float32).asnumpy() for o in stages()["fused"](gate)(x)], want, tolerance=1e-7)
