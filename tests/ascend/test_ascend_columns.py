"""Tile bodies of routers on the emulator of the Ascend kernel, against NumPy: top-k, picks, sums and moves inside rows."""

import numpy as np
import pytest
from native.image_builder import OWN, OWN_ALL
from one_body import run_on_emulator

from hpmoe.kernels.protocol import Cols, MapCode, Reduction, Rows
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import LaunchError
from hpmoe.tile_ops.draws import uniform

FLOATS, INTEGERS = ("float32", "bfloat16", "float16"), ("int32", "int64")
ODD = (0.0, -0.0, np.inf, -np.inf, 3e38, -3e38, 1e-40)


def numbers(rows, cols, dtype, seed=0):
    """Returns [rows, cols] numbers with ties: floats with zeros of both signs and infinities, integers of all magnitudes."""
    rng = np.random.default_rng(seed)
    if dtype in INTEGERS:
        x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, (rows, cols), dtype) >> rng.integers(0, 60, (rows, cols))
        return x.astype(dtype)
    x = np.round(rng.standard_normal((rows, cols)) * 4).astype(np.float32) / 4
    x[1 % rows, :len(ODD)] = ODD[:cols]
    with np.errstate(over="ignore"):
        return x.astype(numpy_dtype(dtype))


def in_order(x, largest):
    """Columns of each row, the largest or the smallest first, equals by column, NaN the largest."""
    wide = x if x.dtype.kind == "i" else x.astype(np.float64)
    def place(value, col):
        is_nan, sign = value != value, -1 if largest else 1
        return sign * is_nan, 0 if is_nan else sign * value, col
    return np.array([sorted(range(len(row)), key=lambda i, row=row: place(row[i], i)) for row in wide.tolist()], np.int32)


@pytest.mark.parametrize("dtype, cols, k", [
    ("float32", 1, 1), ("float32", 7, 3), ("bfloat16", 33, 8), ("float16", 128, 5), ("float32", 160, 160),
    ("float32", 256, 8), ("bfloat16", 417, 40), ("float32", 1024, 512), ("float32", 2048, 9),
    ("int32", 5, 5), ("int32", 200, 33), ("int64", 77, 77), ("int64", 1000, 4)])
@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_choices_in_order(dtype, cols, k, largest):
    x = numbers(6, cols, dtype)
    values, ids = np.zeros((6, k), x.dtype), np.zeros((6, k), np.int32)
    run_on_emulator("TOP_K", 6, (values, *OWN_ALL), (ids, *OWN_ALL), (x, *OWN_ALL), param=(largest,))
    want = in_order(x, largest)[:, :k]
    np.testing.assert_array_equal(ids, want)
    assert values.tobytes() == np.take_along_axis(x, want, axis=1).tobytes()  # zeros with their sign


@pytest.mark.parametrize("largest", [True, False], ids=["largest", "smallest"])
def test_what_is_no_number_is_the_largest(largest):
    x = numbers(5, 70, "float32")
    x[2, ::9], x[4] = np.nan, np.nan
    values, ids = np.zeros_like(x), np.zeros(x.shape, np.int32)
    run_on_emulator("TOP_K", 5, (values, *OWN_ALL), (ids, *OWN_ALL), (x, *OWN_ALL), param=(largest,), tile_rows=8)
    np.testing.assert_array_equal(ids, in_order(x, largest))
    np.testing.assert_array_equal(values, np.take_along_axis(x, ids, axis=1))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("index", INTEGERS)
@pytest.mark.parametrize("rows", ["of each", "of all"])
def test_columns_are_taken(dtype, index, rows):
    x, rng = numbers(11, 40, dtype), np.random.default_rng(1)
    at = rng.integers(-40, 40, (11 if rows == "of each" else 1, 70)).astype(index)
    out = np.zeros((11, 70), x.dtype)
    run_on_emulator("TAKE_COLS", 11, (out, *OWN_ALL), (x, *OWN_ALL),
                    (at, Rows.OWN if rows == "of each" else Rows.ONE, Cols.ALL))
    assert out.tobytes() == np.take_along_axis(x, np.broadcast_to(at, out.shape), axis=1).tobytes()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("index", INTEGERS)
@pytest.mark.parametrize("added", ["numbers", "one number"])
def test_elements_are_added_to_columns(dtype, index, added):
    x, at = numbers(11, 9, dtype), np.random.default_rng(1).integers(-5, 5, (11, 9)).astype(index)
    x[1] = 1
    out, want = np.ones((11, 5), x.dtype), np.zeros((11, 5), np.int64 if dtype in INTEGERS else np.float32)
    values = x.astype(want.dtype) if added == "numbers" else np.full(at.shape, 2, want.dtype)
    np.add.at(want, (np.arange(11)[:, None], at), values)
    run_on_emulator("ADD_COLS", 11, (out, *OWN_ALL), (x, *OWN_ALL) if added == "numbers" else 2.0, (at, *OWN_ALL))
    np.testing.assert_array_equal(out, want.astype(out.dtype))


@pytest.mark.parametrize("name", ["TAKE_COLS", "ADD_COLS"])
@pytest.mark.parametrize("index", [8, -9, 2**31 - 1, -2**31])
def test_an_index_past_the_columns_is_an_error(name, index):
    x, at, out = np.zeros((5, 8), np.float32), np.full((5, 8), 7, np.int32), np.zeros((5, 8), np.float32)
    run_on_emulator(name, 5, (out, *OWN_ALL), (x, *OWN_ALL), (at, *OWN_ALL))
    at[3, 5] = index
    with pytest.raises(LaunchError, match=f"{name} .* past the"):
        run_on_emulator(name, 5, (out, *OWN_ALL), (x, *OWN_ALL), (at, *OWN_ALL))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("reverse", [False, True])
def test_running_sums(dtype, reverse):
    x = numbers(9, 100, dtype)
    x[1] = 2
    out, wide = np.zeros_like(x), x.astype(np.int64 if dtype in INTEGERS else np.float32)
    run_on_emulator("CUMSUM", 9, (out, *OWN_ALL), (x, *OWN_ALL), param=(reverse,))
    want = np.cumsum(wide[:, ::-1], axis=1)[:, ::-1] if reverse else np.cumsum(wide, axis=1)
    np.testing.assert_array_equal(out, want.astype(x.dtype))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed, stream", [(0, 0), (-7, 1), (2**31 - 1, 3)])
def test_draws_are_those_of_a_cpu(dtype, seed, stream):
    out = np.zeros((37, 300), numpy_dtype(dtype))
    of_seed = np.array([[seed]], np.int32), Rows.ONE, Cols.ONE
    run_on_emulator("DRAW", 37, (out, *OWN), of_seed, param=(stream,), cols=(160, 140), tile_rows=16)
    assert out.tobytes() == uniform(seed, range(37), range(300), stream).astype(out.dtype).tobytes()


# outer, size, inner, start, step, and the size of the input's axis
AXES = [(3, 4, 1, 1, 1, 2), (3, 4, 5, 0, 2, 9), (2, 1, 16, 3, 1, 5), (1, 3, 7, 1, 1, 4)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("outer, size, inner, start, step, there", AXES)
def test_elements_of_an_axis_are_picked(dtype, outer, size, inner, start, step, there):
    there = max(there, start + (size - 1) * step + 1)
    x = numbers(9, outer * there * inner, dtype)
    out = np.zeros((9, outer * size * inner), x.dtype)
    half = out.shape[1] // 2 + 1
    run_on_emulator("PICK", 9, (out, *OWN), (x, *OWN_ALL), param=(size, inner, start, step),
                    cols=(half, out.shape[1] - half))
    want = x.reshape(9, outer, there, inner)[:, :, start + step * np.arange(size)]
    assert out.tobytes() == np.ascontiguousarray(want).tobytes()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("outer, there, inner, start, step, size", AXES)
def test_elements_are_placed_along_an_axis(dtype, outer, there, inner, start, step, size):
    size = max(size, start + (there - 1) * step + 1)
    x = numbers(9, outer * there * inner, dtype)
    out = np.ones((9, outer * size * inner), x.dtype)
    half = out.shape[1] // 2 + 1
    run_on_emulator("PLACE", 9, (out, *OWN), (x, *OWN_ALL), param=(size, inner, start, step),
                    cols=(half, out.shape[1] - half))
    want = np.zeros((9, outer, size, inner), x.dtype)
    want[:, :, start + step * np.arange(there)] = x.reshape(9, outer, there, inner)
    assert out.tobytes() == want.tobytes()


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("outer, size, inner", [(3, 5, 1), (2, 300, 1), (2, 3, 20), (1, 130, 40)])
@pytest.mark.parametrize("reduction", Reduction)
def test_groups_of_a_row_are_reduced(dtype, outer, size, inner, reduction):
    x = numbers(5, outer * size * inner, dtype, seed=3)
    x[1] = 1
    out = np.zeros((5, outer * inner), x.dtype)
    run_on_emulator("GROUP_REDUCE", 5, (out, *OWN_ALL), (x, *OWN_ALL), param=(reduction, size, inner))
    wide = x.astype(np.int64 if dtype in INTEGERS else np.float32).reshape(5, outer, size, inner)
    want = (np.max if reduction is Reduction.MAX else np.sum)(wide, axis=2).reshape(out.shape)
    np.testing.assert_array_equal(out, want.astype(out.dtype))


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("reduction", Reduction)
def test_rows_of_integers_are_reduced(dtype, reduction):
    x, out = numbers(9, 2500, dtype), np.zeros((9, 1), dtype)
    run_on_emulator("ROW_REDUCE", 9, (out, Rows.OWN, Cols.ONE), (x, *OWN_ALL), param=(reduction,))
    want = (np.max if reduction is Reduction.MAX else np.sum)(x.astype(np.int64), axis=1, keepdims=True)
    np.testing.assert_array_equal(out, want.astype(dtype))


MIXED = {  # what is stored in another dtype than it is computed in
    "float of integer": (MapCode.COPY, "float32", ["int32"]), "integer of float": (MapCode.COPY, "int32", ["float32"]),
    "half of integer": (MapCode.COPY, "bfloat16", ["int64"]), "wider": (MapCode.COPY, "int64", ["int32"]),
    "narrower": (MapCode.COPY, "int32", ["int64"]), "compared": (MapCode.LESS, "float32", ["int32", "int64"]),
    "chosen": (MapCode.SELECT, "int32", ["float32", "int32", "int32"]),
    "with a column": (MapCode.ADD, "int64", ["int64", None]),
}


@pytest.mark.parametrize("name", MIXED)
def test_integers_and_floats_together(name):
    code, result, dtypes = MIXED[name]
    inputs = [numbers(9, 1 if dtype is None else 70, dtype or "int64", seed) for seed, dtype in enumerate(dtypes)]
    if name == "integer of float":
        inputs[0][1, :4] = np.nan, np.inf, 3e9, -2.75
    out = np.zeros((9, 70), numpy_dtype(result))
    given = [(x, *OWN) if dtype else (x, Rows.OWN, Cols.ONE) for x, dtype in zip(inputs, dtypes, strict=True)]
    run_on_emulator("MAP", 9, (out, *OWN), *given, param=(code,), cols=(64, 6))
    with np.errstate(invalid="ignore"):
        a, *rest = [x.astype(np.float64) if x.dtype.kind not in "iu" else x for x in inputs]
        want = {MapCode.COPY: lambda: a, MapCode.LESS: lambda: a < rest[0], MapCode.ADD: lambda: a + rest[0],
                MapCode.SELECT: lambda: np.where(a.astype(np.int64) != 0, *rest)}[code]()
        np.testing.assert_array_equal(out, want.astype(np.float32).astype(out.dtype) if result == "bfloat16" else
                                      want.astype(out.dtype))


@pytest.mark.parametrize("code, function", [(MapCode.FLOOR_DIV, np.floor_divide), (MapCode.REMAINDER, np.remainder)])
def test_remainders_of_floats_are_exact(code, function):
    rng = np.random.default_rng(0)
    a, b = ((rng.standard_normal((9, 70)) * 10.0 ** rng.integers(-38, 38, (9, 70))).astype(np.float32) for _ in range(2))
    a[0], b[0] = np.round(a[0] % 50), np.round(b[0] % 7) - 3
    a[1, :8], b[1, :8] = (0, -0.0, np.inf, 5, 1, -1, 1e-44, np.nan), (2, -2, 3, 0, np.inf, np.inf, 3e-45, 1)
    out = np.zeros_like(a)
    run_on_emulator("MAP", 9, (out, *OWN), (a, *OWN), (b, *OWN), param=(code,), cols=(70,))
    with np.errstate(all="ignore"):
        want = function(a, b)
    np.testing.assert_array_equal(out, want)
    assert (np.signbit(out) == np.signbit(want))[~np.isnan(want)].all()


@pytest.mark.parametrize("name, operands, param", [
    ("TOP_K", [(4, "float32"), (4, "int32"), (2049, "float32")], (1,)),
    ("TAKE_COLS", [(4, "float32"), (2049, "bfloat16"), (4, "int32")], ()),
    ("ADD_COLS", [(1025, "int64"), (4, "int64"), (4, "int32")], ()),
    ("CUMSUM", [(2049, "float32"), (2049, "float32")], (0,))])
def test_rows_wider_than_a_piece_are_refused_by_the_kernel(name, operands, param):
    arrays = [np.zeros((3, cols), numpy_dtype(dtype)) for cols, dtype in operands]
    with pytest.raises(LaunchError, match=f"{name} .* has no body in this kernel"):
        run_on_emulator(name, 3, *((a, *OWN_ALL) for a in arrays), param=param)
