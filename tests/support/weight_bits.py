"""Weights rounded by tasks of the Ascend kernel on its emulator, beside NumPy's bits."""

import numpy as np
from native.image_builder import OWN_ALL
from one_body import run_on_emulator

from hpmoe.kernels.protocol import Cols, Rows
from hpmoe.support.dtypes import rounded, widen
from hpmoe.tile_ops.row_formats import WEIGHT_FORMATS, quantized, scales_in

MATRICES = {  # of so many experts, depth and columns, and tiles of so many rows
    "one column": (2, 100, 1, 16), "a block of UB and more": (1, 33, 17, 32), "several tiles deep": (2, 300, 20, 16),
    "columns in groups": (2, 70, 150, 64), "a tile of one matrix and the next": (3, 40, 24, 32), "one row": (2, 1, 5, 8)}


def assert_bits_of_numpy(name, element, dtype):
    """Columns of zeros, of numbers whose scale is one, with NaN and with an infinity among them."""
    experts, depth, cols, tile_rows = MATRICES[name]
    w, form = np.random.default_rng(0).standard_normal((experts, depth, cols)).astype(np.float32), WEIGHT_FORMATS[element]
    w[0, :, 0] = 0
    if cols > 4:
        w[0, 0, 1], w[0, -1, 2], w[-1, :, 3] = np.nan, -np.inf, -1e-45
    given = rounded(w, dtype)
    packed = quantized(np.ascontiguousarray(widen(given).swapaxes(1, 2)).reshape(-1, depth), form)
    want, codes = scales_in(packed, depth, form), np.zeros((experts * cols, depth), np.uint8)
    scales = np.zeros_like(want)
    operands = (scales, *OWN_ALL), (codes, *OWN_ALL), (given.reshape(-1, depth), Rows.ALL, Cols.ALL)
    run_on_emulator("QUANTIZE_WEIGHT", experts * cols, *operands, param=(*form.words(), cols), tile_rows=tile_rows)
    np.testing.assert_array_equal(codes, packed[:, :depth])
    np.testing.assert_array_equal(scales, want)
