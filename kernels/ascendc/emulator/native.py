"""The emulator's library through ctypes: the unmodified source of the Ascend kernel on an emulated NPU."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpmoe.kernels.native import Status
from hpmoe.support import loading

COMPILED = Path(__file__).parents[2] / "_emulator.so"
ABI_VERSION = 11


class Rank(ctypes.Structure):
    """HpmoeEmulatorRank of ascendc/emulator/api.h."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("buffers", "sizes", "symmetric", "counters", "targets", "tables")] + [
        ("num_tokens", ctypes.c_int64), ("begin", ctypes.c_void_p), ("of", ctypes.c_void_p), ("statuses", ctypes.c_void_p)]


class Effort(ctypes.Structure):
    """The work of an AIV, and an estimate of its cycles: emulator::Effort."""

    _fields_ = [(name, ctypes.c_int64) for name in (
        "cycles", "scalar_words", "cached_lines", "vector_instructions", "vector_steps", "copies", "waits_for_copies")]


class Decoding(ctypes.Structure):
    """The work of decoding tasks on the scalar units of all AIC, or of all AIV: emulator::Decoding."""

    _fields_ = [(name, ctypes.c_int64) for name in ("tasks", "words", "lines", "cycles")]


class Counts(ctypes.Structure):
    """Bytes and operations of all cores of a launch, the busiest AIV, and the plan of the launch: emulator::Counts."""

    _fields_ = [*[(name, ctypes.c_int64) for name in (
        "gm_to_ub", "ub_to_gm", "gm_to_l1", "l1_to_gm", "l1_to_l0a", "l1_to_l0b", "l0c_to_gm", "cube_flops",
        "vector_bytes")], ("busiest", Effort),
                ("aic", Decoding), ("aiv", Decoding), ("l0_loads", ctypes.c_int64),
                *[(name, ctypes.c_int64 * 24) for name in ("to_ub", "from_ub", "to_l1", "from_l0c")],
                ("plan", ctypes.c_int64), ("system_us", ctypes.c_int64)]


class Launch(ctypes.Structure):
    """HpmoeEmulatorLaunch of ascendc/emulator/api.h."""

    _fields_ = [("image", ctypes.c_void_p), ("image_bytes", ctypes.c_int64), ("mine", ctypes.POINTER(Rank)),
                ("epoch", ctypes.c_int32), ("timeout", ctypes.c_double), ("seed", ctypes.c_uint64),
                ("counts", ctypes.POINTER(Counts))]


@cache
def load() -> ctypes.CDLL:
    """Loads the emulator with the kernel in it; raises ImportError if it has not been built since its sources changed."""
    path = loading.find_library(COMPILED.parent, COMPILED.name)
    types = {"HpmoeEmulatorRank": Rank, "HpmoeStatus": Status, "emulator::Counts": Counts, "HpmoeKernel": ctypes.c_void_p}
    return loading.load_library(path, "hpmoe_emulator_abi_version", ABI_VERSION,
                                loading.read_signatures(Path(__file__).with_name("api.h"), types))


class Kept(NamedTuple):
    """Arrays that a rank keeps in its symmetric heap between launches: counters, their values, two routing tables."""

    counters: np.ndarray
    targets: np.ndarray
    tables: np.ndarray
