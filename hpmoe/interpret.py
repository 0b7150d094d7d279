"""The reference interpreter of a Taskflow: NumPy bodies, real waits and signals, any legal order under a seed."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.dtypes import numpy_dtype, storage_dtype, stored, widen
from hpmoe.errors import LaunchError, check_argument, check_inputs, is_int
from hpmoe.layout import Layout, Move
from hpmoe.primitives.fan import add_choices
from hpmoe.primitives.primitive import REGISTRY
from hpmoe.routing import Route


def interpret(flow: tf.Taskflow, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
              seed: int | None = None, keep: list[list[np.ndarray]] | None = None) -> list[list[np.ndarray]]:
    """Runs the tasks of all ranks one at a time, each as soon as its waits are met.

    Args:
        flow: with or without queues; with queues each queue runs in order.
        inputs: for each rank, one array for each program input.
        num_tokens: tokens of each rank; all by default.
        seed: picks among the tasks that may run next; None takes them in program order.
        keep: where given, receives every buffer of every rank.

    Returns:
        For each rank, the list of outputs.

    Raises:
        LaunchError: some tasks can never run; the text names the first of them and what it waits for.
    """
    check_argument(isinstance(flow, tf.Taskflow), "hpmoe.interpret", "flow", f"a {type(flow).__name__}",
                   "a Taskflow, as f.lower(*args) makes it after tile_partition")
    check_argument(seed is None or is_int(seed, least=0, most=2**64), "hpmoe.interpret", "seed",
                   repr(seed), "an int of at least 0, or None")
    expected = [flow.buffers[b] for b in flow.inputs]
    check_inputs("hpmoe.interpret", inputs, flow.ep_size, [(b.name, b.shape) for b in expected])
    run = _Run(flow, inputs, num_tokens)
    run.execute(np.random.default_rng(seed) if seed is not None else None)
    if keep is not None:
        keep.extend(run.memory)
    return [[flow.buffers[b].user_view(run.memory[r][b]) for b in flow.outputs] for r in range(flow.ep_size)]


class _Run:
    def __init__(self, flow: tf.Taskflow, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None):
        self.flow, self.ranks = flow, range(flow.ep_size)
        position = {b: i for i, b in enumerate(flow.inputs)}
        ids = [[np.asarray(inputs[r][position[plan.ids]]) for r in self.ranks] for plan in flow.routes]
        weights = [[inputs[r][position[plan.weights]] for r in self.ranks] if plan.drops_by_weight else None
                   for plan in flow.routes]
        self.layout = Layout(flow, ids, num_tokens, weights)
        self.memory = [[self._allocate(r, b, inputs[r], position) for b in range(len(flow.buffers))] for r in self.ranks]
        for r in self.ranks:
            self._share_memory(self.memory[r])
            for b, buffer in enumerate(flow.buffers):
                if buffer.storage != b:
                    self.memory[r][b] = self.memory[r][buffer.storage].reshape(self._matrix(r, b))
        self.counters = np.zeros((flow.ep_size, len(flow.events)), np.int64)
        self.thresholds = np.stack([self.layout.thresholds(r) for r in self.ranks])
        self.waits_of = tf.by_task(flow.waits, flow.num_tasks)
        self.signals_of = tf.by_task(flow.signals, flow.num_tasks)

    # Memory.

    def _matrix(self, rank: int, b: int) -> tuple[int, int]:
        buffer = self.flow.buffers[b]
        rows = buffer.num_rows if buffer.route < 0 else self.layout.routings[buffer.route].num_rows(rank)
        return rows, buffer.cols

    def _allocate(self, rank: int, b: int, inputs: Sequence[np.ndarray], position: dict[int, int]) -> np.ndarray:
        buffer = self.flow.buffers[b]
        dtype = numpy_dtype(storage_dtype(buffer.dtype))
        if b in position:
            return np.ascontiguousarray(stored(inputs[position[b]], buffer.dtype), dtype).reshape(self._matrix(rank, b))
        is_padded = buffer.role == "output" and self.layout.num_tokens is not None and buffer.route < 0
        return np.full(self._matrix(rank, b), 0 if is_padded or dtype.kind == "i" else np.nan, dtype)

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
        flow = self.flow
        lines = [(r, list(q)) for r in self.ranks for q in (flow.queues or [[t] for t in range(flow.num_tasks)])]
        heads = [0] * len(lines)
        pending = [i for i, (_, line) in enumerate(lines) if line]
        while pending:
            order = rng.permutation(len(pending)) if rng is not None else range(len(pending))
            progressed, left = False, []
            for i in (pending[j] for j in order):
                rank, line = lines[i]
                while heads[i] < len(line) and self._reached(rank, int(line[heads[i]])):
                    self._task(rank, int(line[heads[i]]))
                    heads[i] += 1
                    progressed = True
                    if rng is not None:
                        break
                if heads[i] < len(line):
                    left.append(i)
            if not progressed:
                self._stuck(*[(lines[i][0], int(lines[i][1][heads[i]])) for i in left[:1]][0])
            pending = left

    def _event(self, rank: int, task: np.void, wait: np.void) -> int:
        if wait["kind"] == tf.SLOT_EXPERT:
            route = self.flow.ops[task["op"]].domain.route
            return int(wait["event"]) + int(self.layout.slots[route][rank].expert[task["row"]])
        return int(wait["event"])

    def _reached(self, rank: int, t: int) -> bool:
        events = [self._event(rank, self.flow.tasks[t], w) for w in self.waits_of(t)]
        return all(self.counters[rank, e] >= self.thresholds[rank, e] for e in events)

    def _stuck(self, rank: int, t: int) -> None:
        from hpmoe.taskflow_text import event_name, task_name
        for wait in self.waits_of(t):
            e = self._event(rank, self.flow.tasks[t], wait)
            if self.counters[rank, e] < self.thresholds[rank, e]:
                raise LaunchError(f"interpret: rank {rank} task t{t} {task_name(self.flow, t)} waits for "
                                  f"{event_name(self.flow, e)}, which counts {self.counters[rank, e]} of "
                                  f"{self.thresholds[rank, e]}, and no task can run any more")
        raise LaunchError(f"interpret: rank {rank} task t{t} cannot run")

    # Tasks.

    def _task(self, rank: int, t: int) -> None:
        task = self.flow.tasks[t]
        op = self.flow.ops[task["op"]]
        with np.errstate(over="ignore"):  # a stored value out of the range of its dtype is an infinity
            moved = getattr(self, f"_{op.opcode.lower()}", self._local)(rank, op, task)
        for signal in self.signals_of(t):
            self._signal(rank, op, task, signal, moved)

    def _rows(self, rank: int, op: tf.TileOp, row: int) -> slice:
        domain = op.domain
        if domain.kind == "slots":
            return self.layout.slot(rank, domain.route, row)
        if domain.kind == "tiles":
            return self.layout.tile(rank, domain, row)
        if domain.route >= 0 and domain.kind == "experts":
            return self.layout.expert(rank, domain.route, row // domain.blocks)
        return slice(0, 1)

    def _signal(self, rank: int, op: tf.TileOp, task: np.void, signal: np.void,
                moved: dict[int, np.ndarray] | int | list[Move]) -> None:
        """`moved` is the rows made ready, or for data sent the rows (or entries) that went to each rank, or matrix rows."""
        event, kind = int(signal["event"]), signal["kind"]
        if (signal["amount"], signal["remote"], kind) == (tf.COUNT, tf.LOCAL, tf.STATIC):
            self.counters[rank, event] += 1
            return
        if op.moves_copies:
            for move in moved:
                self.counters[move.peer, event + move.expert] += move.rows
            return
        targets = {rank: moved} if isinstance(moved, int) else moved
        for target, what in targets.items():
            amount = 1 if signal["amount"] == tf.COUNT else (what if isinstance(what, int) else len(what))
            where = rank if signal["remote"] == tf.LOCAL else target
            if kind == tf.ENTRY_TILE:
                slots = op.opcode == "FAN_OUT"
                top_k = self.layout.routings[op.domain.route].top_k
                tiles = self._fanned_slots(rank, op, task) if slots else what // top_k // self.flow.tile_rows
                np.add.at(self.counters[where], event + tiles, 1)
                continue
            if kind == tf.SLOT_EXPERT:
                owner = target if op.opcode == "PUT" else rank
                event = int(signal["event"]) + int(self.layout.slots[op.domain.route][owner].expert[task["row"]])
            self.counters[where, event] += amount

    # Bodies.

    def _operand(self, rank: int, op: tf.TileOp, task: np.void, access: tf.Access, rows: slice) -> np.ndarray | float:
        """The part of a buffer that a task reads or writes, as a view."""
        if access.buffer < 0:
            return access.value
        buffer, data = self.flow.buffers[access.buffer], self.memory[rank][access.buffer]
        cols = slice(None)
        if access.cols == "own" and op.cols:
            cols = slice(task["col"] + access.offset, task["col"] + access.offset + task["cols"])
        if access.rows in ("slot_expert", "replica"):
            expert = int(self.layout.slots[op.domain.route][rank].expert[task["row"]])
            height = buffer.rows_per_expert or 1
            if access.rows == "replica":  # of the rank's own experts there is none
                expert = max(-1, expert - self.flow.routes[op.domain.route].num_own_experts)
            return data[max(expert, 0) * height:(expert + 1) * height, cols]
        if access.rows == "own":
            return data[rows, cols]
        return data[:, cols]

    def _local(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        rows = self._rows(rank, op, int(task["row"]))
        count = rows.stop - rows.start
        if count > 0:
            views = [self._operand(rank, op, task, a, rows) for a in op.operands]
            views[op.num_outputs:] = (widen(v) if isinstance(v, np.ndarray) else v for v in views[op.num_outputs:])
            _BODIES[op.opcode](op, task, views)
        return count

    def _wgrad(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        rows = self._summed_rows(rank, op, task)
        x, g = (widen(self.memory[rank][a.buffer][rows]) for a in op.operands[1:3])
        out = self.memory[rank][op.operands[0].buffer]
        k = x.shape[1]
        expert, block = divmod(int(task["row"]) - op.first_row, op.domain.blocks)
        low, high = block * op.params[0], min((block + 1) * op.params[0], k)
        tile = slice(expert * k + low, expert * k + high), slice(task["col"], task["col"] + task["cols"])
        more = [self.memory[rank][a.buffer][tile] for a in op.operands[3:] if a.rows == "own"]
        for access in (a for a in op.operands[3:] if a.rows == "returned"):
            array, copies = self.memory[rank][access.buffer], self.layout.routings[op.domain.route].placement.copies[rank]
            more += [widen(array[i * k + low:i * k + high, tile[1]]) for i, c in enumerate(copies) if c.expert == expert]
        out[tile] = sum(more, x[:, low:high].T @ g[:, tile[1]])
        return 1

    def _col_sum(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        rows, cols = self._summed_rows(rank, op, task), slice(task["col"], task["col"] + task["cols"])
        x = widen(self.memory[rank][op.operands[1].buffer][rows, cols])
        self.memory[rank][op.operands[0].buffer].reshape(-1, op.cols)[task["row"], cols] = x.sum(axis=0)
        return 1

    def _summed_rows(self, rank: int, op: tf.TileOp, task: np.void) -> slice:
        if op.domain.route >= 0:
            return self.layout.expert(rank, op.domain.route, int(task["row"]) // op.domain.blocks)
        num_rows, clipped = op.params[1], bool(op.params[2])
        return slice(0, self.layout.limit(rank, tf.Domain("tiles", 0, num_rows, clipped)))

    def _reduce(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        tile = self._rows(rank, op, int(task["row"]))
        top_k = self.layout.routings[op.domain.route].top_k
        cols = slice(task["col"], task["col"] + task["cols"])
        entries = widen(self.memory[rank][op.operands[1].buffer][tile.start * top_k:tile.stop * top_k, cols])
        parts = entries.reshape(-1, top_k, entries.shape[1])
        kept = self._kept(rank, op, tile)
        total = np.zeros_like(parts[:, 0])
        for k in range(top_k):
            weighted = len(op.operands) > 2
            weight = widen(self.memory[rank][op.operands[2].buffer][tile, k:k + 1]) if weighted else 1.0
            total += np.where(kept[:, k:k + 1], parts[:, k] * weight, 0)
        self.memory[rank][op.operands[0].buffer][tile, cols] = total
        return tile.stop - tile.start

    def _kept(self, rank: int, op: tf.TileOp, tile: slice) -> np.ndarray:
        """Which entries of a tile of tokens have a row, [tokens, top_k]."""
        routing = self.layout.routings[op.domain.route]
        return routing.kept[rank].reshape(-1, routing.top_k)[tile]

    def _fan_out(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        unit = self._rows(rank, op, int(task["row"]))
        to, sources = self._fanned(rank, op, task)
        out, x = (self._moved(rank, op, task, a) for a in op.operands)
        out[to] = x[sources]
        return unit.stop - unit.start

    def _fan_in(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        unit = self._rows(rank, op, int(task["row"]))
        index, _ = self._fanned(rank, op, task)
        out, rows, *weights = (self._moved(rank, op, task, a) for a in op.operands)
        parts = widen(rows[index]) * widen(weights[0][index]) if weights else widen(rows[index])
        total = np.zeros(out.shape, parts.dtype)
        add_choices(total, Route(self.layout.routings[op.domain.route], rank), index, parts)
        out[unit] = total[unit]
        return unit.stop - unit.start

    def _fanned(self, rank: int, op: tf.TileOp, task: np.void) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the rank's experts that are of the tokens of a task's unit, and these tokens' rows."""
        unit, sources = self._rows(rank, op, int(task["row"])), self.layout.routings[op.domain.route].sources[rank]
        rows = np.flatnonzero((unit.start <= sources) & (sources < unit.stop))
        return rows, sources[rows]

    def _fanned_slots(self, rank: int, op: tf.TileOp, task: np.void) -> np.ndarray:
        """The slot of each of these rows."""
        slots = self.layout.slots[self.flow.routes[op.domain.route].once_of][rank]
        used = np.flatnonzero(slots.rows)
        order = used[np.argsort(slots.start[used])]
        return order[np.searchsorted(slots.start[order], self._fanned(rank, op, task)[0], side="right") - 1]

    def _keep(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        tile = self._rows(rank, op, int(task["row"]))
        kept = self._kept(rank, op, tile)
        out, entries = (self.memory[rank][a.buffer].reshape(-1, kept.shape[1])[tile] for a in op.operands)
        out[...] = np.where(kept, widen(entries), 0)  # a mask of two dimensions fails on MindSpore's bfloat16 arrays
        return tile.stop - tile.start

    def _drop_counts(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        self.memory[rank][op.operands[0].buffer][0] = self.layout.routings[op.domain.route].dropped[rank]
        return 1

    def _launch(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        return 1

    def _put(self, rank: int, op: tf.TileOp, task: np.void) -> dict[int, np.ndarray]:
        return {peer: self._send(rank, peer, op, task, self.layout.put_rows(rank, op.domain.route, peer, int(task["row"])))
                for peer in self.layout.peers(rank, op, task)}

    def _send(self, rank: int, peer: int, op: tf.TileOp, task: np.void, rows: np.ndarray) -> np.ndarray:
        routing = self.layout.routings[op.domain.route]
        entries = routing.entry_of_row[peer][rows]
        out, source = op.operands
        index = entries if source.rows == "entries" else entries // routing.top_k
        self._moved(peer, op, task, out)[rows] = self._moved(rank, op, task, source)[index]
        return entries

    def _put_back(self, rank: int, op: tf.TileOp, task: np.void) -> dict[int, np.ndarray]:
        return {peer: self._return(rank, peer, op, task, self.layout.put_rows(peer, op.domain.route, rank, int(task["row"])))
                for peer in self.layout.peers(rank, op, task)}

    def _return(self, rank: int, peer: int, op: tf.TileOp, task: np.void, rows: np.ndarray) -> np.ndarray:
        entries = self.layout.routings[op.domain.route].entry_of_row[rank][rows]
        out, source = op.operands
        self._moved(peer, op, task, out)[entries] = self._moved(rank, op, task, source)[rows]
        return entries

    def _moved(self, rank: int, op: tf.TileOp, task: np.void, access: tf.Access) -> np.ndarray:
        """All rows of a buffer that a transfer moves some of, in the columns of the task."""
        return self._operand(rank, op, task, dataclasses.replace(access, rows="all"), slice(None))

    def _all_to_all(self, rank: int, op: tf.TileOp, task: np.void) -> dict[int, np.ndarray]:
        sources = self.layout.routings[op.domain.route].source_of_row
        return {peer: self._send(rank, peer, op, task, np.flatnonzero(sources[peer] == rank)) for peer in self.ranks}

    def _all_to_all_back(self, rank: int, op: tf.TileOp, task: np.void) -> dict[int, np.ndarray]:
        sources = self.layout.routings[op.domain.route].source_of_row
        return {peer: self._return(rank, peer, op, task, np.flatnonzero(sources[rank] == peer)) for peer in self.ranks}

    def _move_matrices(self, rank: int, op: tf.TileOp, task: np.void) -> list[Move]:
        moves, (out, source) = self.layout.moves(rank, op, int(task["row"])), op.operands
        for peer, _, first, target, rows in moves:
            self.memory[peer][out.buffer][target:target + rows] = self.memory[rank][source.buffer][first:first + rows]
        return moves

    _replicate = _return_grads = _move_matrices

    def _notify(self, rank: int, op: tf.TileOp, task: np.void) -> dict[int, int]:
        routing, peer = self.layout.routings[op.domain.route], self.layout.peer(rank, int(task["peer"]))
        source, owner = (rank, peer) if op.params[0] == 0 else (peer, rank)
        local, expert = routing.num_local_experts, int(task["row"])
        counts = routing.counts[source, owner * local:(owner + 1) * local]
        return {peer: int(counts.sum() if expert < 0 else counts[expert])}


def _map(op: tf.TileOp, task: np.void, views: list) -> None:
    code = op.params[0]
    views[0][...] = views[1] if code == "copy" else REGISTRY[code].rules["reference"](*views[1:])


def _gmm(op: tf.TileOp, task: np.void, views: list) -> None:
    out, x, *weights = views
    w = next(w for w in weights if len(w))
    cols = slice(task["col"], task["col"] + task["cols"])
    out[...] = x @ w[cols].T if op.params[0] else x @ w


def _swiglu(op: tf.TileOp, task: np.void, views: list) -> None:
    out, gate, up = views
    out[...] = REGISTRY["silu"].rules["reference"](gate) * up


def _swiglu_grad(op: tf.TileOp, task: np.void, views: list) -> None:
    d_gate, d_up, g, gate, up = views
    half = gate.shape[1]
    both = REGISTRY["swiglu_grad"].rules["reference"](g, np.concatenate([gate, up], axis=1))
    d_gate[...], d_up[...] = both[:, :half], both[:, half:]


def _row_reduce(op: tf.TileOp, task: np.void, views: list) -> None:
    views[0][...] = (np.max if op.params[0] == "max" else np.sum)(views[1], axis=1, keepdims=True)


def _gather(op: tf.TileOp, task: np.void, views: list) -> None:
    views[0][...] = views[1][views[2][:, 0]]


def _row_dot(op: tf.TileOp, task: np.void, views: list) -> None:
    views[0][...] = np.sum(views[1] * views[2], axis=1, keepdims=True)


_BODIES = {"MAP": _map, "GMM": _gmm, "SWIGLU": _swiglu, "SWIGLU_GRAD": _swiglu_grad, "ROW_REDUCE": _row_reduce,
           "ROW_DOT": _row_dot, "GATHER": _gather}
