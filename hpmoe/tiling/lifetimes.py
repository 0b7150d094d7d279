"""Lifetimes: first write and last use of a taskflow's storages, and the waits of those that come next in their memory."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.support.intervals import Interval, covers, joined, meet
from hpmoe.tile_ops import col_modes, row_modes


@dataclasses.dataclass(frozen=True)
class ColumnFootprint:
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
        """Columns of all tiles together, as sorted and joined intervals."""
        return joined([*self.fixed, *((o, o + self.cols) for o in self.offsets)])

    def of_tile(self, k: int) -> list[Interval]:
        first, last = k * self.tile_cols, min((k + 1) * self.tile_cols, self.cols)
        return joined([*self.fixed, *((o + first, o + last) for o in self.offsets)])

    def each_covers(self, columns: list[Interval]) -> bool:
        """Returns True if every tile covers `columns`.

        At most as many tiles as offsets can cover columns that are not fixed, as tiles of one offset are disjoint.
        """
        if covers(self.fixed, columns):
            return True
        return self.num_tiles <= len(self.offsets) and all(covers(self.of_tile(k), columns) for k in range(self.num_tiles))

    def each_meets(self, columns: list[Interval]) -> bool:
        """Returns True if every tile overlaps `columns`."""
        if meet(self.fixed, columns):
            return True
        starts = ((max(a - o, 0), min(b - o, self.cols)) for o in self.offsets for a, b in columns)
        tiles = joined((a // self.tile_cols, (b - 1) // self.tile_cols + 1) for a, b in starts if a < b)
        return covers(tiles, [(0, self.num_tiles)])


FULL, PART = 2, 1
NOTHING, UNIT, ALL = range(3)  # what the writers of a storage wait for that takes over memory


@dataclasses.dataclass(frozen=True)
class Release:
    """Tasks of operation `op` write over storage `old` once its readers are done, unit by unit or ("count") altogether."""

    op: int
    old: int
    unit: str
    readers: tuple[int, ...]


class Lifetimes:
    """First write and last use of each storage of a taskflow's operations, with the operations."""

    def __init__(self, buffers: tuple[tf.Buffer, ...], ops: tuple[tf.TileOp, ...], routes: tuple[tf.RoutePlan, ...]):
        self.buffers, self.ops, self.routes = buffers, ops, routes
        self.writers: dict[int, list[int]] = {}
        self.readers: dict[int, list[int]] = {}
        for i, op in enumerate(ops):
            for table, accesses in ((self.writers, op.outputs), (self.readers, op.inputs)):
                for storage in dict.fromkeys(buffers[a.buffer].storage for a in accesses):
                    table.setdefault(storage, []).append(i)
        self._refusals: dict[int, str] = {}
        self._footprints: dict[tuple[int, int, bool], ColumnFootprint] = {}
        self.order: list[dict[int, int]] = []
        self.releases: list[Release] = []
        takes_over = {new: s[:n][::-1] for s in self.occupants().values() for n, new in enumerate(s) if n}
        for i, op in enumerate(ops):
            self.order.append(self._rows_before(i))
            for new in dict.fromkeys(buffers[a.buffer].storage for a in op.outputs):
                self._release_all(i, new, takes_over.get(new, ()))

    def occupants(self) -> dict[int, list[int]]:
        """Returns the storages of each shared memory, in order of use."""
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
        """Returns why a storage can share no memory with another, or ""."""
        if storage not in self._refusals:
            self._refusals[storage] = self._refusal(storage)
        return self._refusals[storage]

    def _refusal(self, storage: int) -> str:
        buffer = self.buffers[storage]
        if buffer.role != "temporary":
            return f"it is {'an input' if buffer.role == 'input' else 'an output'}"
        if storage not in self.writers or storage not in self.readers:
            return "nobody writes it or nobody reads it"
        if any(self.ops[i].primitive.moves_copies for i in self.writers[storage]):
            return "nobody waits for a copy that gets no rows"
        written = joined(c for i in self.writers[storage] for c in self._columns(i, storage, write=True).together)
        read = joined(c for i in self.readers[storage] for c in self._columns(i, storage, write=False).together)
        return "" if covers(read, written) else "some of its columns are never read, so that nobody waits for their writers"

    def fault(self, new: int, old: int) -> str:
        """Returns why storage `new` cannot take over the memory of `old`, or ""."""
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
        """Returns True if ranks write it into each other's memory."""
        return any(self.ops[i].primitive.is_remote for i in self.writers[storage])

    def cost(self, new: int, old: int) -> int:
        """Returns the extra waits of the writers of `new`: NOTHING, each UNIT, or ALL."""
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
        """Returns the row units of a storage that the tasks of an operation touch one each, or None."""
        width = self.buffers[storage].cols
        accesses = self._accesses(i, storage, write)
        if any(a.rows is not row_modes.OWN or self.buffers[a.buffer].cols != width for a in accesses):
            return None
        return self.ops[i].domain.row_unit()

    def _columns(self, i: int, storage: int, write: bool) -> ColumnFootprint:
        """Returns the columns of a storage that the tasks of an operation touch."""
        key = (i, storage, write)
        if key not in self._footprints:
            self._footprints[key] = self._column_footprint(*key)
        return self._footprints[key]

    def _column_footprint(self, i: int, storage: int, write: bool) -> ColumnFootprint:
        op, width = self.ops[i], self.buffers[storage].cols
        accesses = self._accesses(i, storage, write)
        if any(self.buffers[a.buffer].cols != width or a.cols is col_modes.BLOCK for a in accesses):
            return ColumnFootprint([(0, width)], [], 0, 0)
        in_tiles = [a.cols is col_modes.OWN and op.cols for a in accesses]
        moving = [a.offset for a, moves in zip(accesses, in_tiles, strict=True) if moves]
        fixed = [(0, 1) if a.cols is col_modes.ONE else (0, width)
                 for a, moves in zip(accesses, in_tiles, strict=True) if not moves]
        return ColumnFootprint(joined(fixed), moving, op.cols, op.tile_cols)

    def _rows_before(self, i: int) -> dict[int, int]:
        """Returns operations whose tasks on a row unit all precede each task of operation i there (FULL), or one (PART)."""
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


def next_ops(flow: tf.Taskflow) -> list[set[int]]:
    """Returns, for each operation, the later operations that read its results or overwrite its inputs."""
    storage = [b.storage for b in flow.buffers]
    readers: dict[int, set[int]] = {}
    for i, op in enumerate(flow.ops):
        for access in op.inputs:
            readers.setdefault(storage[access.buffer], set()).add(i)
    after = [{r for a in op.outputs for r in readers.get(storage[a.buffer], ()) if r > i} for i, op in enumerate(flow.ops)]
    if any(b.memory >= 0 for b in flow.buffers):
        for release in lifetimes_of(flow.buffers, flow.ops, flow.routes).releases:
            for reader in release.readers:
                after[reader] |= {release.op} if release.op > reader else set()
    return after
