"""Finds and loads the package's compiled libraries."""

from __future__ import annotations

import ctypes
import functools
import math
import os
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

Signatures = Mapping[str, tuple[type | None, Sequence[type]]]  # the type of a function's result, and those it takes

SCALARS = {"void": None, "int": ctypes.c_int, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64,
           "uint64_t": ctypes.c_uint64, "double": ctypes.c_double}

BUILD_IT = "install the package again, or in a source tree run `python -m hpmoe.kernels.build_native`"


def find_library(folder: Path, pattern: str) -> Path:
    """Returns the path of the compiled library in `folder`; raises ImportError if it has not been built."""
    found = sorted(Path(folder).glob(pattern))
    if found:
        return found[0]
    raise ImportError(
        f"hpmoe's native library is not beside {folder}: install the package with pip (it needs a C++17 compiler), "
        "or in a source tree run `python -m hpmoe.kernels.build_native`"
    )


def check_whole(path: Path) -> None:
    """Raises ImportError where the end of an ELF file is missing: the process would die of such a library."""
    with open(path, "rb") as file:
        size, start = os.fstat(file.fileno()).st_size, file.read(64)
    sections, bytes_each, number = struct.unpack_from("<40xQ10xHH", start.ljust(64, b"\0"))
    if len(start) < 64 or sections + bytes_each * number > size:
        raise ImportError(f"hpmoe's native library {path} ends too early, after {size:,} bytes: {BUILD_IT}")


def load_library(path: Path, version_name: str, version: int, signatures: Signatures) -> ctypes.CDLL:
    """Loads the library at `path`, checks that its function `version_name` returns `version`, and declares its functions.

    `signatures` maps each name to (result type, list of argument types). Calls release the GIL. Raises ImportError where
    the library is of another version, or cannot be loaded.
    """
    try:
        check_whole(path)
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(f"hpmoe's native library cannot be loaded: {error}; {BUILD_IT}") from error
    if not hasattr(library, version_name) or getattr(library, version_name)() != version:
        raise ImportError(f"hpmoe's native library {path.name} is older than its Python code: {BUILD_IT}")
    for name, (result, arguments) in signatures.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def read_signatures(header: Path, types: Mapping[str, type]) -> Signatures:
    """Returns the signatures of the functions that a C header declares, each on lines of its own.

    Args:
        types: structures and types of functions that the header names. A pointer to another type, except characters, is an
            address.
    """

    def type_of(text: str) -> type:
        name = text.replace("const ", "").strip()
        if name == "char*":
            return ctypes.c_char_p
        if name.endswith("*"):
            return ctypes.POINTER(types[name[:-1]]) if name[:-1] in types else ctypes.c_void_p
        return types[name] if name in types else SCALARS[name]

    declared = re.findall(r"^([\w ]+\*?) (hpmoe_\w+)\(([^()]*)\);", header.read_text(), re.MULTILINE)
    return {name: (type_of(result), [] if taken == "void" else [type_of(x.rpartition(" ")[0]) for x in taken.split(",")])
            for result, name, taken in declared}


def array_at(start: int, shape: tuple[int, ...], dtype: np.dtype, owner: object) -> np.ndarray:
    """Returns the array that begins at an address, C-contiguous and writable. The array keeps `owner` alive."""
    memory = _memory_of(math.prod(shape) * dtype.itemsize).from_address(start)
    vars(memory)["owner"] = owner
    return np.ndarray(shape, dtype, memoryview(memory))


@functools.lru_cache(maxsize=256)
def _memory_of(num_bytes: int) -> type[ctypes.Array]:
    return ctypes.c_char * num_bytes


def address(array: np.ndarray) -> int:
    """Returns the address of an array's first value; faster than `array.ctypes.data`."""
    return array.__array_interface__["data"][0]
