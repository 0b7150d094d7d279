"""Random numbers that their seed and places decide: the same in every interpreter, kernel and recomputation."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import Equation
from hpmoe.primitives.outside_graphs import values_of
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.draws import DRAW, uniform as drawn
from hpmoe.tile_ops.params import Stream

draw = Primitive("draw", differentiable=False)
draw.reference(lambda seed, *, shape, stream: drawn(int(np.reshape(seed, ())), range(shape[0]), range(shape[1]), stream))


@draw.infer
def _(seed: ShapeDtypeStruct, *, shape: tuple[int, int], stream: int) -> ShapeDtypeStruct:
    check_argument(seed.dtype == "int32" and seed.shape in ((), (1,)), "draw", "seed", seed, "i32[] or i32[1]",
                   "Pass an int32 tensor of one element.")
    check_argument(len(shape) == 2 and all(isinstance(d, int) for d in shape), "draw", "shape", shape,
                   "rows and columns, both known")
    return ShapeDtypeStruct(tuple(shape), "float32")


@draw.eager
def _(seed: Tensor, *, shape: tuple[int, int], stream: int) -> Tensor:
    return Tensor(drawn(int(values_of("hpmoe.route", seed).reshape(())), range(shape[0]), range(shape[1]), stream))


@draw.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (seed,), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out)
    tiler.emit(DRAW, tiler.rows_of(out), tiler.at(out), tiler.at(seed, row_modes.ONE, col_modes.ONE, dtypes=("int32",)),
               params=Stream(eqn.params["stream"]))
