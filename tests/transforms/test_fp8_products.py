"""W8A8 of fp8 and mxfp8: rows and weights are rounded and multiplied as they are; every stage forward and backward against
NumPy in float64, and weights of mxfp8 that come quantised."""

import functools

import mindspore as ms
import ml_dtypes
import numpy as np
import pytest
from helpers import Layer, assert_close, fused, lowered, numpy_moe_ffn, run_half, run_spmd, stages, tensors
from rounded_rows import multiplied, rounded_rows, rounded_weight, scaled_products

import hpmoe
from hpmoe import chain, moe_ffn, quantize_rows, quantize_weights, replicate_experts

DTYPES = "float8_e4m3fn", "mxfp8"
LAYERS = {"fused": Layer(ep=2, T=9, H=70, E=6, K=4, I=36), "tiles": Layer(ep=3, T=5, H=5, E=9, K=3, num_tokens=(5, 0, 3)),
          "plain": Layer(ep=2, T=6, H=33, E=4, K=2)}


def rounded(x, dtype):
    return rounded_rows(x, {"dtype": dtype}) if x.size else x


@pytest.mark.parametrize("stage", LAYERS)
@pytest.mark.parametrize("before", [False, True], ids=["rounded where they are", "sent as bytes"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_stage_is_the_layer_of_rounded_rows_and_weights(dtype, before, stage):
    layer = LAYERS[stage]
    (x, ids, w, *weights), cotangent = layer.arguments(), layer.cotangent()
    w8a8 = quantize_weights(dtype=dtype, row_dtype=dtype)
    f = stages()[stage](chain(*[quantize_rows(dtype=dtype)] * before, w8a8)(moe_ffn))
    out, grads = run_spmd(f, layer.ep, [x, ids, w, *weights], [cotangent], layer.num_tokens)
    want, want_grads = numpy_moe_ffn(
        [rounded(x, dtype), ids, w, *(rounded_weight(a, dtype) for a in weights)], cotangent, layer.num_tokens,
        round_act=lambda act: rounded(act.astype(np.float32)[None], dtype)[0].astype(np.float64))
    assert_close([*out, *grads], [want, *want_grads])


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounded_gradients_and_copies(dtype):
    """Gradients that are multiplied are rounded where asked for, within a step of each; copies are the same rows."""
    layer = Layer(ep=2, T=6, H=40, E=4, K=2, I=36)
    args, cotangent = layer.arguments(), layer.cotangent()
    w8a8 = functools.partial(quantize_weights, dtype=dtype, row_dtype=dtype)
    copied = replicate_experts(loads=[1, 2, 3, 9])
    exact, rounded, of_copies = (run_spmd(chain(f, fused())(moe_ffn), 2, args, [cotangent]) for f in (
        w8a8(), w8a8(backward="quantized"), chain(copied, w8a8())))
    assert_close([*of_copies[0], *of_copies[1]], [*exact[0], *exact[1]])
    assert_close(rounded[1], exact[1], tolerance=0.2)
    assert np.abs(rounded[1][0] - exact[1][0]).max() > 1e-3 * np.abs(exact[1][0]).max()


def test_mxfp8_in_tiles_for_an_npu():
    """Products that an NPU's matrix units lack are computed from dequantized operands: odd blocks, gradients, float16."""
    layer = Layer(ep=3, T=2, H=33, I=33, E=3, K=3)
    w8a8 = quantize_weights(dtype="mxfp8", row_dtype="mxfp8", backward="quantized")
    for f in (chain(quantize_rows(dtype="mxfp8", combine=True), w8a8)(moe_ffn), quantize_weights(moe_ffn, dtype="mxfp8")):
        tiled = chain(hpmoe.tile_partition(rows=4, cols=16, machine=hpmoe.machines.ascend_a3), hpmoe.overlap_comm,
                      hpmoe.assign_queues(machine=hpmoe.cpu(2)), hpmoe.fuse_persistent)(f)
        got, want = (run_half(g, layer, "float16") for g in (tiled, f))
        assert_close(got, want, tolerance=2e-3)


def products(dtype):
    """Returns the products of a plan: opcodes and the dtypes of the rows."""
    layer = LAYERS["plain"]
    f = chain(quantize_rows(dtype=dtype), quantize_weights(dtype=dtype, row_dtype=dtype), hpmoe.tile_partition)(moe_ffn)
    flow = lowered(f, layer.arguments(), layer.ep, "forward")
    return [(op.opcode, flow.buffers[op.operands[1].buffer].dtype) for op in flow.ops if op.primitive.is_matmul or (
        op.opcode in ("RESCALE", "DEQUANTIZE"))]


def test_what_is_multiplied():
    """Bytes by bytes; sums of mxfp8 need no scale any more."""
    assert products("mxfp8") == [("GMM_FP8", "uint8")] * 2
    assert products("float8_e4m3fn") == [("GMM_FP8", "uint8"), ("RESCALE", "float32")] * 2


@pytest.mark.parametrize("row_dtype", [None, "mxfp8"])
@pytest.mark.parametrize("inner", [32, 70])
def test_weights_of_mxfp8_that_come_quantised(inner, row_dtype):
    """Results and gradients of rows, at every stage and call by call."""
    rng, (ep, experts, cols, tokens) = np.random.default_rng(inner), (2, 3, 7, 9)
    x = rng.standard_normal((ep, tokens, inner)).astype(np.float32)
    ids = rng.integers(-1, experts * ep, (ep, tokens, 1)).astype(np.int32)
    codes = rng.integers(0, 256, (ep, experts, cols, inner)).astype(np.uint8)
    codes[(codes & 127) == 127] = 0  # none of them NaN
    scale = rng.integers(115, 130, (ep, experts, cols, -(-inner // 32))).astype(np.uint8)
    numbers = codes.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * np.repeat(
        2.0 ** (scale.astype(np.float64) - 127), 32, -1)[..., :inner]
    rows = (rounded(x, row_dtype) if row_dtype else x).astype(np.float64)
    cotangent = rng.standard_normal((ep, tokens, cols)).astype(np.float32)
    of_ones = np.ones((ep, experts, cols))
    out, dx, _ = scaled_products(rows, ids, numbers.swapaxes(-1, -2), of_ones, cotangent)
    layer = functools.partial(multiplied, row_dtype=row_dtype)
    for name in ("plain", "tiles", "fused"):
        (got,), grads = run_spmd(stages()[name](layer), ep, [x, ids, codes, scale], [cotangent], positions=(0,))
        assert_close([got, *grads], [out, dx])
    one = [a[:1] for a in (x, np.minimum(ids, experts - 1), codes, scale)]
    given = [t[0] for t in tensors(one)]

    def run(f):
        return ms.value_and_grad(lambda x: (f(x, *given[1:]) ** 2).sum())(given[0])
    got, want = run(layer), run(hpmoe.tile_partition(layer))
    assert_close([a.asnumpy() for a in got], [a.asnumpy() for a in want])
