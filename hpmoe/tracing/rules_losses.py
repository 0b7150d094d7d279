"""MindSpore's losses of numbers."""

from __future__ import annotations

from hpmoe.primitives import elementwise as e
from hpmoe.tracing.calls import call
from hpmoe.tracing.promote import emit, in_float32
from hpmoe.tracing.recorder import Recorder
from hpmoe.tracing.rules_reduce import mean, sum_
from hpmoe.tracing.tracer import Tracer

SUM, MEAN = 0, 1  # what is made of all losses, as MindSpore numbers it; anything else leaves them as they are


@call("MSELossExt")
@in_float32
def mse_loss(r: Recorder, input: Tracer, target: Tracer, reduction: int = MEAN) -> Tracer:
    return _reduced(r, emit(r, e.square, emit(r, e.sub, input, target)), reduction)


@call("L1LossExt")
@in_float32
def l1_loss(r: Recorder, input: Tracer, target: Tracer, reduction: int = MEAN) -> Tracer:
    return _reduced(r, emit(r, e.absolute, emit(r, e.sub, input, target)), reduction)


def _reduced(r: Recorder, losses: Tracer, reduction: int) -> Tracer:
    return mean(r, losses) if reduction == MEAN else sum_(r, losses) if reduction == SUM else losses
