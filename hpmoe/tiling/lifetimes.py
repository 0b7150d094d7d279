"""Lifetimes: which temporaries of a taskflow live in the memory of earlier ones, and what their writers then wait for.

A storage may take over the memory of older ones whose last use comes before its first write in the order of operations.
Its writers wait until all readers of the older ones are done (write after read), row unit by row unit where both sides
have the same units and rows of the same bytes, and altogether otherwise. Writers of the older one need no waits of their
own (write after write): its readers have waited for all of them. Nor does an order that the flow of data makes anyway.

What other ranks write takes over nothing: their puts would have to wait until the readers here are done, and no event of
a launch leads from those to them, as what a rank sends depends on the rows it was sent and not on what their sender does
meanwhile. It would take a signal from every rank to every sender before the first row may leave: a barrier in front of the
exchange, where rows shall leave slot by slot. Between launches there is that barrier, as each begins with an exchange of
counts among all ranks: the temporaries of one launch are free when the next begins, for what other ranks write, too.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from hpmoe import taskflow as tf
from hpmoe.intervals import Interval, covers, joined, meet

FULL, PART = 2, 1
NOTHING, UNIT, ALL, UNWANTED = range(4)
SMALL = 16  # buffers of less than 1 / SMALL of the largest are not worth a wait


@dataclasses.dataclass(frozen=True)
class Release:
    """Tasks of operation `op` write over storage `old` once its readers are done, unit by unit or ("count") altogether."""

    op: int
    old: int
    unit: str
    readers: tuple[int, ...]


def memory_bytes(flow: tf.Taskflow, received: Sequence[int]) -> dict[int, int]:
    """Bytes of each memory, by its first storage, on a rank that receives `received` rows through each route."""
    out: dict[int, int] = {}
    for b, buffer in enumerate(flow.buffers):
        rows = buffer.num_rows if buffer.route < 0 else received[buffer.route]
        home = tf.memory_of(flow.buffers, b)
        out[home] = max(out.get(home, 0), rows * buffer.row_bytes)
    return out


@dataclasses.dataclass(frozen=True)
class Touched:
    """The columns that the tasks of an operation touch: `fixed`, sorted and joined, by each; and by that of a tile of `cols`
    columns, `tile_cols` wide, those of its tile, from each of the `offsets` on."""

    fixed: list[Interval]
    offsets: list[int]
    cols: int
    tile_cols: int

    @property
    def num_tiles(self) -> int:
        return -(-self.cols // self.tile_cols) if self.offsets else 1

    @property
    def together(self) -> list[Interval]:
        """Sorted and joined, those of all tiles."""
        return joined([*self.fixed, *((o, o + self.cols) for o in self.offsets)])

    def of_tile(self, k: int) -> list[Interval]:
        first, last = k * self.tile_cols, min((k + 1) * self.tile_cols, self.cols)
        return joined([*self.fixed, *((o + first, o + last) for o in self.offsets)])

    def each_covers(self, columns: list[Interval]) -> bool:
        """Whether every tile does. What is not fixed no more tiles can cover than there are offsets, as those of one offset
        are apart."""
        if covers(self.fixed, columns):
            return True
        return self.num_tiles <= len(self.offsets) and all(covers(self.of_tile(k), columns) for k in range(self.num_tiles))

    def each_meets(self, columns: list[Interval]) -> bool:
        """Whether every tile does."""
        if meet(self.fixed, columns):
            return True
        starts = ((max(a - o, 0), min(b - o, self.cols)) for o in self.offsets for a, b in columns)
        tiles = joined((a // self.tile_cols, (b - 1) // self.tile_cols + 1) for a, b in starts if a < b)
        return covers(tiles, [(0, self.num_tiles)])


class Lifetimes:
    """When the storages of a taskflow's operations are first written and last used, and by whom."""

    def __init__(self, buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...]):
        self.buffers, self.ops, self.routes = buffers, ops, routes
        self.writers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}
        for i, op in enumerate(ops):
            for table, accesses in ((self.writers, op.outputs), (self.readers, op.inputs)):
                for storage in dict.fromkeys(buffers[a.buffer].storage for a in accesses):
                    table.setdefault(storage, []).append(i)
        self._refusals: dict[int, str] = {}
        self._touched: dict[tuple[int, int, bool], Touched] = {}
        self.order: list[dict[int, int]] = []
        self.releases: list[Release] = []
        takes_over = {new: s[:n][::-1] for s in self.occupants().values() for n, new in enumerate(s) if n}
        for i, op in enumerate(ops):
            self.order.append(self._rows_before(i))
            for new in dict.fromkeys(buffers[a.buffer].storage for a in op.outputs):
                self._release_all(i, new, takes_over.get(new, ()))

    def occupants(self) -> dict[int, list[int]]:
        """For each memory that several storages live in, the storages, the first to live there first."""
        out: dict[int, list[int]] = {}
        for s, buffer in enumerate(self.buffers):
            if buffer.storage == s and s in self.writers:
                out.setdefault(tf.memory_of(self.buffers, s), []).append(s)
        return {m: sorted(s, key=lambda x: self.writers[x][0]) for m, s in out.items() if len(s) > 1}

    def _release_all(self, i: int, new: int, olds: Sequence[int]) -> None:
        """Notes what operation i waits for before it writes over older storages, the latest of them first."""
        before = self.order[i]
        for release in (self._release(i, new, old) for old in olds):
            if release.unit != "count" and all(before.get(r) == FULL for r in release.readers):
                continue
            self.releases.append(release)
            if release.unit != "count":
                for reader in release.readers:
                    before |= {op: FULL for op in (reader, *(self.order[reader] if reader < i else ()))}

    def refusal(self, storage: int) -> str:
        """Why a storage can share no memory with another, or ""."""
        if storage not in self._refusals:
            self._refusals[storage] = self._refusal(storage)
        return self._refusals[storage]

    def _refusal(self, storage: int) -> str:
        buffer = self.buffers[storage]
        if buffer.role != "temporary":
            return f"it is {'an input' if buffer.role == 'input' else 'an output'}"
        if storage not in self.writers or storage not in self.readers:
            return "nobody writes it or nobody reads it"
        if any(self.ops[i].moves_copies for i in self.writers[storage]):
            return "nobody waits for a copy that gets no rows"
        written = joined(c for i in self.writers[storage] for c in self._columns(i, storage, write=True).together)
        read = joined(c for i in self.readers[storage] for c in self._columns(i, storage, write=False).together)
        return "" if covers(read, written) else "some of its columns are never read, so that nobody waits for their writers"

    def fault(self, new: int, old: int) -> str:
        """Why storage `new` cannot take over the memory of `old`, or ""."""
        for s in (new, old):
            if why := self.refusal(s):
                return f"{self.buffers[s].name} cannot share memory: {why}"
        last_use = max(*self.writers[old], *self.readers[old])
        if last_use >= self.writers[new][0]:
            return f"operation {last_use} still uses the older when operation {self.writers[new][0]} writes the newer"
        if self.is_sent(new) and self._ep_size(self.writers[new][0]) > 1:
            return "other ranks write it, who do not wait for the readers here"
        return ""

    def is_sent(self, storage: int) -> bool:
        """Whether ranks write it into each other's memory."""
        return any(self.ops[i].moves_rows or self.ops[i].moves_copies for i in self.writers[storage])

    def cost(self, new: int, old: int) -> int:
        """What the writers of `new` must wait for: NOTHING more than the flow of data has them, each UNIT, or ALL."""
        releases = [self._release(i, new, old) for i in self.writers[new]]
        if any(r.unit == "count" for r in releases):
            return ALL
        is_ordered = all(self.order[r.op].get(reader) == FULL for r in releases for reader in r.readers)
        return NOTHING if is_ordered else UNIT

    def _ep_size(self, i: int) -> int:
        return self.routes[self.ops[i].domain.route].ep_size

    def _release(self, i: int, new: int, old: int) -> Release:
        readers = tuple(self.readers.get(old, ()))
        units = {self._unit(i, new, write=True), *(self._unit(r, old, write=False) for r in readers)}
        a, b = self.buffers[new], self.buffers[old]
        same_rows = (a.route, a.num_rows, a.row_bytes) == (b.route, b.num_rows, b.row_bytes)
        unit = units.pop() if len(units) == 1 and same_rows else None
        return Release(i, old, unit[0] if unit else "count", readers)

    # Rows and columns.

    def _accesses(self, i: int, storage: int, write: bool) -> list[tf.Access]:
        op = self.ops[i]
        return [a for a in (op.outputs if write else op.inputs) if self.buffers[a.buffer].storage == storage]

    def _unit(self, i: int, storage: int, write: bool) -> tuple | None:
        """The row units of a storage that the tasks of an operation touch one each, or None."""
        domain, width = self.ops[i].domain, self.buffers[storage].cols
        if any(a.rows != "own" or self.buffers[a.buffer].cols != width for a in self._accesses(i, storage, write)):
            return None
        if domain.kind == "slots":
            return "slot", domain.route
        return ("tile", domain.num_rows, domain.clipped) if domain.kind == "tiles" else None

    def _columns(self, i: int, storage: int, write: bool) -> Touched:
        """The columns of a storage that the tasks of an operation touch."""
        key = (i, storage, write)
        if key not in self._touched:
            self._touched[key] = self._columns_touched(*key)
        return self._touched[key]

    def _columns_touched(self, i: int, storage: int, write: bool) -> Touched:
        op, width = self.ops[i], self.buffers[storage].cols
        accesses = self._accesses(i, storage, write)
        if any(self.buffers[a.buffer].cols != width or a.cols == "block" for a in accesses):
            return Touched([(0, width)], [], 0, 0)
        moving = [a.offset for a in accesses if a.cols == "own" and op.cols]
        fixed = [(0, 1) if a.cols == "one" else (0, width) for a in accesses if a.cols != "own" or not op.cols]
        return Touched(joined(fixed), moving, op.cols, op.tile_cols)

    def _rows_before(self, i: int) -> dict[int, int]:
        """Operations whose tasks on a row unit run before every task of operation i on that unit (FULL), or before one
        of them each (PART), because one reads what the other writes."""
        before: dict[int, int] = {}

        def note(op: int, level: int) -> None:
            before[op] = max(before.get(op, 0), level)

        for storage in dict.fromkeys(self.buffers[a.buffer].storage for a in self.ops[i].inputs):
            unit = self._unit(i, storage, write=False)
            for w in self.writers.get(storage, ()) if unit else ():
                if w >= i or self._unit(w, storage, write=True) != unit:
                    continue
                written, reads = self._columns(w, storage, write=True).together, self._columns(i, storage, write=False)
                is_full = reads.each_covers(written)
                touches = is_full or reads.each_meets(written)
                is_part = is_full or covers(reads.together, written)
                if is_part:
                    note(w, FULL if is_full else PART)
                for op, level in self.order[w].items():
                    if is_full or (touches and level == FULL):
                        note(op, FULL)
                    elif is_part:
                        note(op, PART)
        return before


lifetimes_of = functools.lru_cache(maxsize=8)(Lifetimes)


def share_memory(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...],
                 routes: tuple[tf.RoutePlan, ...]) -> tuple[tf.Buffer, ...]:
    """The buffers of these operations with temporaries in the memory of those that are dead by then.

    Each temporary, by first write, goes where the flow of data orders it anyway, or else where waiting unit by unit does.
    Only what a lone rank sends to itself may wait for all of an operation: elsewhere that would keep stages from
    overlapping.
    """
    buffers = tuple(dataclasses.replace(b, memory=-1) if b.memory >= 0 else b for b in buffers)
    life = Lifetimes(buffers, ops, routes)
    sizes = {s: b.row_bytes * (b.num_rows if b.route < 0 else routes[b.route].max_rows)
             for s, b in enumerate(buffers) if b.storage == s and not life.refusal(s)}
    memories: list[list[int]] = []
    for new in sorted(sizes, key=lambda s: life.writers[s][0]):
        if sizes[new] * SMALL < max(sizes.values()):
            continue
        options = [(max(life.cost(new, old) for old in olds), abs(sizes[new] - max(sizes[old] for old in olds)), i)
                   for i, olds in enumerate(memories) if all(life.fault(new, old) == "" for old in olds)]
        cost, _, chosen = min(options, default=(UNWANTED, 0, 0))
        if cost <= (ALL if life.is_sent(new) else UNIT):
            memories[chosen].append(new)
        else:
            memories.append([new])
    home = {new: olds[0] for olds in memories for new in olds[1:]}
    return tuple(dataclasses.replace(b, memory=home[s]) if s in home else b for s, b in enumerate(buffers))


@functools.lru_cache(maxsize=8)  # verify asks it of every stage, most of which leave the operations alone
def memory_fault(buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...]) -> str:
    """What is wrong with the memory that the buffers of these operations share, whatever waits there are; or ""."""
    moved = [b for b, buffer in enumerate(buffers) if buffer.memory != -1]
    for b in moved:
        buffer, home = buffers[b], buffers[b].memory
        if not 0 <= home < b or buffer.storage != b or buffers[home].storage != home or buffers[home].memory >= 0:
            return f"{buffer.name} lives in the memory of buffer {home}, which has none of its own before it"
    life = lifetimes_of(buffers, ops, routes)
    for b in moved:
        if why := life.refusal(buffers[b].memory):
            return f"{buffers[b].name} lives where {buffers[buffers[b].memory].name} does, and {why}"
    for storages in life.occupants().values():
        for n, new in enumerate(storages):
            for old in storages[:n]:
                if fault := life.fault(new, old):
                    return f"{buffers[new].name} lives where {buffers[old].name} did, and {fault}"
    return ""
