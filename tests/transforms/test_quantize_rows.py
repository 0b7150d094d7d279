"""Rows that are rounded on their way to experts: the formats element by element, every stage forward and backward against
NumPy and JAX on rounded rows, other transforms beside it, and the bytes that leave a rank."""

import ml_dtypes
import numpy as np
import pytest
from helpers import (
    Layer,
    assert_close,
    at_stages,
    fused,
    in_dtype,
    lowered,
    numpy_moe_ffn,
    run_half,
    run_spmd,
    stages,
    tensors,
)
from rounded_rows import rounded_rows

import hpmoe
from hpmoe import chain, moe_ffn, quantize_rows, save_for_backward
from hpmoe.support.dtypes import rounded, widen
from hpmoe.tile_ops.row_formats import dequantized, e4m3_codes, format_of, quantized
from hpmoe.timelines.run import RATES

FORMATS = {"int8": {}, "int8 by 3": {"dtype": "int8", "scale": 3}, "e4m3": {"dtype": "float8_e4m3fn"},
           "e4m3 by 4": {"dtype": "float8_e4m3fn", "scale": 4}, "mxfp8": {"dtype": "mxfp8"}}


def hard_rows(cols=70, seed=0):
    """Rows of all magnitudes, ties, zeros, subnormals, infinities and NaN."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((24, cols)).astype(np.float32) * np.float32(10.0) ** rng.integers(-40, 37, (24, 1))
    rows[0] = 0
    rows[1, ::2] = np.nan
    rows[2, 5] = -np.inf
    rows[3] = np.arange(cols) - 35.5  # ties where the scale is a power of two
    rows[3, 0] = 127.0
    rows[4] = np.float32(1e-45)
    rows[5, 40:] = 0
    rows[6] = np.finfo(np.float32).max
    return rows.astype(np.float32)


@pytest.mark.parametrize("name", FORMATS)
def test_formats_against_elements_of_ml_dtypes(name):
    options, rows = FORMATS[name], hard_rows()
    form = format_of(options.get("dtype", "int8"), 32 if name == "mxfp8" else options.get("scale", 0))
    packed = quantized(rows, form)
    assert packed.dtype == np.uint8 and packed.shape[1] == form.packed_cols(70) and form.cols_of(packed.shape[1]) == 70
    np.testing.assert_array_equal(dequantized(packed, form), rounded_rows(rows, options))


def test_every_e4m3_number_and_the_midpoints_between_them():
    values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    values = np.unique(values[np.isfinite(values)])
    between = (values[:-1] + values[1:]) / 2
    beside = np.concatenate([np.nextafter(between, np.float32(-1e9)), np.nextafter(between, np.float32(1e9))])
    for x in (values, between, beside):
        np.testing.assert_array_equal(e4m3_codes(x).view(ml_dtypes.float8_e4m3fn), x.astype(ml_dtypes.float8_e4m3fn))


@pytest.mark.parametrize("cols", range(1, 12))
def test_a_number_of_bytes_is_of_one_number_of_columns(cols):
    for form in (format_of("int8"), format_of("int8", 3), format_of("mxfp8", 4)):
        of_bytes = [form.cols_of(packed) for packed in range(40)]
        assert of_bytes.index(cols) == form.packed_cols(cols) and of_bytes.count(cols) == 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", FORMATS)
def test_the_kernel_has_the_bits_of_numpy(name, dtype):
    """Rows that arrive at another rank, NaN and infinities too."""
    options = FORMATS[name]
    with np.errstate(over="ignore"):
        (x,) = in_dtype([np.stack([hard_rows(seed=0), hard_rows(seed=1)])], dtype)
    ids = np.stack([np.full((24, 1), 1), np.full((24, 1), 0)]).astype(np.int32)

    def f(x, ids):
        return hpmoe.combine(*hpmoe.dispatch(x, ids, num_local_experts=1))
    got = hpmoe.spmd(fused(rows=5)(quantize_rows(f, **options)), hpmoe.Mesh(2))(*tensors([x, ids])).asnumpy()
    with np.errstate(over="ignore"):
        want = rounded(rounded_rows(widen(x), options), dtype)
    np.testing.assert_array_equal(widen(got), widen(want))


LAYERS = {
    "two ranks": Layer(ep=2, T=9, H=70, E=6, K=4),
    "uneven": Layer(ep=3, T=5, H=5, E=9, K=3, num_tokens=(5, 0, 3)),
    "no tokens": Layer(ep=2, T=0, E=4, K=2),
}


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_stage_is_the_layer_of_rounded_rows(name, stage):
    """Output and gradients, of what was sent too, are those of the rows that arrive."""
    layer, options = LAYERS[name], FORMATS["int8" if name == "two ranks" else "mxfp8"]
    args, cotangent = layer.arguments(), layer.cotangent()
    out, grads = run_spmd(stages()[stage](quantize_rows(moe_ffn, **options)), layer.ep, args, [cotangent], layer.num_tokens)
    want, want_grads = numpy_moe_ffn([rounded_rows(args[0], options) if args[0].size else args[0], *args[1:]], cotangent,
                                     layer.num_tokens)
    assert_close([*out, *grads], [want, *want_grads])


@pytest.mark.parametrize("backward", ["straight_through", "quantized"])
@pytest.mark.parametrize("policy", ["everything", lambda equation: False], ids=["everything", "nothing"])
def test_rows_dispatched_again_in_backward_round_as_before(policy, backward):
    """Gradients that the backward pass dispatches are rounded where asked for, and then by the format as well."""
    layer = Layer(ep=2, T=6, H=6, E=4, K=2)
    args, cotangent = layer.arguments(), layer.cotangent()
    f = chain(save_for_backward(policy=policy), quantize_rows(backward=backward), fused())(moe_ffn)
    out, grads = run_spmd(f, 2, args, [cotangent])
    sent = rounded_rows(cotangent, {}) if backward == "quantized" else cotangent
    rows = [rounded_rows(args[0], {}), *args[1:]]
    assert_close([*out, *grads], [numpy_moe_ffn(rows, cotangent)[0], *numpy_moe_ffn(rows, sent)[1]])


def there_and_back(x, ids, w):
    return hpmoe.combine(*hpmoe.dispatch(x, ids, num_local_experts=3), w)


def summed(rows, w, ids):
    """Rows [ep, T, K, H] of each token, weighted and summed, without those of no expert."""
    return np.einsum("rtkh,rtk->rth", rows.astype(np.float64), np.where(ids < 0, 0, w))


@pytest.mark.parametrize("backward", ["straight_through", "quantized"])
@pytest.mark.parametrize("stage", stages())
def test_rows_that_come_back_are_rounded_too(stage, backward):
    """Each before it is weighted and summed; gradients both ways where asked for. Some entries go nowhere."""
    layer, options = Layer(ep=2, T=7, H=40, E=6, K=3), FORMATS["e4m3 by 4"]
    x, ids, w, *_ = layer.arguments()
    ids[np.random.default_rng(5).random(ids.shape) < 0.2] = -1
    cotangent = layer.cotangent()
    f = stages()[stage](quantize_rows(there_and_back, **options, combine=True, backward=backward))
    (out,), (dx, dw) = run_spmd(f, 2, [x, ids, w], [cotangent], positions=(0, 2))

    def sent(rows):
        return rounded_rows(rows, options) if backward == "quantized" else rows
    program = lowered(quantize_rows(there_and_back, **options, combine=True), [x, ids, w], 2)
    assert "combine_quantized" in str(program)  # rows that are rounded already hardly show it
    arrived = rounded_rows(x, options)
    back = np.repeat(rounded_rows(arrived, options)[:, :, None], layer.K, axis=2)
    grads = sent(cotangent)[:, :, None] * w[..., None]
    ones = np.ones_like(w)
    want_dw = np.where(ids < 0, 0, np.einsum("rth,rth->rt", sent(cotangent), arrived)[..., None])
    assert_close([out, dx, dw], [summed(back, w, ids), summed(sent(grads), ones, ids), want_dw])


def test_half_precision():
    """A row that arrives is rounded to bfloat16 once more, and repeats bit by bit."""
    layer = Layer(ep=2, T=16, E=8, K=4, H=8, I=4)
    f = chain(quantize_rows, fused())
    for exact, a, b in zip(*(run_half(g(moe_ffn), layer, "bfloat16") for g in (fused(), f, f)), strict=True):
        assert np.abs(a - exact).max() < 0.05 * np.abs(exact).max() and (a == b).all()


@pytest.mark.parametrize("dtype, size", [("float32", 4), ("bfloat16", 2)])
def test_bytes_on_links_of_a_simulated_run(dtype, size):
    """A row of 64 elements goes out as 64 bytes and a scale of 4, and comes back as it was."""
    layer, machine = Layer(ep=4, T=16, H=64, E=8, K=3), hpmoe.machines.ascend_a3
    args = in_dtype(layer.arguments(), dtype)
    to_queues = chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues(machine=machine))
    owners = args[1] // (layer.E // layer.ep)
    leaving = int((owners != np.arange(layer.ep)[:, None, None]).sum())
    lines = [hpmoe.simulate(lowered(to_queues(f), args, 4), routing=args[1])
             for f in (moe_ffn, quantize_rows(moe_ffn), quantize_rows(moe_ffn, combine=True))]
    sent = [line.traffic[:, RATES.index("egress"), 0].sum() for line in lines]
    assert sent == [leaving * 128 * size, leaving * (68 + 64 * size), leaving * (68 + 68)]
