"""int8 weights with float rows (W8) on the Ascend kernel's emulator, against NumPy, in several orders.

Vector units dequantize int8 weights and quantise float weights. Unsupported combinations are refused."""

import numpy as np
import pytest
from ascend_helpers import emulator, from_seed, npu
from helpers import Layer, assert_close, in_dtype, lowered, numpy_moe_ffn, run_spmd, tensors
from rounded_rows import rounded_weight
from weight_bits import MATRICES, assert_bits_of_numpy

import hpmoe
from hpmoe import moe_ffn, quantize_weights
from hpmoe.support.dtypes import widen


def on_npu(f, **options):
    return emulator(f, tiled_for=npu(), **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", MATRICES)
def test_weights_are_rounded_to_the_bits_of_numpy(monkeypatch, name, dtype):
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        assert_bits_of_numpy(name, "int8", dtype)


LAYERS = {"two ranks": (Layer(ep=2, T=9, H=70, E=6, K=4), {"rows": 4}),
          "uneven": (Layer(ep=3, T=5, H=5, E=9, K=3, num_tokens=(5, 0, 3)), {"rows": 8, "cols": 3})}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_whose_weights_are_rounded_by_every_launch(name):
    """Output and gradients of the layer of rounded weights, in float64."""
    layer, options = LAYERS[name]
    (x, ids, w, *weights), cotangent = layer.arguments(), layer.cotangent()
    (out,), grads = run_spmd(on_npu(quantize_weights(moe_ffn), **options), layer.ep, [x, ids, w, *weights], [cotangent],
                             layer.num_tokens)
    weights = [rounded_weight(a, "int8") for a in weights]
    want, want_grads = numpy_moe_ffn([x, ids, w, *weights], cotangent, layer.num_tokens)
    assert_close([out, *grads], [want, *want_grads])


@pytest.mark.parametrize("dtype, transposed", [("float32", True), ("bfloat16", False), ("float16", True)])
def test_weights_that_come_as_int8(monkeypatch, dtype, transposed):
    """Rows longer than a piece; the same bits in any order."""
    rng = np.random.default_rng(0)
    x, ids = rng.standard_normal((2, 9, 2100)).astype(np.float32), rng.integers(-1, 6, (2, 9, 1)).astype(np.int32)
    weight = rng.integers(-128, 128, (2, 3, 2100, 20), np.int8)
    scale = rng.uniform(1e-3, 1e-2, (2, 3, 20)).astype(np.float32)
    (x,) = in_dtype([x], dtype)
    want = np.zeros((2, 9, 20))
    for r, t in np.ndindex(2, 9):
        owner, e = divmod(int(ids[r, t, 0]), 3)
        if ids[r, t, 0] >= 0:
            want[r, t] = widen(x[r, t]).astype(np.float64) @ weight[owner, e] * scale[owner, e]

    def f(x, ids, w, scale):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=3)
        return hpmoe.combine(hpmoe.grouped_matmul(rows, w.swapaxes(1, 2) if transposed else w, route, scale=scale), route)
    given, got = tensors([x, ids, weight.swapaxes(-1, -2).copy() if transposed else weight, scale]), []
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        got.append(widen(hpmoe.spmd(on_npu(f, rows=4, cols=8), hpmoe.Mesh(2))(*given).asnumpy()))
    np.testing.assert_array_equal(*got)
    assert np.abs(got[0] - want).max() < {"float32": 3e-6, "bfloat16": 2e-2, "float16": 3e-3}[dtype] * np.abs(want).max()


REFUSED = {
    "a plan that is not for an NPU": (emulator, quantize_weights,
                                      "its tile body is GMM_DEQUANTIZED; it must be DEQUANTIZE_WEIGHT"),
    "fp8": (on_npu, quantize_weights(dtype="float8_e4m3fn"), "quantised to is E4M3, FLOAT32 for each row"),
    "mxfp8": (on_npu, quantize_weights(dtype="mxfp8"), "quantised to is E4M3, E8M0 for each 32 columns"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    on_emulator, transform, what = REFUSED[name]
    with pytest.raises(hpmoe.ArgumentError, match=what):
        lowered(on_emulator(transform(moe_ffn)), Layer().arguments(), 2)
