"""The targets that fuse_persistent can bind a kernel for; kernels register themselves here by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hpmoe.errors import check_argument, is_name

_COMPILERS: dict[str, Callable[..., Any]] = {}


def register_target(name: str, compiler: Callable[..., Any]) -> None:
    """Makes `compiler(taskflow, timeout=seconds) -> executable` what fuse_persistent(target=name) calls."""
    _COMPILERS[name] = compiler


def target_names() -> tuple[str, ...]:
    return tuple(sorted(_COMPILERS))


def compiler_of(name: str) -> Callable[..., Any]:
    """The compiler of a target; ArgumentError naming the known ones where there is none."""
    check_argument(is_name(name, _COMPILERS), "fuse_persistent", "target", repr(name), f"one of {', '.join(target_names())}")
    return _COMPILERS[name]
