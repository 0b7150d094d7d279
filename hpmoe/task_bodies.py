"""What each tile task computes and moves, in NumPy: the bodies of the reference interpreter."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.dtypes import widen
from hpmoe.layout import Layout, Move
from hpmoe.primitives.fan import add_choices
from hpmoe.primitives.primitive import REGISTRY
from hpmoe.routing import Route

# What a task has done: the rows it made ready, the rows or entries that it sent to each rank, or the matrices it moved.
Moved = int | dict[int, np.ndarray] | dict[int, int] | list[Move]


class TaskBodies:
    """Runs single tasks of a taskflow on the buffers of all ranks, `memory[rank][buffer]`, in a layout of a routing.

    An opcode has the method of its name, in lower case; those that take the rows of their operands and nothing else are the
    functions of LOCAL.
    """

    def __init__(self, flow: tf.Taskflow, layout: Layout, memory: Sequence[list[np.ndarray]]):
        self.flow, self.layout, self.memory, self.ranks = flow, layout, memory, range(flow.ep_size)

    def run(self, rank: int, t: int) -> Moved:
        """Runs task t of a rank; see Moved."""
        task = self.flow.tasks[t]
        op = self.flow.ops[task["op"]]
        with np.errstate(over="ignore"):  # a stored value out of the range of its dtype is an infinity
            return getattr(self, f"_{op.opcode.lower()}", self._local)(rank, op, task)

    # Rows and operands.

    def _rows(self, rank: int, op: tf.TileOp, row: int) -> slice:
        domain = op.domain
        if domain.kind == "slots":
            return self.layout.slot(rank, domain.route, row)
        if domain.kind == "tiles":
            return self.layout.tile(rank, domain, row)
        if domain.route >= 0 and domain.kind == "experts":
            return self.layout.expert(rank, domain.route, row // domain.blocks)
        return slice(0, 1)

    def _operand(self, rank: int, op: tf.TileOp, task: np.void, access: tf.Access, rows: slice) -> np.ndarray | float:
        """The part of a buffer that a task reads or writes, as a view."""
        if access.buffer < 0:
            return access.value
        buffer, data = self.flow.buffers[access.buffer], self.memory[rank][access.buffer]
        cols = _cols_of(op, task, access)
        if access.rows in ("slot_expert", "replica"):
            expert = int(self.layout.slots[op.domain.route][rank].expert[task["row"]])
            height = buffer.rows_per_expert or 1
            if access.rows == "replica":  # of the rank's own experts there is none
                expert = max(-1, expert - self.flow.routes[op.domain.route].num_own_experts)
            return data[max(expert, 0) * height:(expert + 1) * height, cols]
        if access.rows == "own":
            return data[rows, cols]
        return data[:1, cols] if access.rows == "one" and op.opcode != "GMM" else data[:, cols]

    def _moved(self, rank: int, op: tf.TileOp, task: np.void, access: tf.Access) -> np.ndarray:
        """All rows of a buffer that a transfer moves some of, in the columns of the task."""
        return self._operand(rank, op, task, dataclasses.replace(access, rows="all"), slice(None))

    def _summed_rows(self, rank: int, op: tf.TileOp, task: np.void) -> slice:
        if op.domain.route >= 0:
            return self.layout.expert(rank, op.domain.route, int(task["row"]) // op.domain.blocks)
        num_rows, clipped = op.params[1], bool(op.params[2])
        return slice(0, self.layout.limit(rank, tf.Domain("tiles", 0, num_rows, clipped)))

    # Bodies that compute.

    def _local(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        rows = self._rows(rank, op, int(task["row"]))
        count = rows.stop - rows.start
        if count > 0:
            views = [self._operand(rank, op, task, a, rows) for a in op.operands]
            views[op.num_outputs:] = (widen(v) if isinstance(v, np.ndarray) else v for v in views[op.num_outputs:])
            LOCAL[op.opcode](op, task, views)
        return count

    def _wgrad(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        rows = self._summed_rows(rank, op, task)
        x, g = (widen(self.memory[rank][a.buffer][rows, _cols_of(op, task, a)]) for a in op.operands[1:3])
        out = self.memory[rank][op.operands[0].buffer]
        k = x.shape[1]
        expert, block = divmod(int(task["row"]) - op.first_row, op.domain.blocks)
        low, high = block * op.params[0], min((block + 1) * op.params[0], k)
        tile = slice(expert * k + low, expert * k + high), _cols(task, op.operands[0].offset)
        more = [self.memory[rank][a.buffer][tile] for a in op.operands[3:] if a.rows == "own"]
        for access in (a for a in op.operands[3:] if a.rows == "returned"):
            array, copies = self.memory[rank][access.buffer], self.layout.routings[op.domain.route].placement.copies[rank]
            more += [widen(array[i * k + low:i * k + high, tile[1]]) for i, c in enumerate(copies) if c.expert == expert]
        out[tile] = sum(more, x[:, low:high].T @ g)
        return 1

    def _col_sum(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        (out, to), (x, of) = ((self.memory[rank][a.buffer], _cols(task, a.offset)) for a in op.operands)
        out[task["row"], to] = widen(x[self._summed_rows(rank, op, task), of]).sum(axis=0)
        return 1

    def _reduce(self, rank: int, op: tf.TileOp, task: np.void) -> int:
        tile = self._rows(rank, op, int(task["row"]))
        top_k = self.layout.routings[op.domain.route].top_k
        to, of = (_cols(task, a.offset) for a in op.operands[:2])
        entries = widen(self.memory[rank][op.operands[1].buffer][tile.start * top_k:tile.stop * top_k, of])
        parts = entries.reshape(-1, top_k, entries.shape[1])
        kept = self._kept(rank, op, tile)
        total = np.zeros_like(parts[:, 0])
        for k in range(top_k):
            weighted = len(op.operands) > 2
            at = k + op.operands[2].offset if weighted else 0
            weight = widen(self.memory[rank][op.operands[2].buffer][tile, at:at + 1]) if weighted else 1.0
            total += np.where(kept[:, k:k + 1], parts[:, k] * weight, 0)
        self.memory[rank][op.operands[0].buffer][tile, to] = total
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

    def fanned_slots(self, rank: int, op: tf.TileOp, task: np.void) -> np.ndarray:
        """The slots of the rows that a FAN_OUT task has written, of each its own."""
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

    # Bodies that move rows to other ranks.

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


def _cols(task: np.void, offset: int = 0) -> slice:
    return slice(task["col"] + offset, task["col"] + offset + task["cols"])


def _cols_of(op: tf.TileOp, task: np.void, access: tf.Access) -> slice:
    """The columns of an operand that a task touches."""
    if access.cols == "own" and op.cols:
        return _cols(task, access.offset)
    if op.opcode == "GMM" and op.params[0] and access in op.operands[2:]:  # turned: its offset is of rows
        return slice(None)
    return slice(access.offset, access.offset + 1 if access.cols == "one" else None)


# Bodies that take the rows of their operands: outputs first, then inputs in float32, or scalars.

def _map(op: tf.TileOp, task: np.void, views: list) -> None:
    code = op.params[0]
    views[0][...] = views[1] if code == "copy" else REGISTRY[code].rules["reference"](*views[1:])


def _gmm(op: tf.TileOp, task: np.void, views: list) -> None:
    out, x, *weights = views
    w = next(w for w in weights if len(w))
    out[...] = x @ w[_cols(task, op.operands[2].offset)].T if op.params[0] else x @ w


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


LOCAL = {"MAP": _map, "GMM": _gmm, "SWIGLU": _swiglu, "SWIGLU_GRAD": _swiglu_grad, "ROW_REDUCE": _row_reduce,
         "ROW_DOT": _row_dot, "GATHER": _gather}
