"""Relocation: experts change places until no rank has much more to do than the others."""

from __future__ import annotations

import numpy as np

LEAST_GAIN = 1 / 64  # of a rank's mean load: what a swap must take from the most loaded rank


def relocated(experts: np.ndarray, loads: np.ndarray, ep_size: int) -> np.ndarray:
    """Returns the expert at each place, [E], after swaps between ranks that each lower the load of the most loaded rank.

    Each swap exchanges one expert of the most loaded rank for one of another rank, so that the larger load of the two ranks
    is least. A handful of experts moves, and every rank keeps its number of experts.

    Args:
        experts: [E], the expert at each place now.
        loads: [E] float64, load of each expert.
        ep_size: number of ranks, which have equal numbers of places.

    Example:
        >>> relocated(np.arange(6), np.array([5.0, 5, 1, 1, 1, 1]), 2).tolist()
        [3, 1, 2, 0, 4, 5]
    """
    at = np.array(experts).reshape(ep_size, -1)
    least = LEAST_GAIN * loads.sum() / ep_size
    while True:
        held = loads[at]
        busy = held.sum(axis=1)
        hot = int(busy.argmax())
        given = held[hot][:, None, None] - held  # [mine, rank, theirs]: what a swap takes from the hot rank
        worse = np.maximum(busy[hot] - given, busy[None, :, None] + given)
        worse[:, hot] = np.inf
        mine, rank, theirs = np.unravel_index(worse.argmin(), worse.shape)
        if not busy[hot] - worse[mine, rank, theirs] > least:
            return at.reshape(-1)
        at[hot, mine], at[rank, theirs] = at[rank, theirs], at[hot, mine]
