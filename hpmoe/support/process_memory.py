"""The memory of this process, as Linux counts it."""

from __future__ import annotations

from pathlib import Path


def forget_peak() -> None:
    """Sets VmHWM to VmRSS if the system permits; otherwise the peak includes what came before."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        pass


def status_kib(field: str) -> int:
    """Returns a field of /proc/self/status in KiB.

    Example:
        >>> 0 < status_kib("VmRSS") <= status_kib("VmHWM")
        True
    """
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))
