"""How a trace words what it cannot record, and where in the user's code that stands."""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

import mindspore
import numpy

from hpmoe.errors import TraceError

_STDLIB = sysconfig.get_path("stdlib") + os.sep
_PACKAGES = tuple(str(Path(p).resolve().parent) + os.sep for p in (
    Path(__file__).parent, mindspore.__file__, numpy.__file__))


def is_library_file(filename: str) -> bool:
    """Whether a frame belongs to hpmoe, MindSpore, NumPy or Python, so that the line the user wrote is further out."""
    stdlib = filename.startswith(_STDLIB) and "site-packages" not in filename
    return stdlib or filename.startswith(_PACKAGES) or str(Path(filename).resolve()).startswith(_PACKAGES)


def short_path(filename: str) -> str:
    """`filename` relative to the working directory where it is below that, else its last part."""
    try:
        return str(Path(filename).resolve().relative_to(Path.cwd()))
    except ValueError:
        return Path(filename).name


_LIBRARY_FILES: dict[str, bool] = {}


def user_source() -> str:
    """`file:line` of the innermost frame outside hpmoe and MindSpore; empty where there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if filename not in _LIBRARY_FILES:
            _LIBRARY_FILES[filename] = is_library_file(filename)
        if not _LIBRARY_FILES[filename]:
            return f"{short_path(filename)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


def not_traceable(what: str, why: str, instead: str, source: str | None = None) -> TraceError:
    """The error for `what`; every error of a trace has this form.

    Example:
        >>> print(not_traceable("bool(f32[4])", "its value is not known", "mint.where", source="layer.py:3"))
        bool(f32[4]) is not traceable: its value is not known
          at layer.py:3
          write instead: mint.where
    """
    return TraceError(f"{what} is not traceable: {why}\n  at {user_source() if source is None else source}\n"
                      f"  write instead: {instead}")


def explain(error: Exception) -> TraceError | None:
    """The TraceError for an exception of MindSpore's that a tracer brought about; None for any other."""
    frames = traceback.extract_tb(error.__traceback__)
    user = next((f for f in reversed(frames) if not is_library_file(f.filename)), None)
    source = f"{short_path(user.filename)}:{user.lineno}" if user else ""
    text = str(error)
    if any(f.name == "staging_specialize" for f in frames) or "/jit/" in text:
        return not_traceable("a call of a function compiled with ms.jit", "it is compiled for tensors with data",
                             "the plain Python function, without ms.jit", source)
    if "RowCount" in text or "External" in text:
        return not_traceable("the number of received rows as an argument of a MindSpore call",
                             "routing decides it when the kernel runs", "rows.reshape(-1, n) or mint.zeros_like(rows)",
                             source)
    if "RouteTracer" in text:
        return not_traceable("a MindSpore call on a route", "a route is no tensor", "the rows of hpmoe.dispatch",
                             source)
    if "meta" in text:
        called = next((f.name for f in frames[frames.index(user) + 1:]), "") if user else ""
        instead = f"mint.{called}" if hasattr(mindspore.mint, called) else "mint functions and new values, not a write"
        return not_traceable(f"`{_shortened(user.line)}`" if user and user.line else "a MindSpore call",
                             "MindSpore reads or writes values there without reporting it", instead, source)
    return None


def _shortened(line: str) -> str:
    return line if len(line) <= 60 else f"{line[:60]}..."
