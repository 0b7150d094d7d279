"""The targets that fuse_persistent can bind a kernel for; kernels register themselves here by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hpmoe.support.errors import check_argument, is_name
from hpmoe.support.trees import Function, PyTree


@dataclasses.dataclass(frozen=True)
class Target:
    """What a kernel can be bound for.

    Attributes:
        compiler: function (taskflow, timeout=seconds) -> executable.
        on_device: whether every rank is a process whose tensors stay on its device, rather than all ranks in this process.
        of_plans: function of executables of one program, by their likely rows, that makes one which takes a plan when it
            starts; None where every launch is planned for its rows.
        missing: what this machine lacks of what the target needs, one sentence each.
    """

    compiler: Function
    on_device: bool = False
    of_plans: Function | None = None
    missing: Callable[[], list[str]] = list


_TARGETS: dict[str, Target] = {}


def register_target(name: str, compiler: Function, **attributes: PyTree) -> None:
    """Makes fuse_persistent(target=name) call this compiler; for the attributes see Target."""
    _TARGETS[name] = Target(compiler, **attributes)


def target_names() -> tuple[str, ...]:
    return tuple(sorted(_TARGETS))


def find_target(name: str) -> Target:
    """The target of a name; ArgumentError naming the known ones where there is none."""
    check_argument(is_name(name, _TARGETS), "fuse_persistent", "target", repr(name), f"one of {', '.join(target_names())}")
    return _TARGETS[name]


def check_usable(name: str) -> None:
    """ArgumentError unless the target is known and this machine has all it needs."""
    missing = find_target(name).missing()
    check_argument(not missing, "fuse_persistent", "target", repr(name), "a target that this machine has what it takes for",
                   "Missing here:\n  " + "\n  ".join(missing))
