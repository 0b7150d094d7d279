"""The wording of what a trace cannot record, and of where in the user's code that stands."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import traceback
import types
from pathlib import Path

import mindspore

from hpmoe.support.errors import TraceError

_NO_KERNEL = ("Select CPU operator", " unregistered")  # in MindSpore's errors
_LIBRARIES = frozenset({"hpmoe", "mindspore", "numpy", "optree"}) | sys.stdlib_module_names


def is_library_frame(frame: types.FrameType) -> bool:
    """Returns True if a frame belongs to hpmoe, MindSpore, NumPy or Python, so that the user's line is further out."""
    package = frame.f_globals.get("__name__", "").partition(".")[0]
    return package in _LIBRARIES and not frame.f_code.co_filename.startswith("<doctest")


def short_path(filename: str) -> str:
    """Returns `filename` relative to the working directory if it is below that, else its last part."""
    try:
        return _short_path(filename, os.getcwd())
    except OSError:  # the working directory is gone
        return Path(filename).name


@functools.cache
def _short_path(filename: str, directory: str) -> str:
    try:
        return str(Path(filename).resolve().relative_to(directory))
    except ValueError:
        return Path(filename).name


def user_source() -> str:
    """Returns `file:line` of the innermost frame outside hpmoe and MindSpore, or ""."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and is_library_frame(frame):
        frame = frame.f_back
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}" if frame else ""


def not_traceable(what: str, why: str, instead: str, source: str | None = None) -> TraceError:
    """Returns the error for `what`, which cannot be traced; every error of a trace has this form."""
    return TraceError(f"{what} is not traceable: {why}\n  at {user_source() if source is None else source}\n"
                      f"  write instead: {instead}")


def explain(error: Exception) -> TraceError | None:
    """Returns the TraceError for an exception of MindSpore that a tracer caused; None for any other."""
    frames = list(traceback.walk_tb(error.__traceback__))
    names = [frame.f_code.co_name for frame, _ in frames]
    index = max((i for i, (frame, _) in enumerate(frames) if not is_library_frame(frame)), default=-1)
    file, line = (frames[index][0].f_code.co_filename, frames[index][1]) if index >= 0 else ("", 0)
    source = f"{short_path(file)}:{line}" if file else ""
    text = str(error)
    if "staging_specialize" in names or "ccsrc/frontend/jit/" in text:
        return not_traceable("a call of a function compiled with ms.jit", "it is compiled for tensors with data",
                             "the plain Python function, without ms.jit", source)
    if "RowCount" in text or "got External" in text:
        return not_traceable("the number of received rows as an argument of a MindSpore call",
                             "routing decides it when the kernel runs", "rows.reshape(-1, n) or mint.zeros_like(rows)",
                             source)
    if "RouteTracer" in text:
        return not_traceable("a MindSpore call on a route", "a route is no tensor", "the rows of hpmoe.dispatch",
                             source)
    if any(mark in text for mark in ("src:meta", "dst:meta", "<meta>", "pointer[stub_]")):
        called = names[index + 1] if index + 1 < len(names) else ""
        instead = f"mint.{called}" if hasattr(mindspore.mint, called) else "mint functions and new values, not a write"
        return not_traceable(f"`{_shortened(linecache.getline(file, line).strip())}`",
                             "MindSpore reads or writes values there without reporting it", instead, source)
    missing = next((line for line in text.splitlines() if any(mark in line for mark in _NO_KERNEL)), None)
    if missing is not None:
        what = "a computation from plain tensors or numbers alone"
        return not_traceable(what, f"MindSpore runs it at once and has no kernel: {missing.split('!')[0]}",
                             "the same by NumPy, ms.Tensor(np.arange(8)), or in float32, or pass it as an argument", source)
    if "does not support ufuncs" in text:
        return not_traceable("a function of NumPy on a tracer", "NumPy works on data", "the mint function of this meaning",
                             source)
    if "only supports Ascend" in text:
        return not_traceable("a call for Ascend alone", f"MindSpore refuses it: {text}", "products, sums and x @ w", source)
    return None


def _shortened(line: str) -> str:
    return line if len(line) <= 60 else f"{line[:60]}..."
