"""Slots: the rows that a rank receives, ordered by expert, cut into pieces whose number a plan can know.

A slot has up to `tile_rows` rows of one expert. Tasks and events are about slots, so they are static; which expert a slot
holds, and how many rows, follows from the numbers of rows of the experts when a kernel starts.
"""

from __future__ import annotations

import dataclasses
from typing import overload

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class Slots:
    """Row slots of one rank: slot s holds rows [start[s], start[s] + rows[s]) of local expert expert[s]."""

    expert: np.ndarray
    start: np.ndarray
    rows: np.ndarray


@overload
def padded(rows: int, multiple: int) -> int: ...
@overload
def padded(rows: np.ndarray, multiple: int) -> np.ndarray: ...


def padded(rows: int | np.ndarray, multiple: int) -> int | np.ndarray:
    """Returns the least multiple of `multiple` from `rows` on, the rows of an expert with its padding.

    Example:
        >>> padded(0, 8), padded(9, 8)
        (0, 16)
    """
    return rows + -rows % multiple


def max_slots(max_rows: int, num_local_experts: int, tile_rows: int) -> int:
    """Returns the most slots that `max_rows` rows can need under any routing.

    Example:
        >>> max_slots(1000, 4, 128), max_slots(3, 256, 128)
        (11, 3)
    """
    used_experts = min(max_rows, num_local_experts)
    return min(max_rows, (max_rows + used_experts * (tile_rows - 1)) // tile_rows)


def make_slots(tokens_per_expert: np.ndarray, tile_rows: int, num_slots: int, own: np.ndarray | int = 0) -> Slots:
    """Cuts each expert's rows into slots of `tile_rows`; slots past the last real one are empty.

    Those of an expert are numbered from the one with its row `own` on, where a rank's own rows begin, and round: worked
    through in their order they need the rank's own rows first and then, on every rank, those of the ranks after it.

    Example:
        >>> make_slots(np.array([3, 0, 2]), tile_rows=2, num_slots=5).rows.tolist()
        [2, 1, 2, 0, 0]
        >>> make_slots(np.array([3]), tile_rows=1, num_slots=3, own=2).start.tolist()
        [2, 0, 1]
    """
    per_expert = -(-tokens_per_expert // tile_rows)
    expert = np.repeat(np.arange(len(tokens_per_expert)), per_expert)
    used = len(expert)
    index = np.arange(used) - np.repeat(np.cumsum(per_expert) - per_expert, per_expert)
    index = (index + (np.zeros_like(per_expert) + own)[expert] // tile_rows) % per_expert[expert]
    first_row = np.cumsum(tokens_per_expert) - tokens_per_expert
    start = first_row[expert] + index * tile_rows
    rows = np.minimum(tile_rows, tokens_per_expert[expert] - index * tile_rows)
    empty = num_slots - used
    return Slots(np.concatenate([expert, np.full(empty, len(tokens_per_expert) - 1)]).astype(np.int64),
                 np.concatenate([start, np.full(empty, tokens_per_expert.sum())]).astype(np.int64),
                 np.concatenate([rows, np.zeros(empty)]).astype(np.int64))
