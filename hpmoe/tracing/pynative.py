"""Changes MindSpore while a trace runs, and puts it back: plain tensors and Parameters lead to it as well."""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

from mindspore import Generator, Parameter, Tensor
from mindspore.ops import Primitive

from hpmoe.support.locks import new_lock
from hpmoe.support.mindspore_private import (
    FALLBACK,
    STEP,
    forget_gradient,
    set_takes_gradient,
    takes_gradient,
    without_fallback,
)
from hpmoe.tracing.draws import refuse_generator, refuse_operation
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.tracer import WRITE_INSTEAD, Trace, Tracer


class _Running:
    """A trace that runs. _RUNNING refers to it weakly, so it leaves that set with the stack frame of the trace."""

    def __init__(self, recorder: Trace):
        self.recorder = recorder


_LOCAL = threading.local()
_LOCK = new_lock()


def current_recorder() -> Trace | None:
    """Returns the innermost trace of this thread, or None."""
    stack = getattr(_LOCAL, "stack", ())
    while stack:
        running = stack[-1]()
        if running is not None:
            return running.recorder
        stack.pop()  # its end was interrupted
    return None


def _fallback(self: Tensor, func: Callable[..., object], args: Sequence[object],
              kwargs: dict[str, object] | None = None) -> object:
    """Dispatches a call; MindSpore calls it for a plain tensor beside a tracer, and for every Parameter."""
    recorder = current_recorder()
    if recorder is None:  # a Parameter of another thread
        with without_fallback():
            return func(*args, **(kwargs or {}))
    return recorder.call(func, args, kwargs or {})


def _record(self: Tensor) -> Callable[..., object]:
    recorder = current_recorder()
    if recorder is None:
        raise AttributeError("hpmoe_record")
    return recorder.record


def _getitem(self: Parameter, index: object) -> object:
    recorder = current_recorder()
    if recorder is None:
        return Tensor.__getitem__(self, index)
    return recorder.call_named("__getitem__", (self, index), {})


def _iter(self: Parameter) -> Iterator[Tensor]:
    return (self[i] for i in range(len(self)))


def _refused(name: str) -> Callable[..., object]:
    original = getattr(Parameter, name, None) or getattr(Tensor, name)

    def method(self: Parameter, *args: object, **kwargs: object) -> object:
        recorder = current_recorder()
        if recorder is None:
            return original(self, *args, **kwargs)
        recorder.fail(not_traceable(f"{name} on Parameter {self.name}", "a Program is pure", WRITE_INSTEAD))

    return method


def _next_seed(self: Generator, *increment: object) -> object:
    recorder = current_recorder()
    found = refuse_generator(recorder, self, *increment) if recorder is not None else None
    return _NEXT_SEED(self, *increment) if found is None else found


def _call_primitive(self: Primitive, *args: object) -> object:
    """Calls a MindSpore operation that is an object; while a graph is compiled the trace does not see it."""
    recorder = current_recorder()
    if recorder is not None:
        refuse_operation(recorder, self)
        if any(isinstance(a, (Tracer, Parameter)) for a in args):
            return recorder.call(self, (self, self.name, args), {})
    return _CALL(self, *args)


_CALL = Primitive.__call__
_NEXT_SEED = vars(Generator)[STEP]
_PATCHES: tuple[tuple[type, str, object], ...] = (
    (Tensor, FALLBACK, _fallback), (Tensor, "hpmoe_record", property(_record)),
    (Parameter, "__getitem__", _getitem), (Parameter, "__iter__", _iter),
    (Primitive, "__call__", _call_primitive),
    (Generator, STEP, _next_seed),
    *((Parameter, name, _refused(name)) for name in ("__setitem__", "set_data", "assign_value")),
)
_ORIGINALS = {(cls, name): vars(cls).get(name) for cls, name, _ in _PATCHES}
_RUNNING: weakref.WeakSet[_Running] = weakref.WeakSet()


def _patch(running: _Running) -> None:
    with _LOCK:
        _RUNNING.add(running)
        for cls, name, value in _PATCHES:
            setattr(cls, name, value)


def _unpatch(running: _Running) -> None:
    with _LOCK:
        _RUNNING.discard(running)
        for cls, name, _ in () if any(True for _ in _RUNNING) else _PATCHES:
            if _ORIGINALS[cls, name] is None and name in vars(cls):
                delattr(cls, name)
            elif _ORIGINALS[cls, name] is not None:
                setattr(cls, name, _ORIGINALS[cls, name])


@contextlib.contextmanager
def recording(recorder: Trace) -> Iterator[None]:
    """Makes `recorder` the one that MindSpore calls of this thread reach, and ends its life afterwards.

    The executor's grad flag stays as it is: what the function computes from closed-over tensors alone keeps its history.
    """
    flag, running = takes_gradient(), _Running(recorder)
    stack = _LOCAL.__dict__.setdefault("stack", [])
    depth = len(stack)

    def end() -> None:
        del stack[depth:]
        recorder.active = False
        if takes_gradient() and not flag:
            forget_gradient()  # it was interrupted
        set_takes_gradient(flag)
        _unpatch(running)

    try:
        _patch(running)
        stack.append(weakref.ref(running))
        yield
    finally:
        _to_the_end(end)


def _to_the_end(end: Callable[[], None]) -> None:
    """Calls what may be called again, until no Ctrl-C comes in between."""
    interrupt = None
    while True:
        try:
            end()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt
