"""Plans kept from one process to the next: the Taskflow of a kernel, in a file named after all that decides it.

A file is a line with the key and a digest of the rest, then a Taskflow. What is read is verified as what was just made is,
so that a file of anything else never becomes a launch.
"""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

from hpmoe.ir.program import Program
from hpmoe.ir.taskflow import Taskflow
from hpmoe.ir.taskflow_bytes import read_taskflow, taskflow_bytes
from hpmoe.runtime.plan_key import plan_key
from hpmoe.runtime.staged import Step, applied
from hpmoe.support.cached_files import keep_latest, read_bytes, write_bytes
from hpmoe.support.errors import VerifyError
from hpmoe.support.host import cache_folder
from hpmoe.verification.verify import verify

LEAST_SECONDS = 0.02  # that planning takes where it is kept: below, reading a plan saves next to nothing
MOST_BYTES = 256 << 20  # of all kept plans


def kept_or_made(program: Program, steps: Sequence[Step]) -> Taskflow:
    """Returns the Taskflow that steps make of a Program, read from a file if one was kept."""
    key = _key(program, steps)
    return (_load(key) if key else None) or _made(program, steps, key)


def _key(program: Program, steps: Sequence[Step]) -> str | None:
    """Returns the key of a plan; None, with a warning, if the plan cannot be kept."""
    try:
        return plan_key(program, steps)
    except TypeError as error:
        warnings.warn(f"fuse_persistent: plans of {program.name} are not kept: {error}", stacklevel=3)
        return None


def _made(program: Program, steps: Sequence[Step], key: str | None) -> Taskflow:
    """Makes the plan, and caches it if that takes long."""
    begin = time.perf_counter()
    flow = applied(steps, program)
    if key and time.perf_counter() - begin >= LEAST_SECONDS:
        _store(key, flow)
    return flow


def plans_folder() -> Path:
    """Returns the folder of cached plans; raises OSError as `cache_folder` does."""
    return cache_folder() / "plans"


def _path(key: str) -> Path:
    return plans_folder() / f"{key[:32]}.plan"


def _head(key: str, content: bytes) -> bytes:
    return f"hpmoe plan {key} {hashlib.sha256(content).hexdigest()}".encode()


def _load(key: str) -> Taskflow | None:
    """Returns the plan under a key; None without a file, or with a warning for a file of something else."""
    try:
        path = _path(key)
        data = read_bytes(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return _refused(error)
    try:
        head, _, content = data.partition(b"\n")
        if head != _head(key, content):
            raise ValueError("its first line is not that of this plan and what follows")
        flow = read_taskflow(content)
        verify(flow)
        os.utime(path)  # it was used now
    except (OSError, ValueError, KeyError, TypeError, VerifyError, OverflowError, RecursionError) as error:
        return _refused(f"{path}: {error}")
    return flow


def _refused(why: object) -> None:
    warnings.warn(f"fuse_persistent: a cached plan cannot be used and is made again: {why}", stacklevel=3)


def _store(key: str, flow: Taskflow) -> None:
    """Keeps a plan, and at most MOST_BYTES of those last used; a folder that cannot be written is a warning."""
    try:
        path, content = _path(key), taskflow_bytes(flow)
        write_bytes(path, _head(key, content) + b"\n" + content)
        keep_latest(path.parent, MOST_BYTES)
    except OSError as error:
        warnings.warn(f"fuse_persistent: a plan cannot be kept: {error}", stacklevel=3)
