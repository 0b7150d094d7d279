"""Values that have gradients: arrays of floating point numbers."""

from __future__ import annotations

from hpmoe.ir.avals import Aval
from hpmoe.ir.program import Atom, Var

FLOATS = ("float32", "float16", "bfloat16", "float64")


def is_differentiable(atom: Atom) -> bool:
    return isinstance(atom, Var) and isinstance(atom.aval, Aval) and atom.aval.dtype in FLOATS
