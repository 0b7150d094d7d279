"""Tile bodies on float32, bfloat16 and float16 storage, and mixed: computed in float32, rounded once where stored."""

import numpy as np
import pytest
from bodies_in_tiles import expert_rows, run, tiles
from native.image_builder import OWN, OWN_ALL

from hpmoe.kernels.protocol import Cols, Domain, Dtype, MapCode, Opcode, Rows
from hpmoe.support.dtypes import numpy_dtype

F32, BF16, F16 = Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16
HALVES = (BF16, F16)
# Unit roundoff: how far, relatively, rounding to nearest moves a number.
ROUNDOFF = {F32: 2.0**-24, BF16: 2.0**-8, F16: 2.0**-11}
MIXES = [(F32, F32, F32), (BF16, BF16, BF16), (F16, F16, F16), (F32, BF16, F32), (BF16, F32, BF16), (F16, BF16, F32),
         (BF16, F16, F16)]


def wide(array):
    return array.astype(np.float32).astype(np.float64)


def assert_rounded(got, exact, dtype, sloppy=1e-5):
    """`got` is `exact` but for one rounding to its dtype and float32 arithmetic, `sloppy` in the largest value."""
    assert got.dtype == numpy_dtype(dtype.name.lower())
    bound = np.abs(exact) * ROUNDOFF[dtype] + sloppy * (np.abs(exact).max() if exact.size else 0)
    assert (np.abs(wide(got) - exact) <= bound).all(), np.abs(wide(got) - exact).max()


def copy_map(values, source, target):
    t = tiles(num_rows=len(values))
    x, out = t.array(values.shape[1], values=values, dtype=source), t.array(values.shape[1], dtype=target)
    t.run(Opcode.MAP, (out, *OWN), (x, *OWN), columns=[(0, values.shape[1])], param=(MapCode.COPY,))
    return t.buffers[x], t.buffers[out]


def all_bits(dtype):
    return np.arange(2**16, dtype=np.uint16).view(numpy_dtype(dtype.name.lower())).astype(np.float32).reshape(64, 1024)


# --- casts ---


@pytest.mark.parametrize("dtype", HALVES)
def test_every_half_widens_exactly(dtype):
    with np.errstate(all="ignore"):
        values = all_bits(dtype)
        x, out = copy_map(values, dtype, F32)
    np.testing.assert_array_equal(out, values)
    assert x.dtype.itemsize == 2


@pytest.mark.parametrize("dtype", HALVES)
def test_narrowing_rounds_to_nearest_even(dtype):
    """Every stored value, the middle of every two neighbours, and the float32 on either side of it."""
    with np.errstate(all="ignore"):
        kept = all_bits(dtype).reshape(-1)
        kept = np.sort(kept[np.isfinite(kept)].astype(np.float64))
        middle = ((kept[1:] + kept[:-1]) / 2).astype(np.float32)
        x = np.concatenate([kept.astype(np.float32), middle, np.nextafter(middle, np.float32(np.inf)),
                            np.nextafter(middle, np.float32(-np.inf)),
                            [np.inf, -np.inf, 65519.996, 65520.0, 65536.0, -1e5, 3.4e38, 1e-45]])
        x = np.resize(x, (-(-x.size // 1021), 1021)).astype(np.float32)
        _, out = copy_map(x, F32, dtype)
        np.testing.assert_array_equal(out.view(np.uint16), x.astype(out.dtype).view(np.uint16))


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_stays_nan_and_overflow_is_infinite(dtype):
    bits = [0x7FC00000, 0x7F800001, 0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF]
    x = np.concatenate([np.array(bits, np.uint32).view(np.float32), np.array([np.inf, 3.4e38, -3.4e38], np.float32)])
    _, out = copy_map(x[None], F32, dtype)
    assert np.isnan(out[0, :5].astype(np.float32)).all()
    np.testing.assert_array_equal(out[0, 5:].astype(np.float32), [np.inf, np.inf, -np.inf])


# --- rows ---


@pytest.mark.parametrize("x_dtype, y_dtype, out_dtype", MIXES)
def test_map_of_mixed_dtypes(x_dtype, y_dtype, out_dtype):
    t = tiles()
    x, y, column = t.array(1100, dtype=x_dtype), t.array(1100, dtype=y_dtype), t.array(1, dtype=y_dtype)
    out, scaled, same = (t.array(1100, dtype=d) for d in (out_dtype, out_dtype, F32))
    for op, (target, *operands) in ((MapCode.MUL, (out, (x, *OWN), (y, *OWN))),
                                    (MapCode.MUL, (scaled, (x, *OWN), (column, Rows.OWN, Cols.ONE))),
                                    (MapCode.LESS, (same, (x, *OWN), 0.5))):
        op = t.builder.op(Opcode.MAP, Domain.TILES, (target, *OWN), *operands, num_rows=11, param=(op,))
        for tile in range(3):
            t.builder.task(op, tile, (0, 1100))
    run(t.builder, t.buffers)
    a, b, c = (wide(t.buffers[i]) for i in (x, y, column))
    assert_rounded(t.buffers[out], a * b, out_dtype, sloppy=1e-7)
    assert_rounded(t.buffers[scaled], a * c, out_dtype, sloppy=1e-7)
    np.testing.assert_array_equal(t.buffers[same], (a < 0.5).astype(np.float32))


# --- matrices ---


@pytest.mark.parametrize("transposed", [0, 1])
@pytest.mark.parametrize("rows, n, k", [(1, 1, 1), (33, 39, 71), (40, 40, 2100)])
def test_dense_gmm(transposed, rows, n, k, blas):
    for dtypes in (*MIXES, (BF16, BF16, F32), (BF16, BF16, F16)):
        assert_dense_gmm(transposed, rows, n, k, *dtypes)


def assert_dense_gmm(transposed, rows, n, k, x_dtype, w_dtype, out_dtype):
    t = tiles(num_rows=rows, tile_rows=48)
    x, out = t.array(k, dtype=x_dtype), t.array(n, dtype=out_dtype)
    w = t.array(*((k, n) if transposed else (n, k)), dtype=w_dtype)
    columns = [(0, n - n // 3), (n - n // 3, n // 3)]
    t.run(Opcode.GMM, (out, *OWN), (x, *OWN_ALL), (w, Rows.ONE, Cols.OWN), columns=columns, param=(transposed,))
    weight = wide(t.buffers[w])
    exact = wide(t.buffers[x]) @ (weight.T if transposed else weight)
    assert_rounded(t.buffers[out], exact, out_dtype)


@pytest.mark.parametrize("x_dtype, dy_dtype, out_dtype", [*MIXES, (BF16, BF16, F32), (BF16, BF16, F16)])
def test_wgrad_of_each_expert(x_dtype, dy_dtype, out_dtype, blas):
    b, route, buffers, _, _, rows = expert_rows(np.random.default_rng(0), num_tokens=80)
    rng, k, n = np.random.default_rng(3), 50, 70
    for cols, num_rows, dtype in ((k, 96, x_dtype), (n, 96, dy_dtype), (n, 3 * k, out_dtype)):
        buffers.append(rng.standard_normal((num_rows, cols)).astype(numpy_dtype(dtype.name.lower())))
    x, dy, out = b.buffer(k, 96, dtype=x_dtype), b.buffer(n, 96, dtype=dy_dtype), b.buffer(n, 3 * k, k, dtype=out_dtype)
    b.tables["routes"][route]["num_slots"] = 24
    operands = (out, *OWN), (x, Rows.EXPERT, Cols.ALL), (dy, Rows.EXPERT, Cols.OWN)
    op = b.op(Opcode.WGRAD, Domain.EXPERTS, *operands, route=route, num_rows=3, blocks=2, param=(33,))
    for row in range(6):
        for cols in ((0, 40), (40, 30)):
            b.task(op, row, cols)
    run(b, buffers, 80)
    exact = np.concatenate([wide(buffers[x])[r].T @ wide(buffers[dy])[r] for r in rows])
    assert_rounded(buffers[out], exact, out_dtype)
    assert not wide(buffers[out])[k : 2 * k].any()  # the expert without rows


def test_wgrad_larger_than_any_block(blas):  # noqa: F811
    t = tiles(num_rows=2051)
    x, dy, out = t.array(530, dtype=BF16), t.array(40, dtype=BF16), t.array(40, rows=530, dtype=BF16)
    operands = (out, *OWN), (x, Rows.ALL, Cols.ALL), (dy, Rows.ALL, Cols.OWN)
    t.builder.task(t.builder.op(Opcode.WGRAD, Domain.EXPERTS, *operands, num_rows=1, param=(530, 2051)), 0, (0, 40))
    run(t.builder, t.buffers)
    assert_rounded(t.buffers[out], wide(t.buffers[x]).T @ wide(t.buffers[dy]), BF16)


def test_wgrad_of_halves_is_added_to_float32(blas):  # noqa: F811
    t = tiles(num_rows=39)
    x, dy, out = t.array(50, dtype=BF16), t.array(70, dtype=BF16), t.array(70, rows=50)
    before = t.buffers[out].copy()
    operands = (out, *OWN), (x, Rows.ALL, Cols.ALL), (dy, Rows.ALL, Cols.OWN), (out, *OWN)
    t.builder.task(t.builder.op(Opcode.WGRAD, Domain.EXPERTS, *operands, num_rows=1, param=(50, 39)), 0, (0, 70))
    run(t.builder, t.buffers)
    assert_rounded(t.buffers[out], before + wide(t.buffers[x]).T @ wide(t.buffers[dy]), F32)


@pytest.mark.parametrize("dtype", HALVES)
def test_products_keep_nan_and_infinity_in_their_row(dtype, blas):
    t = tiles(num_rows=40, tile_rows=40)
    x, w, out = t.array(70, dtype=dtype), t.array(45, rows=70, dtype=dtype), t.array(45, dtype=dtype)
    t.buffers[x][3, 69], t.buffers[x][17, 0] = np.nan, np.inf
    t.buffers[w][0] = 1.0
    t.run(Opcode.GMM, (out, *OWN), (x, *OWN_ALL), (w, Rows.ONE, Cols.OWN), columns=[(0, 45)], param=(0,))
    got = wide(t.buffers[out])
    assert np.isnan(got[3]).all() and (got[17] == np.inf).all()
    assert np.isfinite(np.delete(got, [3, 17], axis=0)).all()
