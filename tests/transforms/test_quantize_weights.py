"""Experts' weights of one byte an element: products of int8 bit by bit, every stage forward and backward against NumPy on
rounded weights and rows, weights that come quantised, other transforms beside it, and the bytes that are held and moved."""

import functools

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from helpers import Layer, assert_close, fused, in_dtype, lowered, numpy_moe_ffn, run_half, run_spmd, stages, tensors
from rounded_rows import multiplied, rounded_rows, rounded_weight, scaled_products

import hpmoe
from hpmoe import chain, moe_ffn, quantize_rows, quantize_weights, save_for_backward
from hpmoe.support.dtypes import rounded, widen

W8A8 = quantize_weights(row_dtype="int8")
TRANSFORMS = {"W8": quantize_weights, "W8 of fp8": quantize_weights(dtype="float8_e4m3fn"),
              "W8 of mxfp8": quantize_weights(dtype="mxfp8"), "W8A8": W8A8,
              "int8 all the way": chain(quantize_rows, W8A8), "W8A8, then rows": chain(W8A8, quantize_rows)}


def int8_rows(x):
    return rounded_rows(x, {}) if x.size else x


def expected(name, args, cotangent, num_tokens=None):
    """Output and gradients of the layer of rounded weights, and rows, in float64."""
    x, ids, w, *weights = args
    dtype = {"W8 of fp8": "float8_e4m3fn", "W8 of mxfp8": "mxfp8"}.get(name, "int8")
    weights = [rounded_weight(a, dtype) for a in weights]
    if name.startswith("W8A8") or "int8" in name:
        return numpy_moe_ffn([int8_rows(x), ids, w, *weights], cotangent, num_tokens,
                             round_act=lambda act: int8_rows(act.astype(np.float32)[None])[0].astype(np.float64))
    return numpy_moe_ffn([x, ids, w, *weights], cotangent, num_tokens)


def int8_case(dtype, experts=3, inner=1100, cols=7, tokens=9, ep=2):
    """Rows, ids, int8 weights of all values, scales; sums take more terms than float32 holds exactly at once."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((ep, tokens, inner)).astype(np.float32)
    x[0, 0], x[0, 1] = 0, 127 * np.sign(x[0, 1])  # all elements the largest: as large as sums can be
    ids = rng.integers(-1, experts * ep, (ep, tokens, 1)).astype(np.int32)
    ids[0, 1] = experts * (ep - 1)
    w = rng.integers(-128, 128, (ep, experts, inner, cols), np.int8)
    w[-1, 0, :, 0] = np.where(x[0, 1] > 0, -128, 127)
    (x,) = in_dtype([x], dtype)
    return x, ids, w, rng.uniform(1e-3, 1e-2, (ep, experts, cols)).astype(np.float32)


@pytest.mark.parametrize("transposed", [False, True], ids=["as they are", "transposed"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_int8_products_are_exact(dtype, transposed):
    """Every stage has the bits of integers, scaled: of the row first, then of the column, rounded once."""
    x, ids, w, scale = int8_case(dtype)
    wide = widen(x)
    s = (np.abs(wide).max(-1, keepdims=True) / np.float32(127)).astype(np.float32)
    q = np.clip(np.round(wide / np.where(s > 0, s, np.float32(1))), -127, 127).astype(np.int64)
    want = np.zeros((*x.shape[:2], w.shape[-1]), np.float32)
    for r, t in np.ndindex(x.shape[:2]):
        if ids[r, t, 0] >= 0:
            owner, e = divmod(int(ids[r, t, 0]), w.shape[1])
            total = q[r, t] @ w[owner, e].astype(np.int64)
            assert np.abs(total).max() < 2**31
            want[r, t] = total.astype(np.float32) * s[r, t] * scale[owner, e]
    given = tensors([x, ids, w.swapaxes(-1, -2).copy() if transposed else w, scale])
    f = functools.partial(multiplied, transposed=transposed, row_dtype="int8")
    for name, stage in stages(rows=4, cols=3).items():
        if name in ("plain", "tiles", "fused"):
            got = hpmoe.spmd(stage(f), hpmoe.Mesh(2))(*given).asnumpy()
            np.testing.assert_array_equal(widen(got), widen(rounded(want, dtype)), err_msg=name)


@pytest.mark.parametrize("element, row_dtype", [("int8", None), ("int8", "int8"), ("float8_e4m3fn", None)])
def test_weights_that_come_quantised(element, row_dtype):
    """Results, and gradients of rows and scales."""
    x, ids, w, scale = int8_case("float32", inner=70)
    numbers = w.astype(np.float64)
    if element != "int8":
        codes = w.view(np.uint8)
        codes[(codes & 127) == 127] = 0  # none of them NaN
        w, numbers = codes, codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    rows = int8_rows(x).astype(np.float64) if row_dtype else x.astype(np.float64)
    cotangent = np.random.default_rng(1).standard_normal((*x.shape[:2], w.shape[-1])).astype(np.float32)
    f = functools.partial(multiplied, row_dtype=row_dtype)
    for stage in ("plain", "tiles", "fused"):
        (got,), grads = run_spmd(stages()[stage](f), 2, [x, ids, w, scale], [cotangent], positions=(0, 3))
        assert_close([got, *grads], scaled_products(rows, ids, numbers, scale, cotangent))


@pytest.mark.parametrize("row_dtype", [None, "float8_e4m3fn"])
@pytest.mark.parametrize("code", [0x7F, 0xFF])
def test_a_weight_of_nan_makes_its_column_nan(code, row_dtype):
    x, ids, w, scale = int8_case("float32", inner=70)
    w = np.full(w.shape, 0x38, np.uint8)  # ones
    w[..., 1, 2] = code
    f = functools.partial(multiplied, row_dtype=row_dtype)
    for stage in ("plain", "tiles", "fused"):
        got = hpmoe.spmd(stages()[stage](f), hpmoe.Mesh(2))(*tensors([x, ids, w, scale])).asnumpy()
        is_nan = np.isnan(got[ids[..., 0] >= 0])
        assert len(is_nan) and is_nan[:, 2].all() and not np.delete(is_nan, 2, 1).any(), stage


def test_call_by_call_on_one_rank():
    x, ids, w, scale = (a[0] for a in int8_case("float32", inner=70, ep=1))

    def run(f):
        def loss(x, scale):
            return (f(x, ms.Tensor(ids), ms.Tensor(w), scale, row_dtype="int8") ** 2).sum()
        return ms.value_and_grad(loss, (0, 1))(*tensors([x, scale]))
    got, want = run(multiplied), run(hpmoe.tile_partition(multiplied))
    assert_close([got[0].asnumpy(), *(g.asnumpy() for g in got[1])], [want[0].asnumpy(), *(g.asnumpy() for g in want[1])])


LAYERS = {
    "two ranks": Layer(ep=2, T=9, H=70, E=6, K=4),
    "uneven": Layer(ep=3, T=5, H=5, E=9, K=3, num_tokens=(5, 0, 3)),
    "no tokens": Layer(ep=2, T=0, E=4, K=2),
}


@pytest.mark.parametrize("layer, name, stage", [
    *(("uneven", name, "fused") for name in TRANSFORMS),
    *(("two ranks", name, ("plain", "overlap", "fused")[i % 3]) for i, name in enumerate(TRANSFORMS)),
    ("uneven", "int8 all the way", "overlap"), ("uneven", "W8 of fp8", "plain"),
    ("no tokens", "W8 of mxfp8", "fused"), ("no tokens", "int8 all the way", "fused")])
def test_every_stage_is_the_layer_of_rounded_weights(layer, name, stage):
    layer = LAYERS[layer]
    args, cotangent = layer.arguments(), layer.cotangent()
    out, grads = run_spmd(stages()[stage](TRANSFORMS[name](moe_ffn)), layer.ep, args, [cotangent], layer.num_tokens)
    want, want_grads = expected(name, args, cotangent, layer.num_tokens)
    assert_close([*out, *grads], [want, *want_grads])


@pytest.mark.parametrize("stage", ["tiles", "fused"])
@pytest.mark.parametrize("name", ["W8", "W8 of fp8", "W8 of mxfp8"])
def test_vector_units_dequantize_weights_before_products(name, stage):
    """On an NPU, whose matrix units multiply floats, weights are dequantized once for all products."""
    layer = LAYERS["uneven"]
    args, cotangent = layer.arguments(), layer.cotangent()
    tiles = hpmoe.tile_partition(rows=2, cols=3, machine=hpmoe.machines.ascend_a3)
    to_kernel = hpmoe.overlap_comm, hpmoe.assign_queues(machine=hpmoe.cpu(2)), hpmoe.fuse_persistent
    f = chain(TRANSFORMS[name], tiles, *to_kernel * (stage == "fused"))(moe_ffn)
    out, grads = run_spmd(f, layer.ep, args, [cotangent], layer.num_tokens)
    want, want_grads = expected(name, args, cotangent, layer.num_tokens)
    assert_close([*out, *grads], [want, *want_grads])
    for direction in ("forward", "backward"):
        made = [op.opcode for op in lowered(chain(TRANSFORMS[name], tiles)(moe_ffn), args, layer.ep, direction).ops]
        assert made.count("DEQUANTIZE_WEIGHT") == 2 and "GMM_DEQUANTIZED" not in made


@pytest.mark.parametrize("backward", ["straight_through", "quantized"])
@pytest.mark.parametrize("policy", ["everything", lambda equation: False], ids=["everything", "nothing"])
def test_products_computed_again_in_backward_round_as_before(policy, backward):
    """Gradients that are multiplied are rounded where asked for, scaled by columns: within a step of each."""
    layer = Layer(ep=2, T=6, H=24, E=4, K=2, I=8)
    args, cotangent = layer.arguments(), layer.cotangent()
    f = chain(save_for_backward(policy=policy), quantize_weights(row_dtype="int8", backward=backward), fused())(moe_ffn)
    (out,), grads = run_spmd(f, 2, args, [cotangent])
    want, want_grads = expected("W8A8", args, cotangent)
    assert_close([out], [want])
    assert_close(grads, want_grads, tolerance=0.02 if backward == "quantized" else 1e-5)
    apart = [np.abs(g - w).max() > 1e-4 * np.abs(w).max() for g, w in zip(grads, want_grads, strict=True)]
    assert apart == [backward == "quantized"] * 3 + [False]  # the last weight's gradient multiplies what is given


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    """Sums of half-precision rows by quantised weights are rounded once, and repeat bit by bit."""
    layer = Layer(ep=2, T=16, E=8, K=4, H=8, I=4)
    for f in (quantize_weights, TRANSFORMS["W8 of mxfp8"], TRANSFORMS["int8 all the way"]):
        for exact, a, b in zip(*(run_half(g(moe_ffn), layer, dtype) for g in (
                fused(), chain(f, fused()), chain(f, fused()))), strict=True):
            assert np.abs(a - exact).max() < 0.1 * np.abs(exact).max() and (a == b).all()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rounding_before_or_after_dispatch_gives_the_same_bits(dtype):
    layer = Layer(ep=2, T=9, H=70, E=6, K=4)
    before, after = (run_half(f(moe_ffn), layer, dtype) for f in (
        chain(quantize_rows, W8A8, fused()), chain(W8A8, fused())))
    np.testing.assert_array_equal(before[0], after[0])
    assert_close(before, after)


def test_weights_are_held_and_read_as_bytes():
    """A weight is read as one byte, by a vector unit if rows are floats; a product of int8 rows takes half the time."""
    machine, sizes = hpmoe.machines.ascend_a3, ((512, 4096), (512, 1), (512, 1), (4, 4096, 512), (4, 256, 4096))
    avals = [hpmoe.ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(sizes)]
    to_queues = chain(hpmoe.tile_partition(machine=machine), hpmoe.overlap_comm, hpmoe.assign_queues(machine=machine))
    ids = np.arange(512).reshape(1, 512, 1) % 4

    def first(opcode, operand, f, int8_ratio=2.0):
        flow = to_queues(f).lower(*avals)
        line = hpmoe.simulate(flow, machine.replace({"cube.int8_ratio": int8_ratio}), routing=ids)
        i, op = next((i, op) for i, op in enumerate(flow.ops) if op.opcode == opcode)
        weight = flow.buffers[op.operands[operand].buffer]
        took = (line.end - line.begin)[flow.tasks["op"][line.task] == i].sum()
        return weight.num_rows * weight.row_bytes, took
    (as_it_is, slow), (w8, widening), (w8a8, fast), (_, as_slow) = (
        first("GMM", 2, moe_ffn), first("DEQUANTIZE_WEIGHT", 1, quantize_weights(moe_ffn)),
        first("GMM_INT8", 2, W8A8(moe_ffn)),
        first("GMM_INT8", 2, W8A8(moe_ffn), int8_ratio=0.5))
    assert as_it_is == 2 * w8 == 2 * w8a8 == 2 * 4 * 4096 * 512 and widening > 0
    assert fast < min(slow, as_slow)
