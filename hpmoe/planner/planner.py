"""The functions of planner.h over the tables of a Taskflow."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.support.loading import find_library, load_library, read_signatures

FOLDER = Path(__file__).parent
ABI_VERSION = 9
OUT_OF_MEMORY = 1
# Rows of HpmoeDealt, HpmoeGrid and HpmoeRule of planner.h.
DEALT = np.dtype([("first_queue", "i4"), ("num_queues", "i4")])
GRID = np.dtype([(name, "i4") for name in ("first_unit", "num_units", "num_peers", "num_cols", "blocks")])
RULE = np.dtype([(name, "i4") for name in (
    "op", "first_col", "last_col", "block", "event", "units", "by_unit", "by_expert", "by_peer", "kind", "amount",
    "remote")])


class _Flow(ctypes.Structure):
    """HpmoeFlow of planner.h."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("tasks", "waits", "signals", "events", "queue_starts", "queue_tasks")),
        *((name, ctypes.c_int64) for name in ("num_tasks", "num_waits", "num_signals", "num_events", "num_queues"))]


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """Loads the planner's library, with its signatures declared."""
    return load_library(find_library(FOLDER, "_planner*.so"), "hpmoe_planner_abi_version", ABI_VERSION,
                        read_signatures(Path(__file__).with_name("planner.h"), {"HpmoeFlow": _Flow}))


def find_runnable(flow: tf.Taskflow) -> np.ndarray:
    """Returns the tasks that get to run, [num_tasks] bool, with queues in order, or without queues in any order."""
    done = np.zeros(flow.num_tasks, bool)
    _ask("hpmoe_find_runnable", flow, done)
    return done


def schedule(flow: tf.Taskflow, costs: np.ndarray, kinds: np.ndarray, num_queues: Sequence[int],
             order: np.ndarray | None = None, seen_us: float = 0.0) -> tuple[list[np.ndarray], np.ndarray]:
    """Schedules a list: whenever a worker is free it takes the ready task of its kind that is wanted most.

    Args:
        costs: microseconds of each task, [num_tasks].
        kinds: index of the kind of worker that each task needs, [num_tasks].
        num_queues: workers of each kind.
        order: [num_tasks], not negative: the task with the least is wanted most; where None, the one with the longest path
            to the end.
        seen_us: microseconds from the end of a task until tasks that wait for it can begin.

    Returns:
        The tasks of each queue, in order, those of the first kind first; and for each task how many began before it.
    """
    kind_starts = np.cumsum([0, *num_queues], dtype=np.int32)
    starts, tasks, sequence = (np.zeros(n, np.int32) for n in (kind_starts[-1] + 1, flow.num_tasks, flow.num_tasks))
    _ask("hpmoe_schedule", flow.replace(queues=()), np.asarray(costs, np.float64), float(seen_us),
          None if order is None else np.asarray(order, np.int64), np.asarray(kinds, np.uint8), kind_starts, len(num_queues),
          starts, tasks, sequence)
    return _split(tasks, starts), sequence


def deal(flow: tf.Taskflow, sequence: np.ndarray, queue: np.ndarray, dealt: np.ndarray, num_queues: int) -> list[np.ndarray]:
    """Returns the tasks of each queue, in the order of a `sequence` from `schedule`.

    Args:
        queue: queue of each task, or -1 if it is dealt out, [num_tasks].
        dealt: DEALT [num_ops], the queues among which tasks of each operation are dealt out in turn.
    """
    starts, tasks = np.zeros(num_queues + 1, np.int32), np.zeros(flow.num_tasks, np.int32)
    (tables, native), queue = _native(flow.replace(queues=())), np.array(queue, np.int32)
    sequence, dealt = np.ascontiguousarray(sequence, np.int32), np.ascontiguousarray(dealt, DEALT)
    result = load().hpmoe_deal(native, sequence.ctypes.data, dealt.ctypes.data, len(dealt), queue.ctypes.data, num_queues,
                               starts.ctypes.data, tasks.ctypes.data)
    del tables  # alive until here
    _check(result, "deal: a task is for a queue that does not exist, or two have one number of the sequence")
    return _split(tasks, starts)


def _split(tasks: np.ndarray, starts: np.ndarray) -> list[np.ndarray]:
    return [tasks[first:last] for first, last in itertools.pairwise(starts.tolist())]


def are_queues(flow: tf.Taskflow, unit_of_op: np.ndarray, units_of_queue: np.ndarray) -> bool:
    """Returns True if queues hold each task once, in a queue of its unit: a bit of `units_of_queue`, [num_queues].

    Args:
        unit_of_op: the bit of each operation's tasks, [num_ops].
    """
    unit_of_op, units_of_queue = (np.ascontiguousarray(x, np.uint8) for x in (unit_of_op, units_of_queue))
    (tables, native), are = _native(flow), np.zeros(1, bool)
    result = load().hpmoe_are_queues(native, unit_of_op.ctypes.data, len(unit_of_op), units_of_queue.ctypes.data,
                                     are.ctypes.data)
    del tables  # alive until here
    return result == 0 and bool(are[0])


def prune_waits(flow: tf.Taskflow) -> np.ndarray:
    """Returns the waits of an assigned taskflow that its order does not imply, [num_waits] bool, read-only; see prune.cc."""
    return _prune(_ByIdentity(flow, *_tables(flow), *flow.queues))


def _tables(flow: tf.Taskflow) -> tuple[np.ndarray, ...]:
    return flow.tasks, flow.deps.waits, flow.deps.signals, flow.deps.events


class _ByIdentity:
    """Taskflow as a key: equal to another with identical arrays, if these are read-only."""

    def __init__(self, flow: tf.Taskflow, *arrays: np.ndarray):
        self.flow, self.arrays = flow, arrays

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.arrays)))

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, _ByIdentity) and len(self.arrays) == len(other.arrays)
                and all(a is b and isinstance(a, np.ndarray) and not a.flags.writeable
                        for a, b in zip(self.arrays, other.arrays, strict=True)))


@lru_cache(maxsize=1)  # verify asks again what assign_queues has just asked of the same tables and queues
def _prune(key: _ByIdentity) -> np.ndarray:
    flow, needed = key.flow, np.zeros(len(key.flow.deps.waits), bool)
    _ask("hpmoe_prune_waits", flow, np.isin(flow.deps.events["extent"], (tf.SLOT, tf.TILE, tf.STATIC_TILE)), needed)
    needed.setflags(write=False)
    return needed


class _Graph:
    """HpmoeGraph of planner.h: the order that the waits and signals of a taskflow impose, and the tables it is made of."""

    def __init__(self, flow: tf.Taskflow):
        self.tables, native = _native(flow.replace(queues=()))
        self.pointer, self._free = ctypes.c_void_p(), load().hpmoe_free_graph
        self.result = load().hpmoe_make_graph(native, ctypes.byref(self.pointer))

    def __del__(self) -> None:
        if getattr(self, "pointer", None):
            self._free(self.pointer)


@lru_cache(maxsize=2)  # a flow is scheduled, pruned and verified, in between perhaps scheduled with other waits
def _graph(key: _ByIdentity) -> _Graph:
    return _Graph(key.flow)


@lru_cache(maxsize=1)
def _joined_queues(key: _ByIdentity) -> tuple[np.ndarray, np.ndarray]:
    """Returns the start of each queue, and the tasks of all, queue by queue."""
    queues = [np.asarray(q) for q in key.flow.queues]
    tasks = np.concatenate([np.zeros(0, np.int32), *queues], dtype=np.int32, casting="unsafe")
    return np.cumsum([0, *map(len, queues)], dtype=np.int32), tasks


def forget() -> None:
    """Empties the caches of this module."""
    _prune.cache_clear()
    _graph.cache_clear()
    _joined_queues.cache_clear()


def renumbered(table: np.ndarray, number: np.ndarray, kept: np.ndarray | None = None) -> np.ndarray:
    """Returns the `kept` rows of a WAIT array, or those of a SIGNAL array about events with a number, with new numbers.

    Args:
        number: new number of each event, or -1, [num_events].
        kept: [rows] bool, of a WAIT array.
    """
    table, number, count = np.ascontiguousarray(table), np.ascontiguousarray(number, np.int32), np.zeros(1, np.int64)
    out, name = np.empty(len(table), table.dtype), "waits" if kept is not None else "signals"
    chosen = () if kept is None else (kept.ctypes.data,)
    result = getattr(load(), f"hpmoe_renumber_{name}")(table.ctypes.data, len(table), *chosen, number.ctypes.data,
                                                       len(number), out.ctypes.data, count.ctypes.data)
    _check(result, f"renumbered: one of the {name} is about an event that does not exist")
    return out[:count[0]]


def expand_rules(grids: np.ndarray, rules: np.ndarray, num_rows: int, dtype: np.dtype) -> np.ndarray:
    """Returns the WAIT or SIGNAL table, at most `num_rows` long, of GRID and RULE arrays sorted by op; see planner.h."""
    out, count = np.empty(num_rows, dtype), np.zeros(1, np.int64)
    expand = load().hpmoe_expand_waits if dtype == tf.WAIT else load().hpmoe_expand_signals
    result = expand(grids.ctypes.data, len(grids), rules.ctypes.data, len(rules), out.ctypes.data, num_rows,
                    count.ctypes.data)
    _check(result, "expand_rules: a rule is about tasks that do not exist")
    return out[:count[0]]


def _check(result: int, text: str) -> None:
    if result == OUT_OF_MEMORY:
        raise MemoryError("hpmoe: not enough memory to plan")
    if result:
        raise ValueError(text)


def _native(flow: tf.Taskflow) -> tuple[list[np.ndarray], _Flow]:
    """Returns the flow's tables as the library reads them, and a struct that points to them while they are alive."""
    dtypes = tf.TASK, tf.WAIT, tf.SIGNAL, tf.EVENT
    tables = [np.ascontiguousarray(table, dtype) for table, dtype in zip(_tables(flow), dtypes, strict=True)]
    tables += _joined_queues(_ByIdentity(flow, *flow.queues))
    return tables, _Flow(*(table.ctypes.data for table in tables), *map(len, tables[:4]), len(flow.queues))


def _ask(name: str, flow: tf.Taskflow, *arguments: np.ndarray | float | None) -> None:
    """Calls a function of the library with the flow's tables, their graph and further arguments, arrays by their address."""
    (tables, native), graph = _native(flow), _graph(_ByIdentity(flow, *_tables(flow)))
    result = graph.result or getattr(load(), name)(native, graph.pointer, *(
        a if isinstance(a, (int, float)) or a is None else a.ctypes.data for a in arguments))
    del tables  # alive until here
    _check(result, f"{name[len('hpmoe_'):]}: a table of {flow.name} names a task or an event that does not exist")


def transitive_reduction(flow: tf.Taskflow) -> tf.Taskflow:
    """Returns the schedule without the waits that its order implies, and without event blocks that no task waits for."""
    deps, needed = flow.deps, prune_waits(flow)
    waited_events = np.zeros(len(deps.events), bool)
    waited_events[deps.waits["event"][needed]] = True
    waited = np.zeros(len(deps.blocks), bool)
    waited[deps.events["block"][waited_events]] = True
    if waited.all():
        return flow.replace(deps=deps.replace(waits=deps.waits[needed]))
    kept = waited[deps.events["block"]]
    number, number_of_block = np.where(kept, np.cumsum(kept) - 1, -1), np.cumsum(waited) - 1
    events = deps.events[kept]
    events["block"] = number_of_block[events["block"]]
    blocks = tuple(deps.blocks[b].replace(first=int(number[deps.blocks[b].first])) for b in np.flatnonzero(waited))
    waits, signals = renumbered(deps.waits, number, needed), renumbered(deps.signals, number)
    return flow.replace(deps=deps.replace(waits=waits, signals=signals, events=events, blocks=blocks))
