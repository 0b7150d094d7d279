"""Finds and loads the native library, and gives it a matrix product.

>>> load().hpmoe_gemm_name() in (b"own", b"dnnl_sgemm")
True
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from hpmoe.kernels.protocol import Dtype
from hpmoe.support import loading

FOLDER = Path(__file__).parent
ABI_VERSION = 22


class Rank(ctypes.Structure):
    """HpmoeRank of core/abi.h."""

    _fields_ = [
        ("buffers", ctypes.c_void_p),
        ("row_capacity", ctypes.c_void_p),
        ("num_tokens", ctypes.c_int64),
        ("counters", ctypes.c_void_p),
        ("bases", ctypes.c_void_p),
    ]


class Status(ctypes.Structure):
    """HpmoeStatus of core/abi.h."""

    _fields_ = [(name, ctypes.c_int32) for name in ("code", "rank", "queue", "task", "event", "wait")] + [
        ("value", ctypes.c_int64),
        ("threshold", ctypes.c_int64),
    ]


class Failure(ctypes.Structure):
    """HpmoeFailure of core/abi.h."""

    _fields_ = [("status", Status), ("origin", ctypes.c_int32), ("text", ctypes.c_char * 212)]


class Hosts(ctypes.Structure):
    """HpmoeHosts of core/abi.h."""

    _fields_ = [("sockets", ctypes.POINTER(ctypes.c_int32)), ("secret", ctypes.c_char_p), ("most_bytes", ctypes.c_int64),
                ("ucx", ctypes.c_char_p)]


class Traffic(ctypes.Structure):
    """HpmoeTraffic of core/abi.h."""

    _fields_ = [(name, ctypes.c_int64) for name in ("messages", "bytes", "row_messages", "rows", "row_bytes")]


class Rows(ctypes.Structure):
    """HpmoeRows of core/abi.h."""

    _fields_ = [("place", ctypes.c_void_p),
                *((name, ctypes.c_int64) for name in ("num_entries", "top_k", "start", "num_rows"))]


class Tables(ctypes.Structure):
    """HpmoeTables of core/abi.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("ops", "block_of", "waits", "signals")] + [
        (name, ctypes.c_int64) for name in ("num_ops", "num_tasks", "num_events", "num_waits", "num_signals")
    ]


def find_library() -> Path:
    """Returns the path of the runtime's compiled library; raises ImportError if it has not been built."""
    return loading.find_library(FOLDER, "_native*.so")


def find_blas() -> Path | None:
    """Returns the path of oneDNN's shared library in the MindSpore package; None if MindSpore or the file is missing."""
    spec = find_spec("mindspore")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = sorted(Path(spec.submodule_search_locations[0], "lib").glob("libdnnl.so*"))
    return found[0] if found else None


def find_ucx() -> Path | None:
    """Returns the folder of UCX's libraries in the package libucx, which the extra `hosts` installs; None without it."""
    spec = find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0], "lib")
    return folder if (folder / "libucp.so.0").exists() else None


def ucx_fault() -> str:
    """Returns why UCX cannot carry messages between hosts, or "" if it can."""
    folder = find_ucx()
    if folder is None:
        return "the package libucx is not installed: pip install 'hpmoe[hosts]'"
    return (load().hpmoe_ucx_fault(str(folder).encode()) or b"").decode()


def use_blas(path: str | Path | None) -> None:
    """Takes dnnl_sgemm from the shared library at `path`; None goes back to the library's own loop.

    Raises OSError when the file does not load or has no dnnl_sgemm.
    """
    failed = load().hpmoe_use_blas(None if path is None else str(path).encode())
    if failed:
        raise OSError(f"use_blas: {path} {'cannot be loaded' if failed == 1 else 'has no dnnl_sgemm'}")


def gemm_name() -> str:
    """Returns the matrix product of vector units: "dnnl_sgemm" of MindSpore's oneDNN, or "own"."""
    return load().hpmoe_gemm_name().decode()


def products_name() -> str:
    """Returns the name of the matrix multiplication that this CPU uses."""
    return f"AMX, elsewhere {gemm_name()}" if load().hpmoe_uses_amx() else gemm_name()


def skinny_rows(dtype: str, transposed: bool = False) -> int:
    """Returns the most rows for which a product with a matrix, transposed or not, has a loop of its own; 0 if it has none.
    """
    return load().hpmoe_skinny_rows(Dtype[dtype.upper()], transposed)


def few_terms(dtype: str) -> int:
    """Returns the most rows for which a weight's gradient has a loop of its own; 0 if it has none."""
    return load().hpmoe_few_terms(Dtype[dtype.upper()])


def use_amx(allowed: bool, core_is_shared: bool | None = None) -> bool:
    """Allows or forbids AMX matrix units for bfloat16 and float32 products; returns whether they are used. The bits are the
    same. Products measure whether the core's other hardware thread is busy, unless `core_is_shared` is given."""
    return bool(load().hpmoe_use_amx(bool(allowed), -1 if core_is_shared is None else core_is_shared))


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """Loads the library, with its signatures declared; it uses MindSpore's oneDNN if that can be loaded."""
    types = {f"Hpmoe{x.__name__}": x for x in (Rank, Status, Failure, Hosts, Traffic, Rows, Tables)}
    runtime = loading.load_library(find_library(), "hpmoe_abi_version", ABI_VERSION, {
        **loading.read_signatures(FOLDER / "core/abi.h", {**types, "HpmoeRunRank": ctypes.c_void_p}),
        **loading.read_signatures(FOLDER / "simulator/simulate.h", types)})
    blas = find_blas()
    if blas is not None:
        runtime.hpmoe_use_blas(str(blas).encode())  # the library's own loop stays where this one does not load
    return runtime
