"""MindSpore's choices between values, and arrays of one value."""

from __future__ import annotations

import math

from hpmoe.primitives import elementwise as e
from hpmoe.primitives.reduction import broadcast_to
from hpmoe.support.dtypes import FLOATS
from hpmoe.tracing.calls import call, calls
from hpmoe.tracing.draws import refuse_draw
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.promote import emit, full, promote_dtypes, to_dtype
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.tracer import Operand, Tracer

LARGEST = {"float32": (2 - 2.0**-23) * 2.0**127, "bfloat16": (2 - 2.0**-7) * 2.0**127, "float16": 65504.0}


@call("Select", "Where")
def select(r: Recorder, condition: Tracer, input: Tracer, other: Operand) -> Tracer:
    dtype = promote_dtypes([o.hpmoe_aval.dtype for o in (input, other) if isinstance(o, Tracer)],
                           [o for o in (input, other) if not isinstance(o, Tracer)])
    return choose(r, to_dtype(r, condition, "bool"), input, other, dtype)


def choose(r: Recorder, condition: Tracer, input: Operand, other: Operand, dtype: str) -> Tracer:
    """Selects from two operands as `dtype`; one may be a number. A literal alone would turn bools into numbers."""
    values = [to_dtype(r, r.materialize(o) if dtype == "bool" else o, dtype) for o in (input, other)]
    return emit(r, e.select, condition, *values, dtype=dtype)


@call("NanToNum")
def nan_to_num(r: Recorder, input: Tracer, nan: float | None = None, posinf: float | None = None,
               neginf: float | None = None) -> Tracer:
    dtype, out = input.hpmoe_aval.dtype, input
    if dtype not in FLOATS:
        return input
    largest = LARGEST[dtype]
    for is_it, value in ((emit(r, e.not_equal, input, input), 0.0 if nan is None else nan),
                         (emit(r, e.equal, input, math.inf), largest if posinf is None else posinf),
                         (emit(r, e.equal, input, -math.inf), -largest if neginf is None else neginf)):
        out = choose(r, is_it, value, out, dtype)
    return out


@call("FuncDropoutExt")
def dropout(r: Recorder, input: Tracer, p: float, training: bool, *unused: object) -> Tracer:
    if training:
        refuse_draw(r, "the random operation FuncDropoutExt")
    return input


@call("ClampScalar", "ClampTensor")
def clamp(r: Recorder, input: Tracer, min: Operand | None = None, max: Operand | None = None) -> Tracer:
    """Clamps; an element equal to a bound keeps its gradient."""
    if min is None and max is None:
        raise not_traceable("a clamp without bounds", "it does nothing", "the tensor as it is, or min= or max=")
    out = input if min is None else select(r, emit(r, e.less, input, min), min, input)
    return out if max is None else select(r, emit(r, e.greater, out, max), max, out)


@call("Hardtanh")
def hardtanh(r: Recorder, input: Tracer, min_val: Operand = -1.0, max_val: Operand = 1.0) -> Tracer:
    """Clamps; an element equal to a bound has no gradient."""
    out = select(r, emit(r, e.less_equal, input, min_val), min_val, input)
    return select(r, emit(r, e.greater_equal, out, max_val), max_val, out)


def _like(r: Recorder, input: Tracer, value: Operand, dtype: object) -> Tracer:
    """Returns an array of one value."""
    return full(r, input.hpmoe_aval.shape, value, r.dtype_name(dtype) or input.hpmoe_aval.dtype)


calls({
    "Tensor.Select DeprecatedSelect DeprecatedWhere": lambda r, input, condition, y: select(r, condition, input, y),
    "MaskedFill MaskedFillScalar": lambda r, input, mask, value: choose(r, mask, value, input, input.hpmoe_aval.dtype),
    "ZerosLike ZerosLikeExt": lambda r, input, dtype=None: _like(r, input, 0.0, dtype),
    "OnesLike OnesLikeExt": lambda r, input, dtype=None: _like(r, input, 1.0, dtype),
    "FullLike": lambda r, input, fill_value, dtype=None: _like(r, input, fill_value, dtype),
    "ExpandAs": lambda r, input, other: r(broadcast_to, input, shape=other.hpmoe_aval.shape),
})
