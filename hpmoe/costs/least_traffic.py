"""The least that memory brings to a rank and takes from it, whoever runs its tasks in whatever order."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from hpmoe.costs.footprint import DENSE, OF_EXPERT, STREAM, TOGETHER, UNIT, WEIGHT, is_transfer
from hpmoe.costs.rank_rows import RankRows
from hpmoe.costs.work import Work, with_fans
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine


class _Touches:
    """What tasks touch of the parts of a rank's arrays.

    A part takes from memory what of it is not held: of tasks that between them touch `whole` bytes of it or more at least
    those, in whatever order; of others all that they touch.
    """

    def __init__(self, num_parts: int) -> None:
        self.by_vector, self.early = np.zeros(num_parts, bool), np.zeros(num_parts, bool)
        self.found: list[np.ndarray] = [np.zeros((3, 0))]

    def add(self, places: np.ndarray, touched: np.ndarray, whole: np.ndarray, is_vector: bool) -> None:
        some = touched > 0
        self.by_vector[places[some]] |= is_vector
        self.found.append(np.stack([places, touched, whole])[:, some])

    def least(self) -> np.ndarray:
        """Bytes of each part, [num_parts]."""
        places, touched, whole = np.concatenate(self.found, axis=1)
        order = np.lexsort((-whole, places))
        places, touched, whole = places[order].astype(int), touched[order], whole[order]
        sums = np.cumsum(touched)  # of each part from its largest whole on
        begins = np.searchsorted(places, places)
        out = np.zeros(len(self.by_vector))
        np.maximum.at(out, places, np.minimum(whole, sums - (sums - touched)[begins]))
        return out


class _Gathers:
    """What tasks gather from anywhere in an array that is one part, and what lands in it: see L2::gather and L2::land.

    Rows that land are all new. Of what is gathered the share is that is not held, which is never more than what came before,
    and no more than fits: so it takes least where all has landed before, and where tasks are small.
    """

    def __init__(self, l2_bytes: float) -> None:
        self.l2_bytes, self.by_vector = l2_bytes, set[int]()
        self.found: dict[tuple[int, float], list[float]] = {}

    def add(self, place: int, whole: float, is_vector: bool, gathered: float = 0.0, landed: float = 0.0) -> None:
        amounts = self.found.setdefault((place, whole), [0.0, 0.0])
        amounts[0] += gathered
        amounts[1] += landed
        if is_vector:
            self.by_vector.add(place)

    def least(self) -> dict[int, float]:
        """Bytes of each array that any task touches."""
        out: dict[int, float] = {}
        for (place, whole), (gathered, landed) in self.found.items():
            new = gathered
            if whole:
                held = min(landed, whole)
                new = max(-(whole - held) * math.expm1(-gathered / whole),
                          gathered * (1 - min(self.l2_bytes, whole) / whole))
            out[place] = max(out.get(place, 0.0), landed + new)
        return out


class LeastTraffic:
    """What memory brings and takes at least for the tasks of a taskflow, for the routing that `rows` are of."""

    def __init__(self, flow: tf.Taskflow, machine: Machine, work: Work, rows: RankRows):
        self.flow, self.machine, self.work, self.rows = flow, machine, work, rows

    def bytes_of(self, rank: int) -> np.ndarray:
        """Bytes of all parts of arrays that matrix tasks alone touch, of those of them that are not read early, and of all
        that any task touches, [3]."""
        touches, gathers = _Touches(self.work.footprints.num_parts), _Gathers(self.machine.l2_bytes)
        streamed = np.zeros(3)
        for index, op in enumerate(self.flow.ops):
            if is_transfer(op):
                self._add_transfer(index, op, rank, touches, gathers)
            else:
                of_op = self._add_local(index, op, rank, touches, gathers)
                streamed += [of_op * (op.unit == "aic"), of_op * (op.unit == "aic"), of_op]
        of_parts, of_arrays = touches.least(), gathers.least()
        alone = sum(least for place, least in of_arrays.items() if place not in gathers.by_vector)
        is_alone = ~touches.by_vector
        of_matrix = [of_parts[which].sum() + alone for which in (is_alone, is_alone & ~touches.early)]
        return streamed + [*of_matrix, of_parts.sum() + sum(of_arrays.values())]

    def _add_local(self, index: int, op: tf.TileOp, rank: int, touches: _Touches, gathers: _Gathers) -> float:
        """Of the rank's own rows; bytes that it streams."""
        rows, experts = self.rows.of_units(op, rank)
        works = with_fans(self.work.by_routing[index], self.rows.of_token(op, rank))
        is_vector, streamed = op.unit != "aic", 0.0
        for is_last, tiles, work in _works(op, works):
            units = np.arange(len(rows))
            units = units[(units % op.domain.blocks == op.domain.blocks - 1) == is_last]
            units = units if op.domain.sums_rows and op.domain.route >= 0 else units[rows[units] > 0]
            of_units = rows[units]
            for first, part, fixed, row, whole in work["footprints"][:work["num_footprints"]].tolist():
                touched = fixed + row * of_units
                if part == STREAM:
                    streamed += len(tiles) * touched.sum()
                elif part == TOGETHER:
                    gathers.add(first, whole, is_vector, gathered=len(tiles) * touched.sum())
                elif part in (WEIGHT, DENSE):
                    of_expert = experts[units] * op.grid[2] * (part == WEIGHT)
                    places = first + (of_expert + tiles[:, None]).reshape(-1)
                    touched = np.tile(touched, len(tiles))
                    touches.add(places, touched, np.full(len(places), whole), is_vector)
                    touches.early[places] |= op.params.is_early
                elif part == OF_EXPERT:
                    times = np.bincount(experts[units] + op.domain.first_expert)
                    self._add_slots(op, rank, first, row * len(tiles), whole, touches, is_vector, times)
                else:
                    touches.add(first + units, touched * len(tiles), whole * of_units if whole else touched, is_vector)
        return streamed

    def _add_transfer(self, index: int, op: tf.TileOp, rank: int, touches: _Touches, gathers: _Gathers) -> None:
        """Of rows, or weights, that leave the rank, and of those that come."""
        moved, own = self.rows.moved(op, rank, self.machine.node_size)
        sent, came = moved[::2].sum() + own, moved[1::2].sum() + own
        for is_last, tiles, work in _works(op, self.work.by_routing[index]):
            if not is_last:
                continue
            for first, part, _, row, whole in work["footprints"][:work["num_footprints"]].tolist():
                if op.primitive.moves_copies:
                    touches.add(np.array([first]), np.array([sent * row]), np.array([sent * row]), True)
                elif part == TOGETHER:
                    gathers.add(first, whole, True, gathered=len(tiles) * sent * row)
                elif part == UNIT:
                    self._add_slots(op, rank, first, row * len(tiles), whole, touches, True)
            first, part, _, row, whole = work["landing"].tolist()
            if part == TOGETHER:
                gathers.add(first, whole, True, landed=len(tiles) * came * row)
            elif row:
                self._add_slots(op, rank, first, row * len(tiles), whole, touches, True)

    def _add_slots(self, op: tf.TileOp, rank: int, first: int, row: float, whole: float, touches: _Touches,
                   is_vector: bool, times: np.ndarray | None = None) -> None:
        """All rows of the slots of a rank, or of some of its experts, each expert so many times."""
        slots = self.rows.layout.slots[op.domain.route][rank]
        rows = slots.rows.astype(float)
        often = np.append(times, 0)[np.minimum(slots.expert, len(times))] if times is not None else 1
        touches.add(first + np.arange(len(rows)), rows * row * often, rows * (whole or row), is_vector)


def _works(op: tf.TileOp, works: np.ndarray) -> Iterator[tuple[bool, np.ndarray, np.void]]:
    """(whether it is of the last block of rows, column tiles, what their tasks take) for each row of `Work.by_routing`."""
    tiles = np.arange(op.grid[2])
    for k, work in enumerate(works):
        of_work = tiles[-1:] if k % 2 else tiles[:-1]
        if len(of_work):
            yield k >= 2, of_work, work
