"""What this computer is, as reports state it."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def cpu_name() -> str:
    """The processor's model name, as far as the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def num_cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0))


def gemm_name() -> str:
    """The matrix product of the native library: "dnnl_sgemm" of MindSpore's oneDNN, or "own"."""
    from hpmoe.kernels.native import load
    return load().hpmoe_gemm_name().decode()
