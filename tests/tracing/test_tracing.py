"""Tracing against MindSpore itself: the traced Program computes what the function does, and so does its gradient."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from hpmoe import ShapeDtypeStruct
from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.tracing import trace

F = mint.nn.functional
RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.uniform(0.5, 1.5, shape).astype(np.float32) * RNG.choice([-1, 1], shape).astype(np.float32)


def run(program, *arrays):
    inputs = [*arrays, *(c.asnumpy() for c in program.captures)]
    return interpret(program, [inputs])[0]


def leaves(value):
    return [value] if isinstance(value, Tensor) else [v for part in value for v in leaves(part)]


def assert_traces_to_what_mindspore_computes(f, *arrays, by=None, rtol=1e-5, atol=2e-5):
    """f traced and run equals f (or `by`, where f has no CPU kernel) run by MindSpore; so do the gradients."""
    by, tensors = by or f, [Tensor(a) for a in arrays]
    expected = leaves(by(*tensors))
    program = trace(f, *tensors)
    got = run(program, *arrays)
    assert len(got) == len(expected)
    for g, w in zip(got, expected, strict=True):
        assert g.dtype == w.asnumpy().dtype and g.shape == w.shape, (g.dtype, w.dtype, g.shape, w.shape)
        np.testing.assert_allclose(g, w.asnumpy(), rtol=rtol, atol=atol)
    assert_gradient_is_mindspores(f, by, arrays, rtol, 10 * atol)
    return program


def gradients(program, *arrays):
    """The cotangents of the program's floating inputs for an output cotangent of 1."""
    parts = linearize(program)
    values = [*arrays, *(c.asnumpy() for c in program.captures)]
    saved = run(parts.forward, *arrays)[len(program.outputs):]
    return interpret(parts.backward, [[*(values[i] for i in parts.kept_inputs), *saved, np.float32(1)]])[0]


def assert_gradient_is_mindspores(f, by, arrays, rtol, atol):
    def loss_of(function):
        return lambda *args: sum((ops.square(y) * 0.5).sum() for y in leaves(function(*args)) if y.dtype == ms.float32)

    where = tuple(i for i, a in enumerate(arrays) if a.dtype == np.float32)
    expected = ms.grad(loss_of(by), where)(*map(Tensor, arrays))
    got = gradients(trace(loss_of(f), *map(Tensor, arrays)), *arrays)
    for g, w in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        np.testing.assert_allclose(g, w.asnumpy(), rtol=10 * rtol, atol=atol)


UNARY = {
    "neg": lambda x: -x,
    "abs": abs,
    "exp": mint.exp,
    "log": lambda x: mint.log(mint.abs(x)),
    "sqrt": lambda x: mint.sqrt(x * x) + ops.rsqrt(x * x),
    "sigmoid": lambda x: ops.sigmoid(x) + x.sigmoid(),
    "tanh": lambda x: x.tanh(),
    "silu": F.silu,
    "relu": lambda x: ops.relu(x) + ops.relu6(4 * x),
    "gelu": lambda x: ops.gelu(x) + ops.gelu(x, "tanh"),
    "erf": mint.erf,
    "trigonometric": lambda x: mint.sin(x) * mint.cos(x),
    "power": lambda x: x ** 2 + x ** 3 + mint.pow(mint.abs(x), 1.5) + mint.square(x) + 2 ** x,
    "reciprocal": mint.reciprocal,
    "steps": lambda x: mint.sign(x) * x + mint.floor(x) * x,
    "leaky_relu": lambda x: nn.LeakyReLU(0.1)(x) + ops.elu(x),
    "hard": lambda x: F.hardswish(x) + F.hardsigmoid(x),
    "glu": lambda x: F.glu(x, 1) + F.glu(x),
    "celu": lambda x: ops.celu(x, 0.7),
    "clamp": lambda x: mint.clamp(x, min=-0.7) + x.clamp(-1, 1.2) + ops.clip_by_value(x, -1, 1),
    "scalar_right": lambda x: x + 1 - 3 * x / 2 * 0.5,
    "scalar_left": lambda x: (1 + x) + (2 - x) + 3 * x + 2 / x,
    "softmax": lambda x: F.softmax(x, -1) + ops.softmax(x, 0) + nn.Softmax()(x),
    "log_softmax": lambda x: ops.log_softmax(x, 0),
    "logsumexp": lambda x: ops.logsumexp(x, -1),
    "sum": lambda x: (x.sum(), x.sum(0), mint.sum(x, dim=(0, 1), keepdim=True), x.sum(axis=0, keepdims=True)),
    "sum_old": lambda x: (ops.reduce_sum(x, -1), ops.sum(x, -1, True)),
    "mean": lambda x: (x.mean(), x.mean(-1, True), ops.reduce_mean(x, 0), mint.mean(x, dim=(0, 1))),
    "max": lambda x: (x.max(), mint.amax(x, dim=-1), ops.amax(x, (0, 1)), mint.amin(x, dim=0), mint.max(x)),
    "where": lambda x: mint.where(x > 0, x, 0.0) + mint.where(x > 0, 1.0, x) + x.masked_fill(x > 0, 0.5),
    "select": lambda x: ops.select(x > 0, x, 2 * x) + ops.where(mint.logical_and(x > 0, x < 1), x, 3 * x),
    "compare": lambda x: (x > 0).astype(ms.float32) * x + x * (x <= 0.6).astype(ms.float32),
    "extremes": lambda x: mint.maximum(x, 2 * x) + ops.minimum(x, 0.5),
    "mixtures": lambda x: mint.lerp(x, 2 * x, 0.25) + ops.addcmul(x, x, x, 2.0),
    "constants": lambda x: ops.zeros_like(x) + ops.ones_like(x) * x,
    "stop_gradient": lambda x: ops.stop_gradient(x) * x,
    "copy": lambda x: x.copy() * x.contiguous(),
}


@pytest.mark.parametrize("name", UNARY)
def test_elementwise_and_reductions(name):
    assert_traces_to_what_mindspore_computes(UNARY[name], array(3, 4))


@pytest.mark.parametrize("name", ["clamp", "hard", "relu", "leaky_relu", "celu"])
def test_gradients_where_branches_meet(name):
    """An element equal to a bound has MindSpore's gradient."""
    bounds = np.array([[-6, -3, -1, -0.7], [0, 0.5, 1, 1.2], [1.5, 3, 5, 6]], np.float32)
    assert_traces_to_what_mindspore_computes({**UNARY, "clamp": lambda x: mint.clamp(x, min=-0.7) + x.clamp(-1, 1.2)}[name],
                                             bounds)


@pytest.mark.parametrize("f, exact",
                         [(mint.expm1, np.expm1), (mint.log1p, np.log1p), (mint.sinh, np.sinh), (F.elu, np.expm1)])
def test_tiny_values_are_not_lost(f, exact):
    x = -np.logspace(-30, -0.01, 200, dtype=np.float32)[None]
    np.testing.assert_allclose(run(trace(f, Tensor(x)), x)[0], exact(x.astype(np.float64)), rtol=3e-7)


NO_CPU_KERNEL = {
    "relu6": (lambda x: F.relu6(4 * x), lambda x: ops.relu6(4 * x)),
    "gelu": (F.gelu, ops.gelu),
    "gelu_tanh": (lambda x: F.gelu(x, approximate="tanh"), lambda x: ops.gelu(x, "tanh")),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.1), lambda x: ops.leaky_relu(x, 0.1)),
    "elu": (F.elu, ops.elu),
    "selu": (lambda x: F.selu(x) + ops.selu(x),  # MindSpore's gradient is wrong
             lambda x: 2 * 1.0507009873554805 * mint.where(x > 0, x, 1.6732632423543772 * (mint.exp(x) - 1))),
    "softplus": (lambda x: F.softplus(x) + ops.softplus(x), lambda x: 2 * mint.log(1 + mint.exp(x))),
    "mish": (F.mish, lambda x: x * mint.tanh(mint.log(1 + mint.exp(x)))),
    "logsigmoid": (F.logsigmoid, lambda x: mint.log(F.sigmoid(x))),
    "log_softmax": (lambda x: F.log_softmax(x, dim=-1), lambda x: ops.log_softmax(x, -1)),
    "logsumexp": (lambda x: mint.logsumexp(x, -1), lambda x: ops.logsumexp(x, -1)),
    "addcmul": (lambda x: mint.addcmul(x, x, x, value=2), lambda x: x + 2 * x * x),
    "addcdiv": (lambda x: mint.addcdiv(x, x, x * x, value=2), lambda x: x + 2 / x),
    "like": (lambda x: mint.zeros_like(x) + mint.full_like(x, 2.0) * mint.ones_like(x), lambda x: x * 0 + 2),
    "clone": (lambda x: x.clone() + mint.clone(x), lambda x: x + x),
    "normalize": (F.normalize, lambda x: x / mint.sqrt(mint.sum(x * x, 1, True))),
    "norm": (mint.norm, lambda x: mint.sqrt(mint.sum(x * x))),
    "var": (lambda x: mint.var(x, dim=-1), lambda x: mint.sum(mint.square(x - mint.mean(x, -1, True)), -1) / 3),
    "std": (lambda x: mint.std(x, -1, correction=0),
            lambda x: mint.sqrt(mint.mean(mint.square(x - mint.mean(x, -1, True)), -1))),
    "stack": (lambda x: mint.stack((x, 2 * x), dim=-1), lambda x: ops.stack((x, 2 * x), -1)),
    "unbind": (lambda x: (*mint.unbind(x, 0), *ops.unstack(x, 1)), lambda x: (*x, *x.T)),
    "repeat": (lambda x: x.repeat(2, 1), lambda x: mint.tile(x, (2, 1))),
    "pad": (lambda x: F.pad(x, (1, 2)), lambda x: mint.cat((x[:, :1] * 0, x, x[:, :2] * 0), -1)),
    "index_select": (lambda x: mint.index_select(x, 1, Tensor([2, 0])), lambda x: ops.gather(x, Tensor([2, 0]), 1)),
    "embedding": (lambda x: F.embedding(Tensor([2, 0, 2]), x), lambda x: ops.gather(x, Tensor([2, 0, 2]), 0)),
    "mm": (lambda x: mint.mm(x, x.T), lambda x: x @ x.T),
    "addmm": (lambda x: mint.addmm(x[:, :3], x, x.T, beta=2, alpha=3), lambda x: 2 * x[:, :3] + 3 * (x @ x.T)),
    "dot": (lambda x: mint.dot(x[0], x[1]), lambda x: mint.sum(x[0] * x[1])),
    "mv": (lambda x: mint.mv(x, x[0]), lambda x: mint.sum(x * x[0], -1)),
    "outer": (lambda x: mint.outer(x[0], x[1]), lambda x: x[0].reshape(-1, 1) * x[1]),
    "layer_norm": (lambda x: F.layer_norm(x, (4,)), lambda x: nn.LayerNorm((4,), epsilon=1e-5)(x)),
    "rms_norm": (lambda x: ops.rms_norm(x, x[0])[0], lambda x: x * x[0] * ops.rsqrt(mint.mean(x * x, -1, True) + 1e-6)),
    "swiglu": (ops.swiglu, lambda x: F.silu(x[:, :2]) * x[:, 2:]),
    "conversions": (lambda x: x.to(ms.float16).to(x) * x.type_as(x),
                    lambda x: x.astype(ms.float16).astype(ms.float32) * x),
    "composed": (lambda x: mint.expm1(x) + mint.log1p(x * x) + mint.exp2(x) + mint.log2(x * x) + mint.log10(x * x),
                 lambda x: mint.exp(x) - 1 + mint.log(1 + x * x) + 2 ** x + mint.log(x * x) * (
                     1 / np.log(2) + 1 / np.log(10))),
    "hyperbolic": (lambda x: mint.sinh(x) + mint.cosh(x) + mint.tan(x) + mint.erfc(x) + mint.ceil(x),
                   lambda x: mint.exp(x) + mint.sin(x) / mint.cos(x) + 1 - mint.erf(x) - mint.floor(-x)),
    "remainder": (lambda x: x % 2 + x // 0.5 * x, lambda x: x - 2 * mint.floor(x / 2) + mint.floor(x / 0.5) * x),
}


@pytest.mark.parametrize("name", NO_CPU_KERNEL)
def test_operations_that_mindspore_has_on_ascend_only(name):
    f, by = NO_CPU_KERNEL[name]
    assert_traces_to_what_mindspore_computes(f, array(3, 4), by=by)


@pytest.mark.parametrize("given, asked", [("float32", ms.float64), ("bfloat16", ms.float32), ("float32", ms.bfloat16)])
def test_a_norm_has_the_dtype_asked_for(given, asked):
    program = trace(lambda x: mint.norm(x, dim=-1, dtype=asked), ShapeDtypeStruct((3, 4), given))
    assert program.outputs[0].aval.dtype == str(asked).lower()


SHAPES = {
    "reshape": lambda x: (x.reshape(2, 12), x.view(-1, 3), mint.reshape(x, (4, 6)), ops.reshape(x, (-1,)), x.ravel(),
                          x.reshape(2, 12).view_as(x)),
    "flatten": lambda x: (x.flatten(), mint.flatten(x, 1), ops.flatten(x)),
    "squeeze": lambda x: (x[:1].squeeze(0), x.unsqueeze(1).squeeze(), ops.expand_dims(x, -1), mint.unsqueeze(x, 0)),
    "transpose": lambda x: (x.transpose(0, 1), x.permute(2, 0, 1), ops.transpose(x, (1, 0, 2)), x.swapaxes(0, 2),
                            mint.transpose(x, -1, -2)),
    "matrix_transpose": lambda x: (x[0].T, mint.t(x[1]), x[0].t(), x.mT, x.T),
    "broadcast": lambda x: (mint.broadcast_to(x[:, :1], (2, 3, 4)) * x, x[0].expand((2, 3, 4)), x[:1].expand_as(x)),
    "split": lambda x: (mint.split(x, 2, dim=-1), mint.split(x, [1, 3], dim=-1), ops.split(x, 2, axis=-1),
                        ops.split(x, [1, 2], axis=1), x.split(2, -1)),
    "chunk": lambda x: (mint.chunk(x, 2, -1), x.chunk(2, 0), ops.chunk(x, 2, axis=2)),
    "cat": lambda x: (mint.cat((x, x)), mint.cat([x, 2 * x], dim=-1), ops.concat((x, x), axis=1)),
    "stack": lambda x: (ops.stack(x), ops.stack(x, 2), ops.stack(x, -1)),
    "narrow": lambda x: (mint.narrow(x, 1, 0, 2), x.narrow(2, 1, 2), mint.narrow(x, -1, -3, 2)),
    "index": lambda x: (x[0], x[1, 2], x[:, 1:], x[..., :2], x[..., -2:], x[None], x[:, None, 1], x[-1, ..., 0],
                        x[:, :, 1:3]),
    "iterate": lambda x: [a * i for i, a in enumerate(x)],
    "tile": lambda x: mint.tile(x, (2, 1, 2)),
    "gather": lambda x: (x[Tensor([1, 0, 1])], ops.gather(x, Tensor([0, 0], ms.int32), 0), x[[1, 0]],
                         x[Tensor([1, 1]), 1:]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    assert_traces_to_what_mindspore_computes(SHAPES[name], array(2, 3, 4))


MATMULS = {
    "operator": lambda x, w, b: x @ w,
    "mint": lambda x, w, b: mint.matmul(x, w) + b,
    "ops": lambda x, w, b: ops.matmul(x, w) - b,
    "linear": lambda x, w, b: F.linear(x, w.T, b),
    "dense": lambda x, w, b: ops.dense(x, w.T, b),
    "flag_b": lambda x, w, b: ops.MatMul(transpose_b=True)(x, w.T),
    "flag_a": lambda x, w, b: ops.MatMul(transpose_a=True)(x.T, w),
    "bias_add": lambda x, w, b: ops.bias_add(x @ w, b),
    "vectors": lambda x, w, b: (x @ w[:, 0], x[0] @ w),
    "many_rows": lambda x, w, b: mint.matmul(x.reshape(1, 3, 4), w),
}


@pytest.mark.parametrize("name", MATMULS)
def test_matmul(name):
    assert_traces_to_what_mindspore_computes(MATMULS[name], array(3, 4), array(4, 5), array(5))


INTEGERS = {
    "promotion": lambda x, i: (x * i, i + 1, i / 2, i * 2.5, 3 - i, i - x.astype(ms.float16), i * i.astype(ms.int64),
                                i.type_as(x) / 3),
    "comparison": lambda x, i: (i > 2, i == 3, (i > 2) & (i < 5), mint.logical_or(i > 4, x > 0), ~(i > 2)),
    "reduction": lambda x, i: ((i > 2).sum(), i.sum(), (x > 0).sum(-1), (i > 0).all(), (i > 5).any(), i.sum() * 2,
                               ops.reduce_sum(i, -1), ops.reduce_sum(i > 2, 0)),
    "half": lambda x, i: (x.astype(ms.float16) + 1, x.astype(ms.float16) * x, x.astype(ms.float16).sum() * 0.5),
    "scalar_tensor": lambda x, i: (x * Tensor(2.0), x + Tensor(3, ms.int32), i * Tensor(2.0), Tensor(4.0) - x),
    "numpy": lambda x, i: (x * np.float32(2), x + np.float64(0.5), i * np.int32(2)),
}


@pytest.mark.parametrize("name", INTEGERS)
def test_dtypes_are_mindspores(name):
    f, x, i = INTEGERS[name], array(3, 4), np.arange(12, dtype=np.int32).reshape(3, 4)
    program = trace(f, x, i)
    for got, want in zip(run(program, x, i), f(Tensor(x), Tensor(i)), strict=True):
        assert got.dtype == want.asnumpy().dtype
        np.testing.assert_allclose(got, want.asnumpy(), rtol=1e-2 if got.dtype == np.float16 else 1e-6)
