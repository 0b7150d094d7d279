"""The functions of planner.h over the tables of a Taskflow."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.native.loading import find_library, load_library

FOLDER = Path(__file__).parent
ABI_VERSION = 2
OUT_OF_MEMORY = 1


class _Flow(ctypes.Structure):
    """HpmoeFlow of planner.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tasks", "waits", "signals", "events", "queue_starts", "queue_tasks")),
        *((name, ctypes.c_int64) for name in ("num_tasks", "num_waits", "num_signals", "num_events", "num_queues"))]


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """The loaded library with its signatures declared."""
    pointer, flow, word, size = ctypes.c_void_p, ctypes.POINTER(_Flow), ctypes.c_int32, ctypes.c_int64
    return load_library(find_library(FOLDER, "_planner*.so"), "hpmoe_planner_abi_version", ABI_VERSION, {
        "hpmoe_find_runnable": (ctypes.c_int, [flow, pointer]),
        "hpmoe_schedule": (ctypes.c_int, [flow, pointer, pointer, pointer, word, pointer, pointer]),
        "hpmoe_prune_waits": (ctypes.c_int, [flow, pointer, pointer]),
        "hpmoe_sort_by_task": (ctypes.c_int, [pointer, size, word, size, word, pointer, pointer]),
    })


def find_runnable(flow: tf.Taskflow) -> np.ndarray:
    """Which tasks get to run, [num_tasks] bool: when every queue runs in order, or in any order where there are none."""
    done = np.zeros(flow.num_tasks, bool)
    _call("hpmoe_find_runnable", flow, done)
    return done


def schedule(flow: tf.Taskflow, costs: np.ndarray, kinds: np.ndarray, num_queues: Sequence[int]) -> list[np.ndarray]:
    """List scheduling: whenever a worker is free it takes the ready task of its kind with the longest path to the end.

    Args:
        costs: of each task, [num_tasks].
        kinds: which kind of worker each task needs, [num_tasks].
        num_queues: workers of each kind.

    Returns:
        The tasks of each queue, in order; those of the first kind come first.
    """
    kind_starts = np.cumsum([0, *num_queues], dtype=np.int32)
    starts, tasks = np.zeros(kind_starts[-1] + 1, np.int32), np.zeros(flow.num_tasks, np.int32)
    _call("hpmoe_schedule", flow.replace(queues=()), np.asarray(costs, np.float64), np.asarray(kinds, np.uint8), kind_starts,
          len(num_queues), starts, tasks)
    return np.split(tasks[:starts[-1]].astype(np.int64), starts[1:-1])


def prune_waits(flow: tf.Taskflow) -> np.ndarray:
    """Which waits of an assigned taskflow its order does not imply, [num_waits] bool; see prune.cc."""
    needed = np.zeros(len(flow.waits), bool)
    _call("hpmoe_prune_waits", flow, np.isin(flow.events["extent"], (tf.SLOT, tf.TILE, tf.STATIC_TILE)), needed)
    return needed


def sort_by_task(table: np.ndarray, num_tasks: int, unique: bool = False) -> np.ndarray:
    """A WAIT or SIGNAL table sorted by task, the order of a task's rows kept; where `unique` sorted too, each once."""
    table, out, left = np.ascontiguousarray(table), np.empty_like(table), np.zeros(1, np.int64)
    result = load().hpmoe_sort_by_task(table.ctypes.data, len(table), table.itemsize // 4, num_tasks, unique,
                                       out.ctypes.data, left.ctypes.data)
    _check(result, f"sort_by_task: a table names a task that does not exist; there are {num_tasks}")
    return out[:left[0]]


def _check(result: int, text: str) -> None:
    if result == OUT_OF_MEMORY:
        raise MemoryError("hpmoe: not enough memory to plan")
    if result:
        raise ValueError(text)


def _call(name: str, flow: tf.Taskflow, *arguments: np.ndarray | int) -> None:
    """Calls a function of the library with the flow's tables and further arguments, arrays by their address."""
    tables = [np.ascontiguousarray(table, dtype) for table, dtype in (
        (flow.tasks, tf.TASK), (flow.waits, tf.WAIT), (flow.signals, tf.SIGNAL), (flow.events, tf.EVENT),
        (np.cumsum([0, *map(len, flow.queues)]), np.int32),
        (np.concatenate([np.asarray(q) for q in flow.queues]) if flow.queues else (), np.int32))]
    native = _Flow(*(table.ctypes.data for table in tables), *map(len, tables[:4]), len(flow.queues))
    result = getattr(load(), name)(native, *(a if isinstance(a, int) else a.ctypes.data for a in arguments))
    _check(result, f"{name[len('hpmoe_'):]}: a table of {flow.name} names a task or an event that does not exist")
