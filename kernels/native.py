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
    """The path of the runtime's compiled library. Raises ImportError when it has not been built."""
    return loading.find_library(FOLDER, "_native*.so")


def find_blas() -> Path | None:
    """Returns the path of oneDNN's shared library in the MindSpore package; None if MindSpore or the file is missing."""
    spec = find_spec("mindspore")
    if spec is None or not spec.submodule_search_locations:
        return None
    found = sorted(Path(spec.submodule_search_locations[0], "lib").glob("libdnnl.so*"))
    return found[0] if found else None


def find_ucx() -> Path | None:
    """The folder of UCX's libraries in the package libucx, which the extra `hosts` brings; None without it."""
    spec = find_spec("libucx")
    if spec is None or not spec.submodule_search_locations:
        return None
    folder = Path(spec.submodule_search_locations[0], "lib")
    return folder if (folder / "libucp.so.0").exists() else None


def ucx_fault() -> str:
    """Why UCX cannot carry messages between hosts; empty where it can."""
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
    """The matrix product of vector units: "dnnl_sgemm" of MindSpore's oneDNN, or "own"."""
    return load().hpmoe_gemm_name().decode()


def products_name() -> str:
    """Names the matrix multiplication that this CPU uses."""
    return f"AMX, elsewhere {gemm_name()}" if load().hpmoe_uses_amx() else gemm_name()


def skinny_rows(dtype: str, transposed: bool = False) -> int:
    """Up to how many rows a product with a matrix, transposed or not, takes a way of its own; 0 where none does."""
    return load().hpmoe_skinny_rows(Dtype[dtype.upper()], transposed)


def few_terms(dtype: str) -> int:
    """Up to how many rows a weight's gradient takes a way of its own; 0 where none does."""
    return load().hpmoe_few_terms(Dtype[dtype.upper()])


def use_amx(allowed: bool, core_is_shared: bool | None = None) -> bool:
    """Lets bfloat16 and float32 products use the matrix units of the core (AMX), or not; returns whether they do. They
    measure whether the core's other hardware thread is busy, unless told by `core_is_shared`: the bits are the same."""
    return bool(load().hpmoe_use_amx(bool(allowed), -1 if core_is_shared is None else core_is_shared))


def _link_signatures() -> loading.Signatures:
    """Sets signatures of the functions for ranks that are processes."""
    handle, number, words, status = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(ctypes.c_int32), ctypes.POINTER(Status)
    call = [handle, ctypes.c_char_p, ctypes.c_uint64]
    return {
        "hpmoe_heap_make": (ctypes.c_int32, [number]),
        "hpmoe_link_open": (handle, [ctypes.c_int32, ctypes.c_int32, words, words, words, ctypes.POINTER(Hosts)]),
        "hpmoe_ucx_fault": (ctypes.c_char_p, [ctypes.c_char_p]),
        "hpmoe_link_close": (None, [handle]),
        "hpmoe_link_set_crowded": (None, [handle, ctypes.c_int32]),
        "hpmoe_link_heap": (handle, [handle, ctypes.c_int32]),
        "hpmoe_link_take": (number, [handle, number]),
        "hpmoe_link_give": (None, [handle, number]),
        "hpmoe_link_meet": (ctypes.c_int, [*call, ctypes.c_char_p, number, ctypes.c_double, ctypes.c_int32, status]),
        "hpmoe_link_told": (handle, [handle, ctypes.c_int32, ctypes.POINTER(number)]),
        "hpmoe_link_fail": (None, [handle, ctypes.c_char_p]),
        "hpmoe_link_failure": (None, [handle, ctypes.POINTER(Failure)]),
        "hpmoe_link_leave": (None, [handle, ctypes.c_char_p]),
        "hpmoe_link_traffic": (None, [handle, ctypes.POINTER(Traffic)]),
        "hpmoe_link_waited_ns": (number, [handle, ctypes.c_int32]),
        "hpmoe_link_launch": (ctypes.c_int, [*call, handle, number, ctypes.POINTER(Rank), handle, ctypes.c_int32,
                                             ctypes.c_double, handle, handle, ctypes.c_int32, status]),
        "hpmoe_link_launch_by": (ctypes.c_int, [handle, handle, handle, *call[1:], ctypes.c_char_p, number, ctypes.c_double,
                                                ctypes.c_int32, status]),
    }


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The loaded library with its signatures declared, using MindSpore's oneDNN where it can be loaded."""
    runtime = loading.load_library(find_library(), "hpmoe_abi_version", ABI_VERSION, _signatures())
    blas = find_blas()
    if blas is not None:
        runtime.hpmoe_use_blas(str(blas).encode())  # the library's own loop stays where this one does not load
    return runtime


def _signatures() -> loading.Signatures:
    simulate = [
        *(ctypes.c_void_p, ctypes.c_int64),  # image
        *(ctypes.POINTER(Rank), ctypes.c_int32),
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64),  # machine, work, parts
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),  # times, released_by, missed, totals
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32),  # served, moved, busy, bins
        ctypes.POINTER(Status),
    ]
    launch = [
        *(ctypes.c_void_p, ctypes.c_int64),  # image
        *(ctypes.POINTER(Rank), ctypes.c_int32),
        *(ctypes.c_int32, ctypes.c_double),  # threads, timeout
        *(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int32),  # trace, moved, interruptible
        ctypes.POINTER(Status),
    ]
    rows = ctypes.POINTER(Rows)
    return {
        "hpmoe_launch": (ctypes.c_int, launch),
        "hpmoe_simulate": (ctypes.c_int, simulate),
        "hpmoe_image_fault": (ctypes.c_char_p, [ctypes.c_void_p, ctypes.c_int64]),
        "hpmoe_pack_templates": (ctypes.c_int, [ctypes.POINTER(Tables), *[ctypes.c_void_p] * 5]),
        "hpmoe_use_blas": (ctypes.c_int, [ctypes.c_char_p]),
        "hpmoe_gemm_name": (ctypes.c_char_p, []),
        "hpmoe_uses_amx": (ctypes.c_int, []),
        "hpmoe_use_amx": (ctypes.c_int, [ctypes.c_int, ctypes.c_int]),
        "hpmoe_skinny_rows": (ctypes.c_int64, [ctypes.c_int32, ctypes.c_int]),
        "hpmoe_few_terms": (ctypes.c_int64, [ctypes.c_int32]),
        "hpmoe_sort": (ctypes.c_int64, [ctypes.c_void_p, ctypes.c_int64, *[ctypes.c_void_p] * 3]),
        "hpmoe_spread_rows": (ctypes.c_int64, [rows, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]),
        "hpmoe_collect_rows": (ctypes.c_int64, [rows, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_int32,
                                                ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]),
        "hpmoe_collect_rows_grad": (ctypes.c_int64, [rows, ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p,
                                                     ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p]),
        "hpmoe_copy_streamed": (None, [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]),
        **_link_signatures(),
    }
