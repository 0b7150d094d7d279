"""Dense matmul of rows by one weight matrix, and the gradient of that matrix."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
from mindspore import mint

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Builder, Equation, is_differentiable
from hpmoe.ir.tile_op import Access
from hpmoe.primitives.in_float32 import check_dtypes, in_float32
from hpmoe.primitives.in_rows import has_groups, in_each_row, sum_by_group
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import AllRows
from hpmoe.tile_ops.matmuls import GMM, WGRAD
from hpmoe.tile_ops.params import EarlyMatmul, WeightBlock
from hpmoe.tile_ops.reductions import COL_SUM
from hpmoe.tile_ops.row_modes import RowMode

matmul = Primitive("matmul")
weight_grad = Primitive("weight_grad")
matmul.reference(lambda x, w, *, transpose=False: x @ (w.T if transpose else w))
matmul.eager(in_float32(lambda x, w, *, transpose=False: mint.matmul(x, mint.transpose(w, 0, 1) if transpose else w)))
matmul.tile(in_each_row(lambda tiler, eqn: tile_matmul(tiler, eqn, row_modes.ONE, eqn.params.get("transpose", False))))
weight_grad.eager(lambda x, g: mint.matmul(mint.transpose(x, 0, 1), g))


@matmul.infer
def _(x: ShapeDtypeStruct, w: ShapeDtypeStruct, *, transpose: bool = False) -> ShapeDtypeStruct:
    check_argument(len(w.shape) == 2 and len(x.shape) >= 1, "matmul", "operands", f"{x} and {w}",
                   "rows [..., K] and one weight matrix")
    inner, outer = (w.shape[1], w.shape[0]) if transpose else w.shape
    check_argument(x.shape[-1:] == (inner,), "matmul", "operands", f"{x} and {w}" + (" transposed" if transpose else ""),
                   "equal in their inner dimension")
    check_dtypes("matmul", "the left operand", x.dtype, "the right operand", w.dtype)
    return ShapeDtypeStruct((*x.shape[:-1], outer), x.dtype)


@matmul.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    (x, w), g, transposed = eqn.inputs, cotangents[0], eqn.params.get("transpose", False)
    dx = b.add(matmul, g, w, transpose=not transposed) if is_differentiable(x) else None
    dw = b.add(weight_grad, *((g, x) if transposed else (x, g))) if is_differentiable(w) else None
    return [dx, dw]


def tile_matmul(tiler: Tiler, eqn: Equation, weight_rows: RowMode, transposed: bool) -> None:
    """Emits one task for each unit of rows and range of output columns, over the whole inner dimension."""
    (x, w), out, replicas = eqn.inputs[:2], eqn.outputs[0], eqn.inputs[3:]
    if len(x.aval.shape) < 2:
        tiler.refuse(f"multiplies the vector {x.aval}; reshape it to [1, K]")
    tiler.new(out)
    cols = col_modes.ALL if transposed else col_modes.OWN
    weights = [tiler.at(w, weight_rows, cols), *(tiler.at(r, row_modes.REPLICA, cols) for r in replicas)]
    tiler.emit(GMM, tiler.rows_of(out), tiler.at(out), tiler.at(x, cols=col_modes.ALL), *weights,
               params=EarlyMatmul(bool(transposed)))


@weight_grad.infer
def _(x: ShapeDtypeStruct, g: ShapeDtypeStruct, *main: ShapeDtypeStruct) -> ShapeDtypeStruct:
    check_argument(x.shape[:-1] == g.shape[:-1], "weight_grad", "operands", f"{x} and {g}", "equal but for columns")
    return accumulated("weight_grad", ShapeDtypeStruct((x.shape[-1], g.shape[-1]), x.dtype), main)


def accumulated(who: str, out: ShapeDtypeStruct, main: tuple[ShapeDtypeStruct, ...]) -> ShapeDtypeStruct:
    """Returns the abstract value of a weight gradient, or of the float32 array to which it is added."""
    for aval in main:
        check_argument(aval == ShapeDtypeStruct(out.shape, "float32"), who, "main gradient", aval,
                       f"{ShapeDtypeStruct(out.shape, 'float32')}")
    return main[0] if main else out


@weight_grad.reference
def _(x: np.ndarray, g: np.ndarray, *main: np.ndarray) -> np.ndarray:
    out = x.reshape(-1, x.shape[-1]).T @ g.reshape(-1, g.shape[-1])
    return main[0] + out if main else out


@weight_grad.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    (x, g), ct = eqn.inputs[:2], cotangents[0]
    return [b.add(matmul, g, ct, transpose=True), b.add(matmul, x, ct, transpose=False), *[ct] * len(eqn.inputs[2:])]


@weight_grad.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    if has_groups(tiler, eqn.inputs[0]):
        sum_by_group(tiler, eqn, _tile_weight_grad)
    else:
        _tile_weight_grad(tiler, eqn)


def _tile_weight_grad(tiler: Tiler, eqn: Equation) -> None:
    (x, _, *main), out = eqn.inputs, eqn.outputs[0]
    if tiler.buffer(x).route >= 0:
        _tile_received_weight_grad(tiler, eqn)
        return
    tiler.new(out)
    tile_weight_grad(tiler, eqn, tiler.at(out), main)


def _tile_received_weight_grad(tiler: Tiler, eqn: Equation) -> None:
    """Emits tasks that sum received rows by expert first, then over experts, each gradient as one long row."""
    x, out = eqn.inputs[0], eqn.outputs[0]
    route, (rows, cols) = tiler.routes[tiler.buffer(x).route], fixed(out.aval.shape)
    experts, width = route.num_local_experts, rows * cols
    partial = tiler.hidden(f"{tiler.names(out)}.by_expert", experts * rows, cols)
    tiler.new(out)
    total = tiler.at(out)
    tile_weight_grad(tiler, eqn, dataclasses.replace(total, buffer=partial))
    long_sum, long_parts = (tiler.view(b, out, (n, width), width, n) for b, n in ((total.buffer, 1), (partial, experts)))
    tiler.emit(COL_SUM, AllRows(1, height=experts), dataclasses.replace(total, buffer=long_sum),
               dataclasses.replace(total, buffer=long_parts, rows=row_modes.ALL))


def tile_weight_grad(tiler: Tiler, eqn: Equation, out: Access, main: Sequence[Atom] = (), of: str | None = None,
                     returned: Sequence[Access] = ()) -> None:
    """Emits one task for each block of weight rows and range of columns of `out`, for all local experts or those of `of`.

    A float32 array `main` is read where `out` is written, and added, and so is what other ranks have `returned`.
    """
    x, g = eqn.inputs[:2]
    height = fixed(x.aval.shape)[-1]
    block = max(1, min(tiler.tile_cols, height))
    domain, mode = tiler.experts_of(x, blocks=-(-height // block), of=of)
    tiler.emit(WGRAD, domain, out, tiler.at(x, mode, col_modes.BLOCK), tiler.at(g, mode), *returned, *map(tiler.at, main),
               params=WeightBlock(block))
