"""Functions of int8 weights, as inference is given them: transposed, a row for each column."""

import functools

import numpy as np
import rounded_rows
from ascend_helpers import ProgramRun

import hpmoe
from hpmoe import ShapeDtypeStruct

multiplied = functools.partial(rounded_rows.multiplied, transposed=True, row_dtype="int8")


def layer(x, ids, weights, gate_up, gate_up_scale, down, down_scale):
    """A MoE-FFN, W8A8."""
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=gate_up.shape[0])
    both = hpmoe.grouped_matmul(rows, gate_up.swapaxes(1, 2), route, scale=gate_up_scale, row_dtype="int8")
    out = hpmoe.grouped_matmul(hpmoe.swiglu(both), down.swapaxes(1, 2), route, scale=down_scale, row_dtype="int8")
    return hpmoe.combine(out, route, weights)


def int8_run(transform=lambda f: f, tokens=21, hidden=80, inner=48, experts=3, prefetch=False):
    """The layer on the Ascend emulator."""
    shapes = {"x": ("bfloat16", tokens, hidden), "ids": ("int32", tokens, 2), "weights": ("float32", tokens, 2),
              "gate_up": ("int8", experts, 2 * inner, hidden), "gate_up_scale": ("float32", experts, 2 * inner),
              "down": ("int8", experts, hidden, inner), "down_scale": ("float32", experts, hidden)}
    program = transform(layer).lower(*(ShapeDtypeStruct(tuple(s), dtype) for dtype, *s in shapes.values())) if hasattr(
        transform, "apply_to") else hpmoe.trace(layer, *(ShapeDtypeStruct(tuple(s), dtype) for dtype, *s in shapes.values()))
    run = ProgramRun(program, rows=8, cols=32, prefetch=prefetch)
    rng = np.random.default_rng(0)
    run.inputs[1][...] = [[0, 1 + i % 2] for i in range(tokens)]
    for i in (3, 5):
        run.inputs[i] = rng.integers(-127, 128, run.inputs[i].shape, np.int8)
        run.inputs[i + 1] = np.abs(run.inputs[i + 1]) / 100
    return run
