"""Tile sizes change numbers only by the order of sums in tiles of few rows, or of one column."""

import numpy as np
import pytest
from helpers import Layer, numpy_moe_ffn, relative_error, run_spmd, stages
from mindspore import Tensor, mint

from hpmoe import moe_ffn
from hpmoe.kernels import use_amx
from hpmoe.kernels.native import skinny_rows
from hpmoe.support.dtypes import numpy_dtype

DTYPES = pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
LAYER = Layer(ep=2, T=300, H=64, I=48, E=4, K=2)


@pytest.fixture(autouse=True)
def vector_units():
    use_amx(False)
    yield
    use_amx(True)


def products(dtype, rows, cols=1024, whole=False):
    """Returns x @ w and x @ v^T of 1200 rows, in tiles of `rows` rows; `whole` numbers have exact sums in any order."""
    rng, shapes = np.random.default_rng(0), ((1200, 96), (96, 70), (70, 96))
    arrays = [(rng.integers(-2, 3, s) if whole else rng.standard_normal(s)).astype(numpy_dtype(dtype)) for s in shapes]
    f = stages(rows=rows, cols=cols)["fused"](lambda x, w, v: (x @ w, x @ mint.transpose(v, 0, 1)))
    return [out.asnumpy().astype(np.float32) for out in f(*map(Tensor, arrays))]


def assert_same(one, other):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("cols, dtype", [(2, "float32"), (16, "bfloat16"), (31, "float16"), (48, "float32")])
def test_widths_of_tiles_change_no_bit(dtype, cols):
    args = [a.astype(numpy_dtype(dtype)) if a.dtype == np.float32 else a for a in LAYER.arguments()]
    cotangent = LAYER.cotangent().astype(numpy_dtype(dtype))
    for rows in (1024, 16):
        want, got = (run_spmd(stages(rows=rows, cols=c)["fused"](moe_ffn), 2, args, [cotangent]) for c in (1024, cols))
        assert_same([np.asarray(a) for part in want for a in part], [np.asarray(a) for part in got for a in part])


@DTYPES
def test_tile_heights_change_bits_only_between_few_and_many_rows(dtype):
    many = [300, 400, 600]  # 1200 is a multiple of these, which leave no few rows over
    least, most = sorted([skinny_rows(dtype), skinny_rows(dtype, True)])
    assert most < min(many)
    for rows in many:
        assert_same(products(dtype, rows), products(dtype, 1200))
    few = [rows for rows in (1, 7, 30, 48) if rows <= least]
    for rows in few[:-1]:
        assert_same(products(dtype, rows), products(dtype, few[-1]))


@pytest.mark.parametrize("rows, cols, dtype", [
    (1, 1, "float32"), (16, 1, "bfloat16"), (48, 64, "float16"), (48, 64, "float32"), (100, 64, "bfloat16"),
    (1200, 1, "float32")])
def test_elsewhere_it_is_the_order_of_sums(dtype, rows, cols):
    assert_same(products(dtype, rows, cols, whole=True), products(dtype, 1200, whole=True))
    for got, want in zip(products(dtype, rows, cols), products(dtype, 1200), strict=True):
        assert relative_error(got, want) < {"float32": 1e-6, "bfloat16": 8e-3, "float16": 1e-3}[dtype]


def test_a_layer_of_any_tiles_is_the_same_but_for_that():
    args, cotangent = LAYER.arguments(), LAYER.cotangent()
    want, grads = numpy_moe_ffn(args, cotangent)
    for rows, cols in ((1024, 1024), (100, 40), (16, 16), (1, 64)):
        outs, got = run_spmd(stages(rows=rows, cols=cols)["fused"](moe_ffn), 2, args, [cotangent])
        assert max(relative_error(np.asarray(a), b) for a, b in zip((*outs, *got), (want, *grads), strict=True)) < 2e-6
