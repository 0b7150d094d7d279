"""Copies of hot experts, planned from what is expected of each expert: the most loaded ranks give to the least loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hpmoe.routing.placement import WHOLE, Placement
from hpmoe.support.errors import MOST, check_argument, has_bools, is_int, is_number

SMALLEST = 1 / 64  # of a rank's mean load: what a copy must take at least to be worth its weights


def place_replicas(loads: Sequence[float] | np.ndarray, *, ep_size: int, replicas: int = 1,
                   min_load: float = 0.0) -> Placement:
    """Plans copies of hot experts on ranks with less to do, greedily, from an estimate of the experts' loads.

    Again and again the most loaded rank gives the largest part of an expert that it has to the least loaded rank with a
    free slot, as much of it as brings either of the two to the mean, until no rank is above the mean or no slot is free.
    It is what expert-parallel load balancers (EPLB) do, except that copies take unequal shares.

    Args:
        loads: [num_experts], what is expected of each expert in any unit: rows of a former step, say
            `numpy.bincount(topk_ids[topk_ids >= 0], minlength=num_experts)`.
        ep_size: ranks, which own equal numbers of consecutive experts.
        replicas: slots for copies on each rank; never more than there are experts of other ranks.
        min_load: least load that a replica must take, in the unit of the loads; never less than 1/64 of a mean rank.

    Example:
        >>> place_replicas([6, 2, 0, 0], ep_size=2)
        Placement(num_experts=4, experts=((-1,), (0,)), shares=((0,), (43691,)))
    """
    loads = check_loads(loads, replicas, min_load)
    check_argument(len(loads) % ep_size == 0, "replicate_experts", "loads", f"of {len(loads)} experts",
                   f"of a multiple of {ep_size} ranks")
    balance = _Balance(loads, ep_size, replicas)
    stuck: set[int] = set()
    while len(stuck) < ep_size:
        hot = balance.most_loaded(stuck)
        move = balance.best_move(hot)
        if move is None or move.amount <= max(SMALLEST * balance.mean, min_load):
            stuck.add(hot)
        else:
            balance.apply(hot, move)
    return balance.placement()


def check_loads(loads: Sequence[float] | np.ndarray, replicas: int, min_load: float) -> np.ndarray:
    """Returns loads as float64; raises ArgumentError unless the arguments are those that `place_replicas` takes."""
    who = "replicate_experts"
    check_argument(is_int(replicas), who, "replicas", repr(replicas), "a positive int")
    check_argument(is_number(min_load) and min_load >= 0, who, "min_load", repr(min_load),
                   "a number that is not negative")
    try:
        array = np.asarray(loads)
        are_numbers = array.dtype.kind in "iuf" and not has_bools(loads)
        array = array.astype(np.float64) if are_numbers else np.zeros(0)
    except (TypeError, ValueError):
        array = np.zeros(0)
    check_argument(array.ndim == 1 and array.size > 0, who, "loads",
                   f"of shape {array.shape}" if array.size else repr(loads), "a number for each expert, [num_experts]",
                   "Count ids of a step with numpy.bincount(topk_ids[topk_ids >= 0], minlength=num_experts).")
    bad = np.flatnonzero(~((array >= 0) & (array <= MOST)))
    check_argument(not len(bad), who, f"loads[{bad[0] if len(bad) else ''}]", array[bad[0]] if len(bad) else "",
                   "a finite number that is not negative")
    return array


class _Move(NamedTuple):
    expert: int
    target: int
    amount: float


class _Balance:
    """Load that each rank takes of each expert while replicas are placed.

    Attributes:
        held: [ep_size, num_experts].
        slots: the experts that each rank holds copies of.
        mean: load of a rank.
    """

    def __init__(self, loads: np.ndarray, ep_size: int, replicas: int) -> None:
        self.loads, self.num_own, self.mean = loads, len(loads) // ep_size, loads.sum() / ep_size
        self.replicas = min(replicas, len(loads) - self.num_own)
        self.slots: list[list[int]] = [[] for _ in range(ep_size)]
        self.held = np.zeros((ep_size, len(loads)))
        self.held[np.arange(len(loads)) // self.num_own, np.arange(len(loads))] = loads

    def most_loaded(self, stuck: set[int]) -> int:
        """Returns the most loaded rank that is not stuck; the first of equals."""
        busy = self.held.sum(axis=1)
        return max((r for r in range(len(busy)) if r not in stuck), key=lambda r: (busy[r], -r))

    def best_move(self, hot: int) -> _Move | None:
        """Returns the next replica to take load off rank `hot`; None if no rank has capacity for any of its experts."""
        busy = self.held.sum(axis=1)
        for expert in map(int, np.argsort(-self.held[hot], kind="stable")):
            free = [r for r, mine in enumerate(self.slots)
                    if len(mine) < self.replicas and r != expert // self.num_own and expert not in mine]
            if free:
                target = min(free, key=lambda r: (busy[r], r))
                return _Move(expert, target, min(self.held[hot, expert], busy[hot] - self.mean, self.mean - busy[target]))
        return None

    def apply(self, hot: int, move: _Move) -> None:
        self.held[hot, move.expert] -= move.amount
        self.held[move.target, move.expert] += move.amount
        self.slots[move.target].append(move.expert)

    def placement(self) -> Placement:
        """Returns the replicas with a share of at least one part in WHOLE."""
        shares = np.rint(self.held / np.maximum(self.loads, 1e-300) * WHOLE).astype(int)
        filled = [[e for e in mine if shares[r, e] > 0] for r, mine in enumerate(self.slots)]
        empty = [self.replicas - len(mine) for mine in filled]
        return Placement(len(self.loads), tuple((*mine, *[-1] * n) for mine, n in zip(filled, empty, strict=True)),
                         tuple((*(int(shares[r, e]) for e in mine), *[0] * n)
                               for r, (mine, n) in enumerate(zip(filled, empty, strict=True))), tuple(self.loads.tolist()))
