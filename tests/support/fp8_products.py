"""Functions of fp8 and mxfp8 weights, as inference is given them: W8A8 on one rank of the Ascend emulator."""

import functools

import numpy as np
import rounded_rows
from ascend_helpers import ProgramRun

import hpmoe
from hpmoe import ShapeDtypeStruct


def multiplied(dtype):
    return functools.partial(rounded_rows.multiplied, transposed=dtype != "mxfp8", row_dtype=dtype)


def fp8_run(dtype, tokens=262, depth=576, columns=264, experts=2, prefetch=False):
    """Two tiles each way, in two steps, the first one of two parts of L0 and two halves of columns; scales of all sizes."""
    of_scale = (columns, depth // 32) if dtype == "mxfp8" else (columns,)
    given = (ShapeDtypeStruct((tokens, depth), "float32"), ShapeDtypeStruct((tokens, 1), "int32"),
             ShapeDtypeStruct((experts, columns, depth), "uint8"),
             ShapeDtypeStruct((experts, *of_scale), "uint8" if dtype == "mxfp8" else "float32"))
    run = ProgramRun(hpmoe.trace(multiplied(dtype), *given), rows=132, cols=272, prefetch=prefetch)
    rng = np.random.default_rng(0)
    run.inputs[1][...] = np.arange(tokens)[:, None] % experts
    codes = rng.integers(0, 256, run.inputs[2].shape).astype(np.uint8)
    run.inputs[2] = np.where((codes & 127) == 127, 0, codes).astype(np.uint8)  # none of them NaN
    if dtype == "mxfp8":
        sizes = 2.0 ** np.repeat(rng.integers(-6, 7, (tokens, depth // 32)), 32, 1)
        run.inputs[0] = (run.inputs[0] * sizes).astype(np.float32)
        run.inputs[3] = rng.integers(118, 130, run.inputs[3].shape).astype(np.uint8)
    else:
        run.inputs[3] = np.abs(run.inputs[3]) / 100
    return run
