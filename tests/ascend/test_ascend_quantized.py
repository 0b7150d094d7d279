"""Rows and weights of int8 on the Ascend kernel's emulator: the bits of NumPy, in several orders; and what is refused
there."""

import functools

import numpy as np
import pytest
from ascend_helpers import emulator, from_seed
from helpers import Layer, assert_close, fused, in_dtype, lowered, numpy_moe_ffn, run_spmd, tensors
from int8_products import int8_run
from rounded_rows import multiplied, rounded_rows

import hpmoe
from hpmoe import chain, moe_ffn, quantize_rows, quantize_weights, replicate_experts
from hpmoe.support.dtypes import widen


def there_and_back(x, ids, weights):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=weights.shape[1])
    return hpmoe.combine(rows, route, weights)


CASES = {  # tokens, depth, columns, and tiles of so many rows and columns
    "one step and a part of a fractal": (9, 1100, 7, 4, 3),
    "depths that are no fractals": (5, 48, 20, 8, 16),
    "several halves": (40, 300, 300, 32, 256),
    "a fractal of two terms": (3, 2, 3, 2, 1),
    "rows in parts": (3, 5000, 9, 2, 4),
    "a full tile": (130, 40, 5, 128, 16),
}


@pytest.mark.parametrize("name, dtype", [
    *((name, ("float32", "bfloat16", "float16")[i % 3]) for i, name in enumerate(CASES)), ("a full tile", "float32")])
def test_w8a8_has_the_bits_of_numpy_in_any_order(monkeypatch, name, dtype):
    """Rows of zeros, of NaN and of infinities among them, and ids of no expert; by weights transposed, or as they are."""
    tokens, depth, cols, tile_rows, tile_cols = CASES[name]
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, tokens, depth)).astype(np.float32)
    x[0, 0], x[1, 1, 0], x[1, 2, -1] = 0, np.nan, -np.inf
    ids = rng.integers(-1, 6, (2, tokens, 1)).astype(np.int32)
    ids[:, :3] = 4
    weight, scale = rng.integers(-128, 128, (2, 3, cols, depth), np.int8), rng.random((2, 3, cols)).astype(np.float32)
    args = tensors([*in_dtype([x], dtype), ids, weight, scale])
    transposed, as_it_is = (functools.partial(multiplied, row_dtype="int8", transposed=transposed)
                            for transposed in (True, False))
    want = widen(hpmoe.spmd(transposed, hpmoe.Mesh(2))(*args).asnumpy())
    as_given = [*args[:2], *tensors([np.ascontiguousarray(weight.swapaxes(2, 3))]), args[3]]
    for f, given in ((transposed, args), (as_it_is, as_given)):
        on_emulator = hpmoe.spmd(emulator(f, rows=tile_rows, cols=tile_cols), hpmoe.Mesh(2))
        for seed in (0, 1000):
            from_seed(monkeypatch, seed)
            np.testing.assert_array_equal(widen(on_emulator(*given).asnumpy()), want)
    assert np.isnan(want[1, 1:3]).all() and not want[0, 0].any()


def test_rows_that_are_dispatched_as_int8():
    """And floats again where they arrive: output and gradients of the layer of rounded rows."""
    layer = Layer(ep=2, T=9, H=70, E=6, K=4)
    args, cotangent = layer.arguments(), layer.cotangent()
    (out,), grads = run_spmd(emulator(quantize_rows(moe_ffn), rows=4), 2, args, [cotangent])
    want, want_grads = numpy_moe_ffn([rounded_rows(args[0], {}), *args[1:]], cotangent)
    assert_close([out, *grads], [want, *want_grads])


def test_rows_that_arrive_as_int8_are_multiplied_so():
    run = int8_run(quantize_rows)
    assert [op.opcode for op in run.kernel.flow.ops].count("QUANTIZE") == 2  # tokens, and what SwiGLU makes
    run.assert_close_to_float64()


@pytest.mark.parametrize("cols, top_k, dtype", [(7, 3, "float16"), (48, 2, "bfloat16"), (300, 9, "float32"),
                                                (2100, 1, "bfloat16"), (17, 130, "float32")])
def test_int8_combine_has_the_bits_of_numpy_in_any_order(monkeypatch, cols, top_k, dtype):
    """Weights are powers of two, whose products are exact; some entries are of no expert, and rows are zeros or NaN."""
    rng, experts, f = np.random.default_rng(0), 2 * top_k, quantize_rows(there_and_back, combine=True)
    x = rng.standard_normal((2, 9, cols)).astype(np.float32)
    x[0, 0], x[1, 1, 0] = 0, np.nan
    ids = rng.permuted(np.tile(np.arange(experts, dtype=np.int32), (2, 9, 1)), axis=2)[..., :top_k].copy()
    ids[rng.random(ids.shape) < 0.2] = -1
    weights = 2.0 ** rng.integers(-2, 3, ids.shape).astype(np.float32)
    args = tensors([*in_dtype([x], dtype), ids, weights])
    want = widen(hpmoe.spmd(f, hpmoe.Mesh(2))(*args).asnumpy())
    on_emulator = hpmoe.spmd(emulator(f, rows=4), hpmoe.Mesh(2))
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        np.testing.assert_array_equal(widen(on_emulator(*args).asnumpy()), want)
    assert np.isnan(want[1, 1]).all() and not want[0, 0].any()


def test_rows_and_gradients_that_are_int8_both_ways():
    layer = Layer(ep=2, T=9, H=70, E=6, K=4)
    args, cotangent = layer.arguments(), layer.cotangent()
    f = quantize_rows(moe_ffn, combine=True, backward="quantized")
    (out, grads), (want, want_grads) = (run_spmd(g, 2, args, [cotangent]) for g in (emulator(f, rows=4), f))
    assert_close([*out, *grads], [*want, *want_grads])


@pytest.mark.parametrize("copies", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_gradients_that_are_int8_rows_have_the_bits_of_the_cpu(copies):
    """Multiplied by weights as they were rounded for the rows, with k down here: two products, each summed exactly."""
    def multiplied_twice(x, ids, first, second):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=first.shape[0])
        return hpmoe.combine(hpmoe.grouped_matmul(hpmoe.grouped_matmul(rows, first, route), second, route), route)
    rng, f = np.random.default_rng(0), chain(
        *[replicate_experts(loads=[1, 1, 1, 1, 1, 9])] * copies, quantize_rows(backward="quantized"),
        quantize_weights(row_dtype="int8", backward="quantized"))(multiplied_twice)
    args = [rng.standard_normal(s).astype(np.float32) for s in ((2, 9, 70), (2, 9, 1), (2, 3, 70, 300), (2, 3, 300, 37))]
    args[1] = rng.integers(-1, 6, args[1].shape).astype(np.int32)
    cotangent = rng.standard_normal((2, 9, 37)).astype(np.float32)
    got, want = (run_spmd(g, 2, args, [cotangent], positions=(0, 2, 3)) for g in (
        emulator(f, rows=4, cols=288), fused(rows=4)(f)))
    np.testing.assert_array_equal(got[0][0], want[0][0])
    np.testing.assert_array_equal(got[1][0], want[1][0])
    assert_close(got[1], want[1])


REFUSED = {
    "fp8 rows": (quantize_rows(dtype="float8_e4m3fn"), Layer(), "quantised to is E4M3, FLOAT32 for each row"),
    "a scale for some columns": (quantize_rows(scale=2), Layer(), "quantised to is INT8, FLOAT32 for each 2 columns"),
    "long rows": (quantize_rows, Layer(H=8193), "the columns of its widest row is 8193; it must be at most 8192"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    transform, layer, what = REFUSED[name]
    with pytest.raises(hpmoe.ArgumentError, match=what):
        lowered(emulator(transform(moe_ffn)), layer.arguments(), 2)

