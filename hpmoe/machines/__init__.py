"""Machines that programs are planned for: presets of Ascend chips as attributes, such as `hpmoe.machines.ascend_a3`.

Each preset is a file of `files/`, which says where its numbers come from; `hpmoe.load_machine` reads others, and `hpmoe.cpu`
describes the CPU of this process.

Example:
    >>> import hpmoe
    >>> dir(hpmoe.machines)
    ['ascend_950dt', 'ascend_950pr', 'ascend_a2', 'ascend_a3']
    >>> hpmoe.machines.ascend_a3.num_aic
    24
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpmoe.machines.machine import Machine


@functools.cache
def __getattr__(name: str) -> Machine:
    from hpmoe.machines.machine_files import load_machine, preset_names
    if name not in preset_names():
        raise AttributeError(f"hpmoe.machines has no machine {name!r}; it has {', '.join(preset_names())}.")
    return load_machine(name)


def __dir__() -> list[str]:
    from hpmoe.machines.machine_files import preset_names
    return preset_names()
