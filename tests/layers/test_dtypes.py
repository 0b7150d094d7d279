"""bfloat16 and float16 through the whole chain: values and gradients against float64 oracles, dtypes, and what is refused.

A stored value is off by at most half a unit in the last place, U of it. Every other computation is float32, whose error is
nothing beside that. So a result is at most as many U off as roundings lie on the longest path to it, counted here over the
equations of the forward and the backward Program, as long as no step amplifies what it gets; on these random layers, whose
entries are of order one, none does on the whole.
"""

import jax
import mindspore as ms
import numpy as np
import pytest
from helpers import (
    DIFFERENTIABLE,
    HALVES,
    Layer,
    U,
    assert_close,
    avals_of,
    dtype_names,
    fused,
    in_dtype,
    jax_moe_ffn,
    jax_vjp,
    numpy_moe_ffn,
    relative_error,
    run_spmd,
    some_stages,
    stages,
    tensors,
)
from jax import numpy as jnp
from mindspore import Parameter, Tensor, mint
from variants import LAYER, VARIANTS, arguments, cotangents_of, differentiable

import hpmoe
from hpmoe import ShapeDtypeStruct, moe_ffn, trace
from hpmoe.autodiff.vjp import linearize, vjp
from hpmoe.commands.op_by_op import moe_ffn_op_by_op
from hpmoe.support.dtypes import rounded, widen
from hpmoe.testing import reference

LAYERS = {
    "several tiles": Layer(ep=2, T=5),
    "one rank": Layer(ep=1, T=7, E=5, K=3),
    "no tokens": Layer(ep=3, T=0, E=6),
    "one expert takes all": Layer(ep=2, T=5, E=4, K=1, routing="one expert"),
    "an empty rank": Layer(ep=3, T=5, E=6, num_tokens=(0, 4, 1)),
    "wide": Layer(ep=2, T=9, H=17, I=11, E=6, K=2),
}


def num_roundings(f, args, ep=1):
    """Equations on the longest path from an input of `f` through its forward and backward program."""
    parts = linearize(trace(f, *avals_of(args), mesh=hpmoe.Mesh(ep)))
    return reference.num_roundings([parts.forward, parts.backward])


# Against the oracles.

DTYPES = ("bfloat16", "float32"), ("bfloat16", "half"), ("float16", "float32")


@pytest.mark.parametrize("name, dtype, weights, chosen", [
    *(("several tiles", *dtypes, tuple(stages())[i::3]) for i, dtypes in enumerate(DTYPES)),
    *((name, *DTYPES[i % 3], (("plain", "queues")[i % 2], "fused")) for i, name in enumerate(LAYERS))])
def test_moe_ffn_at_every_stage(name, dtype, weights, chosen):
    layer = LAYERS[name]
    args = in_dtype(layer.arguments(), dtype, but=(2,) if weights == "float32" else ())
    cotangent = widen(rounded(layer.cotangent(), dtype))
    want, want_grads = numpy_moe_ffn(list(map(widen, args)), cotangent, layer.num_tokens)
    tolerance = U[dtype] * num_roundings(moe_ffn, args, layer.ep)
    for stage in chosen:
        outs, grads = run_spmd(stages()[stage](moe_ffn), layer.ep, args, [cotangent], layer.num_tokens)
        assert dtype_names([*outs, *grads]) == dtype_names([args[0], *(args[i] for i in DIFFERENTIABLE)])
        assert_close([*outs, *grads], [want, *want_grads], f"{stage}:", tolerance)


@pytest.mark.parametrize("dtype", HALVES)
def test_no_further_from_the_truth_than_jax_in_that_dtype(dtype):
    layer = Layer(ep=2, T=16, H=24, I=12, E=6, K=2)
    args = in_dtype(layer.arguments(), dtype)
    cotangent = widen(rounded(layer.cotangent(), dtype))
    want, want_grads = jax_vjp(jax_moe_ffn, list(map(widen, args)), cotangent, DIFFERENTIABLE)
    x, w, up, down, g = (jnp.asarray(widen(a), dtype) for a in (*(args[i] for i in DIFFERENTIABLE), cotangent))

    @jax.jit
    def in_half_precision(x, w, up, down, g):
        out, back = jax.vjp(lambda *a: jax_moe_ffn(a[0], args[1], *a[1:]), x, w, up, down)
        return [out, *back(g)]

    theirs = in_half_precision(x, w, up, down, g)
    outs, grads = run_spmd(fused()(moe_ffn), layer.ep, args, [cotangent])
    for ours, jaxs, truth in zip([*outs, *grads], theirs, [want, *want_grads], strict=True):
        assert relative_error(ours, truth) <= 1.5 * relative_error(jaxs, truth) + U[dtype]


SOME = "geglu", "rms_norm_and_residual", "expert_biases", "dense_on_received_rows", "two_layers", "summed_over_tokens"


@pytest.mark.parametrize("name, dtype", [*((n, "bfloat16") for n in SOME), ("geglu", "float16")])
def test_other_layers(name, dtype):
    f, in_jax = VARIANTS[name]
    args = in_dtype(arguments(f, LAYER), dtype)
    wide, positions = list(map(widen, args)), differentiable(arguments(f, LAYER))
    cotangents = [widen(rounded(c, dtype)) for c in cotangents_of(in_jax, wide)]
    want, want_grads = jax_vjp(lambda *a: tuple(jax.tree.leaves(in_jax(*a))), wide, tuple(cotangents), positions)
    for stage in ("plain", "fused"):
        outs, grads = run_spmd(stages()[stage](f), LAYER.ep, args, cotangents, positions=positions)
        assert set(dtype_names([*outs, *grads])) == {dtype}
        tolerance = U[dtype] * num_roundings(f, args, LAYER.ep)
        assert_close([*outs, *grads], [*want, *want_grads], f"{name} at stage {stage}:", tolerance)


def dequantized_inside(x, ids, w, up, down):
    """Computes a layer in mixed precision: routing weights and the residual sum in float32."""
    y = moe_ffn(x, ids, mint.softmax(w.astype(ms.float32), -1), up, down)
    total = y.astype(ms.float32) * 0.5 + x
    return total.astype(x.dtype), total


def jax_dequantized(x, ids, w, up, down):
    total = jax_moe_ffn(x, ids, jax.nn.softmax(w, -1), up, down) * 0.5 + x
    return total, total


@pytest.mark.parametrize("dtype", HALVES)
def test_casts_inside_the_function(dtype):
    layer = Layer(ep=2, T=5)
    args = in_dtype(layer.arguments(), dtype)
    cotangents = [widen(rounded(layer.cotangent(seed), dtype)) for seed in (1, 2)]

    want, want_grads = jax_vjp(jax_dequantized, list(map(widen, args)), tuple(cotangents), DIFFERENTIABLE)
    for stage in some_stages(HALVES.index(dtype)):
        outs, grads = run_spmd(stages()[stage](dequantized_inside), layer.ep, args, cotangents)
        assert dtype_names([*outs, *grads]) == [dtype, "float32", *[dtype] * 4]
        tolerance = U[dtype] * num_roundings(dequantized_inside, args, layer.ep)
        assert_close([*outs, *grads], [*want, *want_grads], f"{stage}:", tolerance)


# Programs.

def test_program_text_and_rewrites_are_those_of_float32():
    shapes = [(512, 64), (512, 2), (512, 2), (4, 64, 256), (4, 128, 64)]

    def backward(dtype, weights):
        kinds = [dtype, "int32", weights, dtype, dtype]
        return str(vjp(trace(moe_ffn, *map(ShapeDtypeStruct, shapes, kinds), mesh=hpmoe.Mesh(2)))).split()

    assert [w.replace("bf16[", "f32[") for w in backward("bfloat16", "bfloat16")] == backward("float32", "float32")
    mixed = " ".join(backward("float16", "float32"))
    assert "c:f32[R,1] = dispatch_weights topk_weights a d:f16[R,64] = mul b c" in mixed
    assert "f:f32[R,1] = row_dot[dtype=float32] e saved_2 g:f32[512,2] = combine_weights f a" in mixed


def test_casting_back_is_nothing():
    text = str(trace(lambda x: x.astype(ms.float32).astype(ms.bfloat16) + x, ShapeDtypeStruct((4,), "bfloat16")))
    assert "cast" not in text


def test_casts_to_and_from_float32_are_no_tasks():
    """Everything widens what it reads; what only a cast reads is rounded where it is computed."""
    def f(x, ids, w, up, down):
        wide = x.astype(ms.float32)
        scaled = (wide * mint.rsqrt(mint.mean(wide * wide, dim=-1, keepdim=True) + 1e-6)).astype(x.dtype)
        return (moe_ffn(scaled, ids, w, up, down).astype(ms.float32) + wide).astype(x.dtype)

    args = in_dtype(Layer(ep=1).arguments(), "bfloat16")
    avals = [ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in args]
    for direction in ("forward", "backward"):
        flow = hpmoe.tile_partition(f).lower(*avals, direction=direction)
        assert not [op.label for op in flow.ops if op.label == "cast"], str(flow)
    saved = linearize(trace(f, *avals)).forward.outputs[1:]
    assert [v.aval for v in saved if v.aval.dtype == "float32"] == [ShapeDtypeStruct((5, 1), "float32")] * 2

    cotangent = widen(rounded(Layer(ep=1).cotangent(), "bfloat16"))
    want, want_grads = run_spmd(fused()(f), 1, list(map(widen, args)), [cotangent])
    runs = [run_spmd(stages()[stage](f), 1, args, [cotangent]) for stage in ("plain", "queues", "fused")]
    for outs, grads in runs:
        assert_close([*outs, *grads], [*want, *want_grads], tolerance=U["bfloat16"] * num_roundings(f, args))


# Dtypes as MindSpore has them.

F16, BF16, F32 = (Tensor(np.ones((2, 3), np.float32)).astype(t) for t in (ms.float16, ms.bfloat16, ms.float32))
ZERO_D = Tensor(np.float32(2.0))
PROMOTED = {
    "a number": lambda: (lambda x: (0.1 * x, x + 1, x / 3.0, x ** 2.0, x > 0.5), F16),
    "a number and bfloat16": lambda: (lambda x: (0.1 * x, x + 1, x / 3.0), BF16),
    "a float32 array": lambda: (lambda x, y: (x * y, x + y, mint.maximum(y, x), x / y), F16, F32),
    "bfloat16 and a float32 array": lambda: (lambda x, y: (x * y, x + y, mint.maximum(y, x), x / y), BF16, F32),
    "float16 and bfloat16": lambda: (lambda x, y: (x * y, x + y), F16, BF16),
    "a tensor without dimensions": lambda: (lambda x: (x * ZERO_D, x + ZERO_D, x / ZERO_D, ZERO_D * x, x - ZERO_D), F16),
    "an argument without dimensions": lambda: (lambda x, s: (x * s, x + s, mint.div(s, x)), F16, ZERO_D),
    "ints": lambda: (lambda x, i: (x * i, i + x), F16, Tensor(np.ones((2, 3), np.int32))),
    "reductions": lambda: (lambda x: (x.sum(), x.mean(), mint.sum(x, dim=1, dtype=ms.float32), mint.amax(x, -1)), F16),
    "softmax": lambda: (lambda x: (mint.softmax(x, -1), mint.softmax(x, -1, dtype=ms.float32), mint.erf(x)), F16),
}


@pytest.mark.parametrize("name", PROMOTED)
def test_dtypes_are_mindspores(name):
    f, *args = PROMOTED[name]()
    got = [o.aval.dtype for o in trace(f, *args).outputs]
    assert got == [str(o.dtype).lower() for o in f(*args)]


# On MindSpore's own tensors.

@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("f", [moe_ffn, "op by op"])
def test_op_by_op_in_half_precision(f, dtype):
    """MindSpore's CPU has no bfloat16 matmul: the plain function and the comparison compute in float32."""
    layer = Layer(ep=1, T=7, E=5, K=3)
    args, cotangent = in_dtype(layer.arguments(), dtype), widen(rounded(layer.cotangent(), dtype))
    want, want_grads = numpy_moe_ffn(list(map(widen, args)), cotangent)
    if f is moe_ffn:
        args = [a[0] for a in args]
        cotangent, want, want_grads = cotangent[0], want[0], [g[0] for g in want_grads]
    function = f if f is moe_ffn else moe_ffn_op_by_op

    def loss(*chosen):
        out = function(chosen[0], Tensor(args[1]), *chosen[1:])
        return (out.astype(ms.float32) * Tensor(cotangent)).sum(), out

    (_, out), grads = ms.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(*tensors(args[i] for i in DIFFERENTIABLE))
    got = [out.asnumpy(), *(g.asnumpy() for g in grads)]
    assert set(dtype_names(got)) == {dtype}
    assert_close(got, [want, *want_grads], tolerance=U[dtype] * num_roundings(moe_ffn, [np.asarray(a)[None] for a in args]
                                                                              if f is moe_ffn else args))


@pytest.mark.parametrize("dtype", HALVES)
def test_permute_and_unpermute_with_float32_probs(dtype):
    rng = np.random.default_rng(0)
    x = rounded(rng.standard_normal((4, 3)).astype(np.float32), dtype)
    probs, g = rng.random((4, 2), np.float32), rng.standard_normal((4, 3)).astype(np.float32)
    experts = np.array([[1, 0], [0, 2], [2, 1], [1, 2]], np.int32)

    def f(x, experts, probs):
        rows, places = hpmoe.token_ops.permute(x, experts)
        return hpmoe.token_ops.unpermute(rows * rows, places, probs)

    square, total = widen(x) ** 2, probs.sum(1, keepdims=True)
    want = [square * total, 2 * widen(x) * total * g, (square * g).sum(1, keepdims=True).repeat(2, 1)]
    eager, traced = f, hpmoe.spmd(f, hpmoe.Mesh(1))
    for function, arrays in ((eager, (x, experts, probs)), (traced, (x[None], experts[None], probs[None]))):
        def loss(x, probs, function=function, experts=arrays[1]):
            out = function(x, Tensor(experts), probs)
            return (out.astype(ms.float32) * Tensor(g)).sum(), out
        (_, out), grads = ms.value_and_grad(loss, (0, 1), has_aux=True)(Tensor(arrays[0]), Tensor(arrays[2]))
        got = [out.asnumpy(), *(d.asnumpy() for d in grads)]
        assert dtype_names(got) == [dtype, dtype, "float32"]
        assert_close([a.reshape(b.shape) for a, b in zip(got, want, strict=True)], want, tolerance=6 * U[dtype])


# Training.

@pytest.mark.parametrize("dtype", HALVES)
def test_ranks_gradients_of_a_capture_are_summed_in_float32(dtype):
    """Each rank's gradient is 1 or U / 2; added to 1 one by one, the small ones would be lost."""
    ranks = 5
    scale = Parameter(Tensor(rounded(np.ones(1, np.float32), dtype)), name="scale")
    f = hpmoe.spmd(hpmoe.tile_partition(lambda x: x * scale), hpmoe.Mesh(ranks))
    x = np.full((ranks, 1, 1), U[dtype], np.float32)
    x[0] = 1.0
    step = ms.value_and_grad(lambda x: f(x).astype(ms.float32).sum(), None, (scale,))
    _, (grad,) = step(Tensor(rounded(x, dtype)))
    assert widen(grad.asnumpy()).tolist() == [1 + (ranks - 1) * U[dtype]]


# What is refused.

def test_eager_combine_of_half_rows_takes_both_weight_dtypes():
    rows, route = hpmoe.dispatch(Tensor(np.ones((2, 3), np.float16)), Tensor(np.int32([[0], [1]])), num_local_experts=2)
    assert hpmoe.combine(rows, route, Tensor(np.ones((2, 1), np.float32))).dtype == ms.float16
    assert hpmoe.combine(rows, route, Tensor(np.ones((2, 1), np.float32)).astype(ms.bfloat16)).dtype == ms.float16
    with pytest.raises(hpmoe.ArgumentError,
                       match=r"topk_weights is Float64 of shape \(2, 1\); it must be \[2, 1\] Float16"):
        hpmoe.combine(rows, route, Tensor(np.ones((2, 1), np.float64)))
