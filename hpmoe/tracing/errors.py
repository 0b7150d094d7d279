"""How a trace words what it cannot record, and where in the user's code that stands."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import mindspore

from hpmoe.errors import TraceError

_PACKAGES = tuple(str(Path(p).resolve().parent) + os.sep for p in (Path(__file__).parent, mindspore.__file__))


def is_library_file(filename: str) -> bool:
    """Whether a frame belongs to hpmoe or MindSpore, so that the line the user wrote is further out."""
    return filename.startswith(_PACKAGES) or str(Path(filename).resolve()).startswith(_PACKAGES)


def short_path(filename: str) -> str:
    """`filename` relative to the working directory where it is below that, else its last part."""
    try:
        return str(Path(filename).resolve().relative_to(Path.cwd()))
    except ValueError:
        return Path(filename).name


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


_LIBRARY_FILES: dict[str, bool] = {}


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
