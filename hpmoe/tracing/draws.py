"""Random numbers that a traced function draws: they would be constants of its plan, the same in every call.

MindSpore's operations and generators are refused where they are called. Python's and NumPy's global generators are compared
with what they were before; where one moved, the function is traced again under a profiler, which sees the call that draws.
"""

from __future__ import annotations

import contextlib
import pickle
import random
import re
import sys
import threading
import types
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
from mindspore import Generator
from mindspore.ops import Primitive

from hpmoe.support import mindspore_private
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.tracer import Trace

GLOBAL = {"Python's random": random._inst, "numpy.random": vars(np.random)["mtrand"]._rand}
_RANDOM = re.compile("Dropout|Rand|Normal(?!ize)|Uniform|Bernoulli|Multinomial|Cauchy|Exponential")
_READING = frozenset({"getstate", "get_state", "__reduce__", "__getstate__"})


def refuse_draw(recorder: Trace, what: str, source: str | None = None) -> NoReturn:
    recorder.fail(not_traceable(what, "a Program gives the same result for the same inputs", "pass the random numbers as an "
                                "argument; call cell.set_train(False) where dropout is off", source))


def refuse_operation(recorder: Trace, primitive: Primitive) -> None:
    """Raises TraceError if a MindSpore operation is a random one."""
    if mindspore_private.has_hidden_state(primitive) or _RANDOM.search(primitive.name):
        refuse_draw(recorder, f"the random operation {primitive.name}")


def refuse_generator(recorder: Trace, generator: Generator, *increment: object) -> tuple[object, object]:
    """Fails where a generator of MindSpore is asked for its next seed and offset; dropout that is off ignores them."""
    if not mindspore_private.is_idle_dropout(sys._getframe(2)):
        refuse_draw(recorder, "a draw from a generator of MindSpore")
    return mindspore_private.seed_and_offset(generator)


def states() -> tuple[object, bytes]:
    """Returns the states of the generators in GLOBAL, which any function reaches."""
    return random.getstate(), pickle.dumps(np.random.get_state(legacy=False))


@contextlib.contextmanager
def refusing_draws(recorder: Trace) -> Iterator[None]:
    """Fails where this thread draws from a global generator; at the end where one moved and no other thread could."""
    before, other_profiler = states(), sys.getprofile()

    def watch(frame: types.FrameType, event: str, called: object) -> None:
        is_draw = event == "c_call" and getattr(called, "__name__", "") not in _READING
        owner = getattr(called, "__self__", None) if is_draw else None
        for name, generator in GLOBAL.items():
            if owner is generator:
                sys.setprofile(None)
                refuse_draw(recorder, f"a draw from {name}")

    if other_profiler is None:
        sys.setprofile(watch)
    try:
        yield
    finally:
        if other_profiler is None:
            sys.setprofile(None)
    if other_profiler is not None or threading.active_count() == 1:
        for name, now, then in zip(GLOBAL, states(), before, strict=True):
            if now != then:
                refuse_draw(recorder, f"a draw from {name}", "a line that a profiler hides")
