"""Deals puts out to vector workers in turns by which they send equally much under many a routing."""

from __future__ import annotations

import math

import numpy as np

from hpmoe.scheduling.likely_slots import LikelySlots
from hpmoe.scheduling.rules import rule


def _as_they_begin(sequence: np.ndarray) -> np.ndarray:
    """The turns of puts in the order in which they begin, whatever rows they are likely to have."""
    return np.argsort(np.argsort(sequence, axis=None)).reshape(sequence.shape).astype(np.int32)


@rule("spread_turns", otherwise=lambda sequence, workers: _as_they_begin(sequence))
def spread_turns(sequence: np.ndarray, workers: np.ndarray) -> np.ndarray:
    """Has puts of spread slots be dealt out evenly whichever run of slots is one source's, and from its first on.

    Of a run, slots that are a power of two apart are put one after the other. Their puts begin at a worker as many times a
    third of all on, which is never near the same one again. The turns, [num_slots, peers, columns] as `sequence`.

    Args:
        workers: among how many the puts for each peer are dealt out, [peers, 1].
    """
    steps = np.vectorize(_third)(workers)
    return (np.arange(len(sequence))[:, None, None] * steps + np.arange(sequence.shape[2])).astype(np.int32)


def _third(workers: int) -> int:
    """About a third of some workers, with which every one of them has its turn."""
    return min((step for step in range(1, workers + 1) if math.gcd(step, workers) == 1), key=lambda s: abs(s - workers / 3))


@rule("put_turns", otherwise=lambda slots, sequence, ahead, groups, node_size: _as_they_begin(sequence))
def put_turns(slots: LikelySlots, sequence: np.ndarray, ahead: np.ndarray, groups: int, node_size: int) -> np.ndarray:
    """Deals the puts that are expected to have rows out evenly among the workers of a group of peers.

    A rank sends each expert of each peer one run of slots. Runs are numbered expert after expert, in each by peer, and the
    slots of a run one after another. Returns turns, [num_slots, peers, columns] as `sequence`.

    Args:
        ahead: how many ranks the source of each peer's rows is after their receiver, [ep_size].
    """
    num_slots, num_peers, num_cols = sequence.shape
    of_source = slots.per_expert / slots.ep_size
    run = max(1, round(of_source))
    off = np.arange(num_slots)[:, None] - ahead * of_source - (run - 1) / 2  # from the middle of each source's run
    expert = np.rint(off / slots.per_expert).astype(int)
    off = np.rint(off - expert * slots.per_expert + (run - 1) / 2).astype(int)
    some = _nearest(np.abs(off), num_peers)
    expert, off = np.take_along_axis(expert, some, 1), np.take_along_axis(off, some, 1)
    of_group = -(-min(slots.ep_size, node_size) // groups)
    turn = ((expert * of_group + ahead[some] % node_size // groups) * run + off % run) * num_cols
    return (turn[:, :, None] + np.arange(num_cols)).astype(np.int32)


def _nearest(away: np.ndarray, num_peers: int) -> np.ndarray:
    """Of the ranks that each put is for, the position of the one that is the least away, [num_slots, peers]."""
    num_slots, ep_size = away.shape
    most = -(-ep_size // num_peers)
    every = np.full((num_slots, most * num_peers), away.max(initial=0) + 1)
    every[:, :ep_size] = away
    return every.reshape(num_slots, most, num_peers).argmin(1) * num_peers + np.arange(num_peers)
