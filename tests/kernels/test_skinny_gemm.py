"""Products of few rows, and gradients of weights from few rows: exact if every sum is, for all sizes and dtypes."""

import needs
import numpy as np
import pytest
from bodies_in_tiles import run, tiles
from native.image_builder import OWN, OWN_ALL

from hpmoe.kernels import use_amx
from hpmoe.kernels.native import few_terms, skinny_rows
from hpmoe.kernels.protocol import Cols, Domain, Dtype, Opcode, Rows

F32, BF16, F16 = Dtype.FLOAT32, Dtype.BFLOAT16, Dtype.FLOAT16
DTYPES = pytest.mark.parametrize("dtype", [F32, BF16, F16])


@pytest.fixture(params=["vectors", "matrix units"], autouse=True)
def units(request):
    matrix_units = request.param == "matrix units"
    found = use_amx(matrix_units)
    if matrix_units:
        needs.has_amx(found)
    yield matrix_units
    use_amx(True)


def whole_numbers(rng, *shape):
    """Small enough that every sum of their products is a float32."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def product(x, w, dtype, transposed):
    t = tiles(num_rows=len(x), tile_rows=len(x))
    n = w.shape[1]
    out, left = t.array(n), t.array(x.shape[1], values=x, dtype=dtype)
    right = t.array(*((len(w), n, w.T.copy()) if transposed else (n, len(w), w)), dtype=dtype)
    t.run(Opcode.GMM, (out, *OWN), (left, *OWN_ALL), (right, Rows.ONE, Cols.OWN), columns=[(0, n)], param=(transposed,))
    return t.buffers[out]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_over_few_rows_use_matrix_units_if_there_are_any(units, dtype):
    assert (few_terms(dtype) > 0) is not units


@DTYPES
@pytest.mark.parametrize("transposed", [0, 1])
def test_products_are_exact_where_sums_are(transposed, dtype):
    rng = np.random.default_rng(0)
    few = skinny_rows(dtype.name, transposed)
    for m, n, k in [(1, 1, 1), (1, 64, 8), (2, 31, 7), (3, 33, 9), (6, 70, 15), (7, 32, 16), (13, 100, 17), (57, 33, 65),
                    (few, 95, 40), (few + 1, 33, 65), (few, 33, 1100), (4, 1030, 33), (5, 34, 2085)]:
        x, w = whole_numbers(rng, m, k), whole_numbers(rng, k, n)
        np.testing.assert_array_equal(product(x, w, dtype, transposed), x @ w, str((m, n, k)))


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("transposed", [0, 1])
def test_rows_do_not_depend_on_how_few_they_are(transposed, dtype):
    rng, few = np.random.default_rng(1), min(30, skinny_rows(dtype.name, transposed))
    x, w = rng.standard_normal((few, 1100)), rng.standard_normal((1100, 70))
    whole = product(x, w, dtype, transposed)
    for m in (1, 4, min(13, few)):
        np.testing.assert_array_equal(product(x[:m], w, dtype, transposed), whole[:m])


@pytest.mark.parametrize("transposed", [0, 1])
def test_long_sums_are_rounded_as_few_times_as_short_ones(transposed):
    """Groups of terms are summed alone: one after the other, the roundings of 4096 terms would come to thrice as much."""
    rng = np.random.default_rng(4)
    x, w = rng.random((8, 4096), np.float32), rng.random((4096, 64), np.float32)
    exact = x.astype(float) @ w
    error = (product(x, w, F32, transposed) - exact) / exact
    assert np.sqrt((error**2).mean()) < 5e-7


@DTYPES
@pytest.mark.parametrize("transposed", [0, 1])
def test_nan_stays_in_its_row_and_column(transposed, dtype):
    """Elements past the last term of a vector belong to another sum."""
    x, w, expected = np.ones((3, 21)), np.ones((21, 38)), np.full((3, 38), 21.0)
    for array in (x[1], w[:, 1], expected[1], expected[:, 1]):
        array[:] = np.nan
    np.testing.assert_array_equal(product(x, w, dtype, transposed), expected)


def gradient(x, dy, dtype, main=None, memory=None):
    t = tiles(num_rows=len(x))
    (k, m), n = x.shape, dy.shape[1]
    out = t.array(n, rows=m, dtype=F32 if main is not None else dtype)
    if memory is not None:
        t.buffers[out] = memory.view(t.buffers[out].dtype)[: m * n].reshape(m, n)
    operands = [(out, *OWN), (t.array(m, values=x, dtype=dtype), Rows.ALL, Cols.ALL),
                (t.array(n, values=dy, dtype=dtype), Rows.ALL, Cols.OWN)]
    if main is not None:
        operands.append((t.array(n, rows=m, values=np.full((m, n), main)), *OWN))
    t.builder.task(t.builder.op(Opcode.WGRAD, Domain.EXPERTS, *operands, num_rows=1, param=(m, k, 1)), 0, (0, n))
    run(t.builder, t.buffers, k)
    return t.buffers[out].astype(np.float32)


@DTYPES
def test_gradients_are_exact_where_sums_are(dtype):
    rng, few = np.random.default_rng(2), few_terms(dtype.name)
    for m, n, k in [(1, 1, 1), (4, 32, 2), (5, 33, 3), (7, 70, 12), (50, 31, 28), (10, 1030, 4), (31, 66, few),
                    (34, 33, few + 1)]:
        x, dy = whole_numbers(rng, k, m), whole_numbers(rng, k, n)
        np.testing.assert_array_equal(gradient(x, dy, dtype), x.T @ dy, str((m, n, k)))
        np.testing.assert_array_equal(gradient(x, dy, dtype, main=7.0), x.T @ dy + 7, str((m, n, k)))


@DTYPES
@pytest.mark.parametrize("offset", [0, 8, 16])
def test_a_gradient_larger_than_the_caches(offset, dtype):
    """It is written past them, as far as its rows are aligned; nothing beside it is."""
    rng, m, n = np.random.default_rng(3), 2070, 4100 if dtype != F32 else 2068
    x, dy = whole_numbers(rng, 3, m), whole_numbers(rng, 3, n)
    memory = np.full(m * n * (4 if dtype == F32 else 2) + 128, 7, np.uint8)
    start = -memory.ctypes.data % 64 + offset
    size = m * n * (4 if dtype == F32 else 2)
    np.testing.assert_array_equal(gradient(x, dy, dtype, memory=memory[start : start + size]), x.T @ dy)
    assert (memory[:start] == 7).all() and (memory[start + size :] == 7).all()
