"""What the Ascend kernel needs of a machine, to be compiled and to run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import hpmoe.kernels


def sources() -> Path:
    """The CMake project of the kernel."""
    return Path(hpmoe.kernels.__file__).parent / "ascendc" / "host"


def library_path() -> Path:
    """Where hpmoe build puts the kernel."""
    return Path.home() / ".cache" / "hpmoe" / "ascend" / "libhpmoe_ascend.so"


def build_needs(environment: Mapping[str, str]) -> list[str]:
    """What is missing to compile the kernel, one sentence each."""
    missing = []
    for name, what in (("ASCEND_HOME_PATH", "CANN toolkit"), ("SHMEM_HOME_PATH", "aclshmem")):
        home = environment.get(name)
        if not home:
            missing.append(f"no {what}: {name} is not set")
        elif not Path(home).is_dir():
            missing.append(f"no {what}: {name} is {home}, which is no folder")
    for program, what in (("bisheng", "bisheng compiler"), ("cmake", "cmake")):
        if shutil.which(program, path=environment.get("PATH", "")) is None:
            missing.append(f"no {what} on PATH")
    return missing


def run_needs(environment: Mapping[str, str], devices: Path) -> list[str]:
    """What is missing to run the kernel here."""
    missing = ["this release does not call the kernel from MindSpore: hpmoe build --target=ascend compiles it for C++"]
    if not library_path().exists():
        missing += build_needs(environment) or ["the kernel is not built: hpmoe build --target=ascend"]
    if not any(devices.glob("davinci[0-9]*")):
        missing.append(f"no NPU: no {devices}/davinci* device")
    return missing
