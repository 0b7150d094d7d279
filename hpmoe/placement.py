"""Placement: which ranks hold copies of which experts, and what part of an expert's entries each copy takes.

Every rank has, after its own experts, the same number of replica slots; a slot holds a copy of another rank's expert or is
empty. Own experts and slots together are the physical experts, numbered rank by rank; the model knows logical ones.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpmoe.errors import check_argument, is_int, is_number

WHOLE = 1 << 16  # the share of an expert that nobody else holds
SHOWN = 4  # copies in the text of a placement
SMALLEST = 1 / 64  # of a rank's mean load: what a copy must take at least to be worth its weights


class Copy(NamedTuple):
    """Replica slot `slot` of rank `host`, a copy of local expert `expert` of its owner."""

    expert: int
    host: int
    slot: int


@dataclasses.dataclass(frozen=True)
class Placement:
    """Which expert each replica slot holds and what share of its entries the copy takes; made by `place_replicas`.

    Attributes:
        num_experts: logical experts of all ranks.
        experts: [ep][replicas], the logical expert of each slot, or -1.
        shares: [ep][replicas], in parts of WHOLE; an owner keeps what its copies leave.
        loads: [num_experts], what the copies were planned for; none where that is not known.
    """

    num_experts: int
    experts: tuple[tuple[int, ...], ...]
    shares: tuple[tuple[int, ...], ...]
    loads: tuple[float, ...] = dataclasses.field(default=(), repr=False)

    @property
    def ep_size(self) -> int:
        return len(self.experts)

    @property
    def num_replicas(self) -> int:
        """Replica slots of each rank."""
        return len(self.experts[0])

    @property
    def num_own(self) -> int:
        """Experts that each rank owns."""
        return self.num_experts // self.ep_size

    @property
    def num_local(self) -> int:
        """Physical experts of each rank."""
        return self.num_own + self.num_replicas

    @functools.cached_property
    def parts(self) -> np.ndarray:
        """[ep * num_local, 3]: the logical expert of each physical one or -1, and the range of its shares in 0..WHOLE.

        An expert's owner comes first, its copies follow in the order of their ranks.
        """
        parts = np.full((self.ep_size, self.num_local, 3), (-1, 0, 0), np.int64)
        parts[:, :self.num_own, 0] = np.arange(self.num_experts).reshape(self.ep_size, -1)
        parts[:, self.num_own:, 0] = self.experts
        parts = parts.reshape(-1, 3)
        share = np.full((self.ep_size, self.num_local), WHOLE, np.int64)
        share[:, self.num_own:] = self.shares
        share = share.reshape(-1)
        for e in range(self.num_experts):
            mine = np.flatnonzero(parts[:, 0] == e)
            mine = np.concatenate([mine[self._is_own(mine)], mine[~self._is_own(mine)]])
            kept = share[mine]
            kept[0] = WHOLE - kept[1:].sum()
            parts[mine, 2] = np.cumsum(kept)
            parts[mine, 1] = parts[mine, 2] - kept
        return parts

    def _is_own(self, physical: np.ndarray) -> np.ndarray:
        return physical % self.num_local < self.num_own

    @functools.cached_property
    def copies(self) -> tuple[tuple[Copy, ...], ...]:
        """For each rank, the copies of its experts, in the order of their hosts."""
        out: list[list[Copy]] = [[] for _ in range(self.ep_size)]
        for host, slots in enumerate(self.experts):
            for slot, expert in enumerate(slots):
                if expert >= 0:
                    out[expert // self.num_own].append(Copy(expert % self.num_own, host, slot))
        return tuple(map(tuple, out))

    @property
    def most_copies(self) -> int:
        """The most copies that any rank has of its experts."""
        return max(map(len, self.copies))

    @functools.cached_property
    def likely_shares(self) -> np.ndarray:
        """Rows of each physical expert by the planned loads, the busiest rank having 1 of all its experts, [ep, num_local];
        all alike where no loads are known."""
        expert, first, last = self.parts.T
        if not any(self.loads):
            return np.full((self.ep_size, self.num_local), 1 / self.num_local)
        rows = np.where(expert >= 0, np.array(self.loads)[expert], 0.0) * (last - first)
        return rows.reshape(self.ep_size, -1) / rows.reshape(self.ep_size, -1).sum(axis=1).max()

    @property
    def own_share(self) -> float:
        """The least share of its rows that any rank is likely to have of its own experts."""
        rows = self.likely_shares[self.likely_shares.any(axis=1)]
        return float((rows[:, :self.num_own].sum(axis=1) / rows.sum(axis=1)).min())

    def split(self, counts: np.ndarray, rank: int) -> np.ndarray:
        """First and last of the entries that each physical expert takes of `counts[e]` entries for each expert, [P, 2].

        A rank's entries for an expert are cut into runs, one for each copy, as its shares say; fractions are rounded with
        an offset that differs from rank to rank, so that they add up to the shares over all ranks.
        """
        expert, ranges = self.parts[:, 0], self.parts[:, 1:]
        offset = WHOLE * (2 * rank + 1) // (2 * self.ep_size)
        return (np.where(expert >= 0, counts[expert], 0)[:, None] * ranges + offset) // WHOLE

    def __str__(self) -> str:
        """expert@rank for each copy, the first few."""
        copies = [f"{e}@{rank}" for rank, experts in enumerate(self.experts) for e in experts if e >= 0]
        return ",".join(copies[:SHOWN] + [f"+{len(copies) - SHOWN}"] * (len(copies) > SHOWN))


def place_replicas(loads: Sequence[float] | np.ndarray, *, ep_size: int, replicas: int = 1,
                   min_load: float = 0.0) -> Placement:
    """Plans copies of hot experts on ranks with less to do, greedily, from an estimate of the experts' loads.

    Again and again the most loaded rank gives the largest part of an expert that it has to the least loaded rank with a
    free slot, as much of it as brings either of the two to the mean, until no rank is above the mean or no slot is free.
    It is what expert-parallel load balancers (EPLB) do, except that copies take unequal shares.

    Args:
        loads: [num_experts], what is expected of each expert in any unit: rows of a former step, say
            `numpy.bincount(topk_ids.reshape(-1), minlength=num_experts)`.
        ep_size: ranks, which own equal numbers of consecutive experts.
        replicas: slots for copies on each rank; never more than there are experts of other ranks.
        min_load: what a copy must take at least to be made, in the unit of the loads; never less than 1/64 of a mean rank.

    Raises:
        ArgumentError: loads are negative or not numbers, or do not divide over the ranks; replicas is not a positive int, or
            min_load is not a number.

    Example:
        >>> place_replicas([6, 2, 0, 0], ep_size=2)
        Placement(num_experts=4, experts=((-1,), (0,)), shares=((0,), (43691,)))
    """
    loads = check_loads(loads, replicas, min_load)
    check_argument(len(loads) % ep_size == 0, "replicate_experts", "loads", f"of {len(loads)} experts",
                   f"of a multiple of {ep_size} ranks")
    num_own, mean = len(loads) // ep_size, loads.sum() / ep_size
    replicas = min(replicas, len(loads) - num_own)
    held = np.zeros((ep_size, len(loads)))  # what each rank takes of each expert
    held[np.arange(len(loads)) // num_own, np.arange(len(loads))] = loads
    slots: list[list[int]] = [[] for _ in range(ep_size)]
    stuck: set[int] = set()
    while len(stuck) < ep_size:
        busy = held.sum(axis=1)
        hot = max((r for r in range(ep_size) if r not in stuck), key=lambda r: (busy[r], -r))
        move = _best_move(held, busy, mean, slots, replicas, hot, num_own)
        if move is None or move[2] <= max(SMALLEST * mean, min_load):
            stuck.add(hot)
            continue
        expert, target, amount = move
        held[hot, expert] -= amount
        held[target, expert] += amount
        slots[target].append(expert)
    return _as_placement(held, loads, slots, replicas)


def check_loads(loads: Sequence[float] | np.ndarray, replicas: int, min_load: float) -> np.ndarray:
    """The loads as float64; raises ArgumentError where these are not the numbers that `place_replicas` takes."""
    who = "replicate_experts"
    check_argument(is_int(replicas), who, "replicas", repr(replicas), "a positive int")
    check_argument(is_number(min_load) and min_load >= 0, who, "min_load", repr(min_load),
                   "a number that is not negative")
    try:
        array = np.asarray(loads, np.float64)
    except (TypeError, ValueError):
        array = np.zeros(0)
    check_argument(array.ndim == 1 and array.size > 0, who, "loads",
                   f"of shape {array.shape}" if array.size else repr(loads), "a number for each expert, [num_experts]",
                   "Count ids of a step with numpy.bincount(topk_ids.reshape(-1), minlength=num_experts).")
    bad = np.flatnonzero(~(np.isfinite(array) & (array >= 0)))
    check_argument(not len(bad), who, f"loads[{bad[0] if len(bad) else ''}]", array[bad[0]] if len(bad) else "",
                   "a finite number that is not negative")
    return array


def _best_move(held: np.ndarray, busy: np.ndarray, mean: float, slots: list[list[int]], replicas: int, hot: int,
               num_own: int) -> tuple[int, int, float] | None:
    """(expert, rank, amount) of what a hot rank gives away next, or None."""
    for expert in np.argsort(-held[hot], kind="stable"):
        free = [r for r, mine in enumerate(slots) if len(mine) < replicas and r != expert // num_own and expert not in mine]
        if not free:
            continue
        target = min(free, key=lambda r: (busy[r], r))
        amount = min(held[hot, expert], busy[hot] - mean, mean - busy[target])
        return int(expert), target, amount
    return None


def _as_placement(held: np.ndarray, loads: np.ndarray, slots: list[list[int]], replicas: int) -> Placement:
    shares = np.rint(held / np.maximum(loads, 1e-300) * WHOLE).astype(int)
    filled = [[e for e in mine if shares[r, e] > 0] for r, mine in enumerate(slots)]
    empty = [replicas - len(mine) for mine in filled]
    return Placement(len(loads), tuple((*mine, *[-1] * n) for mine, n in zip(filled, empty, strict=True)),
                     tuple((*(int(shares[r, e]) for e in mine), *[0] * n)
                           for r, (mine, n) in enumerate(zip(filled, empty, strict=True))), tuple(loads.tolist()))
