"""Keeps the times of simulated plans in the user's cache folder."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np

from hpmoe.ir.program import Program
from hpmoe.machines.machine import MOST_RATE, Machine
from hpmoe.runtime.plan_key import plan_key
from hpmoe.runtime.rewrite import Rewrite
from hpmoe.runtime.staged import Step
from hpmoe.support.cached_files import read_object, write_object
from hpmoe.support.errors import is_number
from hpmoe.support.host import cache_folder

Times = dict[str, tuple[float | None, str]]  # microseconds, or why the simulation failed, by the text of the plan


def key_of(program: Program, machine: Machine, topk_ids: np.ndarray | None, by: Rewrite) -> str | None:
    """Returns a digest of all that decides the time of a plan; None if code that is not hpmoe's own has a part in it."""
    try:
        return plan_key(program, [Step(by, {"machine": machine, "topk_ids": topk_ids})])
    except TypeError:
        return None


def load(key: str | None, machine: Machine) -> Times:
    """Returns the times that are kept under a key.

    Ignores a file of something else, and times that no simulation returns.
    """
    try:
        kept = read_object(_path(key)) if key else {}
        if kept.get("key") != key:
            return {}
        return {text: (us, str(error)) for text, (us, error) in kept["times"].items()
                if us is None or (is_number(us) and machine.host.launch_us <= us <= MOST_RATE)}
    except PermissionError as error:
        warnings.warn(f"autotune: the times kept before are not read: {error}", stacklevel=4)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    return {}


def store(key: str | None, times: Times) -> None:
    """Keeps times under a key; warns if the folder cannot be written."""
    if key is None:
        return
    try:
        write_object(_path(key), {"key": key, "times": times})
    except OSError as error:
        warnings.warn(f"autotune: the times of plans cannot be kept: {error}", stacklevel=4)


def _path(key: str) -> Path:
    return cache_folder() / f"autotune-{key[:32]}.json"
