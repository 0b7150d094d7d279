"""Report of hpmoe doctor about ranks that are processes: launchers, and limits of the system."""

from __future__ import annotations

import os
import resource
import shutil

from hpmoe.kernels.native import load, ucx_fault
from hpmoe.ranks.launchers import LAUNCHERS
from hpmoe.support.cached_files import Fields


def ranks() -> Fields:
    """Returns the launchers on PATH, and limits with what they mean here."""
    names = dict.fromkeys(launcher.name for launcher in LAUNCHERS if " " not in launcher.name)
    return {"launchers": {name: shutil.which(name) for name in names}, "limits": limits()}


def limits() -> dict[str, str]:
    """Returns each limit, and whether it matters here."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    space = resource.getrlimit(resource.RLIMIT_AS)[0]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "open files": f"{_amount(files)}; a rank opens up to 4 for each rank",
        "address space": f"{_amount(space)}; a rank maps {memory >> 20} MiB for each rank, of which it uses little",
        "pidfd": _pidfd(),
        "memfd": _memfd(),
        "other hosts": _engines(),
    }


def _amount(limit: int) -> str:
    return "unlimited" if limit == resource.RLIM_INFINITY else str(limit)


def _pidfd() -> str:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"MISSING: {error.strerror}; the end of a rank is not noticed"
    return "works: the end of a rank is noticed at once"


def _memfd() -> str:
    try:
        file = load().hpmoe_heap_make(1 << 20)
    except (ImportError, OSError, AttributeError):
        return "unknown without the native library"
    if file < 0:
        return f"MISSING: {os.strerror(-file)}; ranks cannot be processes"
    os.close(file)
    return "works"


def _engines() -> str:
    """Returns the engines that carry messages to other hosts."""
    try:
        fault = ucx_fault()
    except (ImportError, OSError, AttributeError):
        return "unknown without the native library"
    return f"by TCP, not by UCX: {fault}" if fault else "by TCP; by UCX where hpmoe.world(engine=\"ucx\") asks for it"


def lines(found: Fields) -> list[str]:
    """Returns the report as text."""
    out = ["", "ranks as processes", f"  {'hpmoe launch':<14}here"]
    out += [f"  {name:<14}{path or 'not found'}" for name, path in found["launchers"].items()]
    return out + [f"  {name:<14}{text}" for name, text in found["limits"].items()]
