"""The maximum along one axis."""

from __future__ import annotations

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.primitives.elementwise import div, equal, mul
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.reduction import reduce_sum, reduced, tile_over_columns
from hpmoe.primitives.shape import cast, reshape
from hpmoe.tile_ops.params import Reduction

reduce_max = Primitive("reduce_max")
reduce_max.reference(lambda x, *, axis, keepdims: x.max(axis=axis, keepdims=keepdims))
reduce_max.tile(lambda tiler, eqn: tile_over_columns(tiler, eqn, Reduction.MAX))


@reduce_max.infer
def _(x: ShapeDtypeStruct, *, axis: int, keepdims: bool) -> ShapeDtypeStruct:
    return reduced("reduce_max", x, axis, keepdims)


@reduce_max.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    x, axis = eqn.inputs[0], eqn.params["axis"]
    kept = x.aval.shape[:axis] + (1,) + x.aval.shape[axis + 1:]
    keep = (lambda v: v) if eqn.params["keepdims"] else (lambda v: b.add(reshape, v, shape=kept))
    hits = b.add(cast, b.add(equal, x, keep(eqn.outputs[0])), dtype=x.aval.dtype)
    share = b.add(div, keep(cotangents[0]), b.add(reduce_sum, hits, axis=axis, keepdims=True))
    return [b.add(mul, hits, share)]
