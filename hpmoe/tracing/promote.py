"""Type promotion: the dtype of an elementwise operation, as MindSpore decides it."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Sequence
from typing import TypeVar, overload

from hpmoe.ir.avals import Rows
from hpmoe.ir.program import Var
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.reduction import broadcast_to
from hpmoe.primitives.shape import cast, dtype_param
from hpmoe.support.dtypes import HALVES, REALS
from hpmoe.tracing.calls import Rule
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.tracer import Operand, Tracer

X = TypeVar("X")

_RANK = {"bool": 0, "int8": 1, "uint8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5, "bfloat16": 5,
         "float32": 6, "float64": 7}


def _kind(dtype: str) -> int:
    return 0 if dtype == "bool" else 2 if dtype in REALS else 1


def promote_dtypes(dtypes: Sequence[str], numbers: Sequence[object]) -> str:
    """Returns the common dtype of tensors and Python numbers; a number only matters if it is of a wider kind.

    Example:
        >>> promote_dtypes(["float16", "bfloat16"], []), promote_dtypes(["int32"], [0.5])
        ('float32', 'float32')
    """
    best = dtypes[0] if dtypes else "bool"
    for dtype in dtypes[1:]:
        if {best, dtype} == {"float16", "bfloat16"}:
            best = "float32"
        best = max(best, dtype, key=_RANK.__getitem__)
    for number in numbers:
        dtype = "bool" if isinstance(number, bool) else "float32" if isinstance(number, float) else "int64"
        best = dtype if _kind(dtype) > _kind(best) else best
    return best


def scaled_dtype(operands: Sequence[Operand], numbers: Sequence[object] = ()) -> str:
    """Returns the dtype of a product or quotient; beside others, a tensor without dimensions counts as a number of its kind.
    """
    tensors = [o.hpmoe_aval for o in operands if isinstance(o, Tracer)]
    arrays = [a.dtype for a in tensors if a.shape != ()] or [a.dtype for a in tensors]
    best = promote_dtypes(arrays, [*numbers, *(o for o in operands if not isinstance(o, Tracer))])
    wider = [a.dtype for a in tensors if _kind(a.dtype) > _kind(best)]
    return promote_dtypes(wider, []) if wider else best


@overload
def to_dtype(r: Recorder, x: Tracer, dtype: str) -> Tracer: ...
@overload
def to_dtype(r: Recorder, x: Operand, dtype: str) -> Operand: ...
def to_dtype(r: Recorder, x: Operand, dtype: str) -> Operand:
    return x if not isinstance(x, Tracer) or x.hpmoe_aval.dtype == dtype else r(cast, r.materialize(x), dtype=dtype)


def to_float(r: Recorder, x: Tracer) -> Tracer:
    return to_dtype(r, x, "float32") if x.hpmoe_aval.dtype not in REALS else x


def floats_only(x: Tracer, what: str) -> Tracer:
    """Returns x; raises TraceError if it has no floats, as MindSpore rounds integers on some devices only."""
    if x.hpmoe_aval.dtype not in REALS:
        raise not_traceable(f"{what} of {x.hpmoe_aval}", "only floats have it", "x.astype(mindspore.float32) first")
    return x


def emit(r: Recorder, primitive: Primitive, *operands: Operand, dtype: str | None = None) -> Tracer:
    """Adds an equation of an elementwise primitive on operands brought to one dtype; a bool stays, and counts as 0 or 1."""
    tensors = [o.hpmoe_aval.dtype for o in operands if isinstance(o, Tracer)]
    dtype = dtype or promote_dtypes(tensors, [o for o in operands if not isinstance(o, Tracer)])
    cast_all = [to_dtype(r, o, dtype) if isinstance(o, Tracer) and isinstance(o.hpmoe_atom, Var) and (
        o.hpmoe_aval.dtype != "bool" or len(tensors) == 1) else o for o in operands]
    if dtype != "float32" and all(not isinstance(o, Tracer) or o.hpmoe_aval.shape == () for o in operands):
        cast_all = [to_dtype(r, r.materialize(o), dtype) for o in cast_all]
    return r(primitive, *cast_all)


def in_float32(rule: Rule) -> Rule:
    """Returns a rule of several equations that computes half-precision operands in float32 and rounds its results once."""
    signature = inspect.signature(rule)

    @functools.wraps(rule)
    def computed(r: Recorder, *args: object, **kwargs: object) -> object:
        dtypes = [o.hpmoe_aval.dtype for o in (*args, *kwargs.values()) if isinstance(o, Tracer)]
        if not any(d in HALVES for d in dtypes):
            return rule(r, *args, **kwargs)
        dtype = r.dtype_name(signature.bind(r, *args, **kwargs).arguments.get("dtype")) or promote_dtypes(dtypes, [])
        out = rule(r, *(wide(r, a) for a in args), **{k: wide(r, v) for k, v in kwargs.items()})
        return tuple(to_dtype(r, o, dtype) for o in out) if isinstance(out, tuple) else to_dtype(r, out, dtype)
    return computed


def wide(r: Recorder, x: X) -> X:
    """Converts a half-precision tensor to float32; returns other values unchanged."""
    return to_dtype(r, x, "float32") if isinstance(x, Tracer) and x.hpmoe_aval.dtype in HALVES else x


def full(r: Recorder, shape: tuple[int | Rows, ...], value: Operand, dtype: str) -> Tracer:
    """Returns an array of one value."""
    usual = value.hpmoe_aval.dtype if isinstance(value, Tracer) else "float32"
    return r(broadcast_to, value, shape=shape, **dtype_param(dtype, usual))
