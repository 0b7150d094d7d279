"""Values that are NaN, infinite or out of a range are counted, and others put in their place."""

from __future__ import annotations

import numpy as np

from hpmoe.ir.avals import Aval
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.support.errors import check_argument
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.guards import GUARD, guarded
from hpmoe.tile_ops.params import Fill, Filled

LARGEST = float(np.finfo(np.float32).max)  # of the dtypes that tile tasks compute in; what exceeds it is infinite there
guard = Primitive("guard")


@guard.infer
def _(values: Aval, tested: Aval, low: Aval, high: Aval, *, fill: str) -> tuple[Aval, Aval]:
    fits = len(values.shape) > 0 and values.shape == tested.shape
    check_argument(fits, "guard", "values and tested", f"{values} and {tested}", "rows of the same shape")
    return values, Aval((*values.shape[:-1], 1), "float32")


@guard.reference
def _(values: np.ndarray, tested: np.ndarray, low: float, high: float, *, fill: str) -> tuple[np.ndarray, np.ndarray]:
    return guarded(values, tested, low, high, Fill[fill.upper()])


@guard.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    """A value in range has its own gradient and, where it is in a mean, its share of those of what the mean stands for."""
    _, tested, low, high = eqn.inputs
    fill = "spread" if eqn.params["fill"] == "mean" else "zero"
    return [b.add(guard, cotangents[0], tested, low, high, fill=fill)[0], None, None, None]


@guard.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    (values, tested, low, high), outputs = eqn.inputs, eqn.outputs
    for out in outputs:
        tiler.new(out)
    rows = (tiler.at(v, cols=col_modes.ALL) for v in (*outputs, values, tested))
    limits = (tiler.read(limit, outputs[0]) for limit in (low, high))
    tiler.emit(GUARD, tiler.rows_of(values), *rows, *limits, cols=0, params=Filled(Fill[eqn.params["fill"].upper()]))
