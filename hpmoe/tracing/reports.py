"""Values that a traced function has checked after each call, and where a tensor of a trace comes from."""

from __future__ import annotations

from typing import cast

from mindspore import Tensor

from hpmoe.ir.program import Report, Var
from hpmoe.tracing.pynative import current_recorder
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.tracer import Tracer


def report_values(x: Tensor, report: Report, offset: int = 0) -> None:
    """Has the running trace return x + offset beside its results; a function looks at the values after each call."""
    recorder = cast(Recorder, current_recorder())
    tracer = recorder.lift(x)
    recorder.reports.append((recorder.atom(tracer + offset if offset else tracer), report))


def is_made_by(x: Tensor, name: str) -> bool:
    """Returns True if a tensor is, in a trace, an output of the primitive of this name, or a cast of such an output."""
    if not isinstance(x, Tracer):
        return False
    recorder = cast(Recorder, x.hpmoe_recorder)
    made_by = recorder.maker(x.hpmoe_atom)
    if made_by is not None and made_by.primitive.name == "cast" and isinstance(made_by.inputs[0], Var):
        made_by = recorder.maker(made_by.inputs[0])
    return made_by is not None and made_by.primitive.name == name
