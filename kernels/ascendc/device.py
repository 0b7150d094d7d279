"""The NPU of this machine as CANN's own library describes it."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

CUBE_CORES, VECTOR_CORES = 102, 201  # attributes of aclrtGetDeviceInfo


class Npu(NamedTuple):
    """The name of its chip, and how many cores of each kind a kernel may have at once."""

    chip: str
    num_aic: int
    num_aiv: int


def find_npu(environment: Mapping[str, str]) -> Npu | str:
    """Returns the first NPU, or a text why none is found; no other part of the process may have one open."""
    path = Path(environment.get("ASCEND_HOME_PATH", "")) / "lib64" / "libascendcl.so"
    try:
        acl = ctypes.CDLL(str(path))
        acl.aclrtGetSocName.restype = ctypes.c_char_p
        for name, arguments in (("aclInit", (None,)), ("aclrtSetDevice", (0,))):
            if code := getattr(acl, name)(*arguments):
                return f"{name} of {path} returned {code}"
        chip = (acl.aclrtGetSocName() or b"").decode()
        return Npu(chip, *(_attribute(acl, which) for which in (CUBE_CORES, VECTOR_CORES)))
    except (OSError, AttributeError) as error:
        return f"CANN cannot be asked: {error}"


def _attribute(acl: ctypes.CDLL, which: int) -> int:
    value = ctypes.c_int64()
    if code := acl.aclrtGetDeviceInfo(0, which, ctypes.byref(value)):
        raise OSError(f"aclrtGetDeviceInfo returned {code}")
    return value.value
