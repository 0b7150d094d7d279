"""The reference interpreter of a Taskflow: NumPy bodies, real waits and signals, any legal order under a seed."""

from __future__ import annotations

import collections
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from hpmoe.interpreters.task_bodies import Moved, TaskBodies
from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout
from hpmoe.ir.padding import rank_lengths
from hpmoe.ir.taskflow_text import event_name, task_name
from hpmoe.support.dtypes import stored
from hpmoe.support.errors import LaunchError, check_argument, check_inputs, is_int
from hpmoe.support.known import known


def interpret_taskflow(flow: tf.Taskflow, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
                       seed: int | None = None, keep: list[list[np.ndarray]] | None = None) -> list[list[np.ndarray]]:
    """Runs the tasks of all ranks one at a time, each as soon as its waits are met. See `hpmoe.interpret`."""
    check_argument(seed is None or is_int(seed, least=0, most=2**64), "hpmoe.interpret", "seed",
                   repr(seed), "an int of at least 0, or None")
    check_argument(keep is None or isinstance(keep, list), "hpmoe.interpret", "keep", f"a {type(keep).__name__}",
                   "a list, or None")
    expected = [flow.buffers[b] for b in flow.inputs]
    check_inputs("hpmoe.interpret", inputs, flow.ep_size, [(b.name, b.shape) for b in expected])
    num_tokens = None if num_tokens is None else rank_lengths("hpmoe.interpret", num_tokens, flow.ep_size)
    run = _Run(flow, inputs, num_tokens)
    run.execute(np.random.default_rng(seed) if seed is not None else None)
    if keep is not None:
        keep.extend(run.memory)
    return [[flow.buffers[b].user_view(run.memory[r][b]) for b in flow.outputs] for r in range(flow.ep_size)]


class _Run:
    def __init__(self, flow: tf.Taskflow, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None):
        self.flow, self.ranks = flow, range(flow.ep_size)
        position = {b: i for i, b in enumerate(flow.inputs)}
        def choices(b: int, plan: tf.RoutePlan) -> list[np.ndarray]:
            return [np.reshape(inputs[r][position[b]], (plan.num_tokens, plan.num_choices)) for r in self.ranks]

        ids = [[] if plan.kind.is_of_tokens else choices(plan.ids, plan) for plan in flow.routes]
        weights = [choices(plan.weights, plan) if plan.drops_by_weight else None for plan in flow.routes]
        self.layout = Layout(flow, ids, num_tokens, weights)
        self.memory = [[self._allocate(r, b, inputs[r], position) for b in range(len(flow.buffers))] for r in self.ranks]
        for r in self.ranks:
            self._share_memory(self.memory[r])
            for b, buffer in enumerate(flow.buffers):
                if buffer.storage != b:
                    self.memory[r][b] = self.memory[r][buffer.storage].reshape(self._matrix(r, b))
        self.bodies = TaskBodies(flow, self.layout, self.memory)
        self.counters = np.zeros((flow.ep_size, len(flow.deps.events)), np.int64)
        self.thresholds = np.stack([self.layout.thresholds(r) for r in self.ranks])
        self.waits_of = tf.by_task(flow.deps.waits, flow.num_tasks)
        self.signals_of = tf.by_task(flow.deps.signals, flow.num_tasks)

    # Memory.

    def _matrix(self, rank: int, b: int) -> tuple[int, int]:
        buffer = self.flow.buffers[b]
        rows = known(buffer.num_rows) if buffer.route < 0 else self.layout.routings[buffer.route].num_rows(rank)
        return rows, buffer.cols

    def _allocate(self, rank: int, b: int, inputs: Sequence[np.ndarray], position: dict[int, int]) -> np.ndarray:
        buffer = self.flow.buffers[b]
        dtype = buffer.stored_dtype
        if b in position:
            return np.ascontiguousarray(stored(inputs[position[b]], buffer.dtype), dtype).reshape(self._matrix(rank, b))
        is_padded = buffer.role == "output" and self.layout.num_tokens is not None and buffer.route < 0
        unwritten = {"i": 0, "u": 0xFF}.get(dtype.kind, np.nan)  # bytes of which scales are NaN
        return np.full(self._matrix(rank, b), 0 if is_padded else unwritten, dtype)

    def _share_memory(self, arrays: list[np.ndarray]) -> None:
        """Moves the arrays of buffers that live in one memory into one block of bytes, which read as NaN."""
        for home in {b.memory for b in self.flow.buffers} - {-1}:
            members = [b for b, buffer in enumerate(self.flow.buffers) if home in (b, buffer.memory)]
            block = np.full(max(arrays[b].nbytes for b in members), 0xFF, np.uint8)
            for b in members:
                arrays[b] = block[:arrays[b].nbytes].view(arrays[b].dtype).reshape(arrays[b].shape)

    # Order.

    def execute(self, rng: np.random.Generator | None) -> None:
        """Runs every queue of every rank; a taskflow without queues is a bag of tasks."""
        queues = self.flow.queues or [[t] for t in range(self.flow.num_tasks)]
        pending = [(rank, collections.deque(map(int, queue))) for rank in self.ranks for queue in queues if len(queue)]
        while pending:
            if rng is not None:
                pending = [pending[i] for i in rng.permutation(len(pending))]
            has_moved = [self._advance(rank, queue, one=rng is not None) for rank, queue in pending]
            pending = [(rank, queue) for rank, queue in pending if queue]
            if not any(has_moved):
                rank, queue = pending[0]
                self._stuck(rank, queue[0])

    def _advance(self, rank: int, queue: collections.deque[int], one: bool) -> bool:
        """Runs the tasks at the head of a queue as far as their waits allow, or only one; whether there was one to run."""
        has_moved = False
        while queue and not (one and has_moved) and self._reached(rank, queue[0]):
            self._task(rank, queue.popleft())
            has_moved = True
        return has_moved

    def _event(self, rank: int, task: np.void, wait: np.void) -> int:
        if wait["kind"] == tf.SLOT_EXPERT:
            route = self.flow.ops[task["op"]].domain.route
            return int(wait["event"]) + int(self.layout.slots[route][rank].expert[task["row"]])
        return int(wait["event"])

    def _reached(self, rank: int, t: int) -> bool:
        events = [self._event(rank, self.flow.tasks[t], w) for w in self.waits_of(t)]
        return all(self.counters[rank, e] >= self.thresholds[rank, e] for e in events)

    def _stuck(self, rank: int, t: int) -> NoReturn:
        for wait in self.waits_of(t):
            e = self._event(rank, self.flow.tasks[t], wait)
            if self.counters[rank, e] < self.thresholds[rank, e]:
                raise LaunchError(f"interpret: rank {rank} task t{t} {task_name(self.flow, t)} waits for "
                                  f"{event_name(self.flow, e)}, which counts {self.counters[rank, e]} of "
                                  f"{self.thresholds[rank, e]}, and no task can run any more")
        raise LaunchError(f"interpret: rank {rank} task t{t} cannot run")

    # Tasks.

    def _task(self, rank: int, t: int) -> None:
        moved = self.bodies.run(rank, t)
        task = self.flow.tasks[t]
        for signal in self.signals_of(t):
            self._signal(rank, self.flow.ops[task["op"]], task, signal, moved)

    def _signal(self, rank: int, op: tf.TileOp, task: np.void, signal: np.void, moved: Moved) -> None:
        event, kind = int(signal["event"]), signal["kind"]
        if (signal["amount"], signal["remote"], kind) == (tf.COUNT, tf.LOCAL, tf.STATIC):
            self.counters[rank, event] += 1
            return
        if isinstance(moved, list):  # of copies
            for move in moved:
                self.counters[move.peer, event + move.expert] += move.rows
            return
        targets = {rank: moved} if isinstance(moved, int) else moved
        for target, what in targets.items():
            amount = 1 if signal["amount"] == tf.COUNT else (what if isinstance(what, int) else len(what))
            where = rank if signal["remote"] == tf.LOCAL else target
            if kind == tf.ENTRY_TILE:
                np.add.at(self.counters[where], event + self._units(rank, op, task, np.asarray(what)), 1)
                continue
            owner = target if op.primitive.is_put and not op.primitive.is_back else rank
            place = int(self.layout.slots[op.domain.route][owner].expert[task["row"]]) if kind == tf.SLOT_EXPERT else 0
            self.counters[where, event + place] += amount

    def _units(self, rank: int, op: tf.TileOp, task: np.void, entries: np.ndarray) -> np.ndarray:
        """Returns the index of the event that each entry or row of a task increments.

        A row that a task fans out increments the event of its slot. An entry that a task returns increments the event of
        its block of `return_tokens` tokens; padding counts with the first tokens.
        """
        if op.fans_out:
            return self.bodies.fanned_slots(rank, task)
        plan = self.flow.routes[op.domain.route]
        return np.maximum(entries, 0) // (plan.top_k * plan.return_tokens)


def _run(flow: tf.Taskflow, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
         seed: int | None = None, keep: list[list[np.ndarray]] | None = None, **_: object) -> list[list[np.ndarray]]:
    return interpret_taskflow(flow, inputs, num_tokens, seed, keep)


tf.Taskflow.interpreter = _run
