"""Describes this computer for reports and stored measurements."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_name() -> str:
    """Returns the processor's model name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def forget_peak() -> None:
    """Sets VmHWM to VmRSS if the system permits; otherwise the peak includes what came before."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def status_kib(field: str) -> int:
    """Returns a field of /proc/self/status in KiB."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def cache_folder() -> Path:
    """Returns the folder of kept measurements and searches: hpmoe/ in $XDG_CACHE_HOME if it is absolute, else in ~/.cache.

    Raises:
        OSError: there is no home folder either, as for a user whom the system does not know.
    """
    for base in (Path(os.environ.get("XDG_CACHE_HOME", "")), Path(os.path.expanduser("~"), ".cache")):
        if base.is_absolute():
            return base / "hpmoe"
    raise OSError("no folder to keep files in is known: set HOME or XDG_CACHE_HOME to an absolute path")
