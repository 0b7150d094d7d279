"""Deals puts out to vector workers in turns by which they send equally much under many a routing."""

from __future__ import annotations

import math

import numpy as np

from hpmoe.scheduling.likely_slots import LikelySlots
from hpmoe.scheduling.rules import rule

DRIFT = 3  # slots by which the rows of a rank are likely to be off, where experts fill more or fewer slots than planned


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
    """Has puts that are likely to have rows be dealt out evenly among the workers of a group of peers.

    The numbers by which they are dealt out are [num_slots, peers, columns]. A number is that of a cell: a slot and a rank
    that is likely to have rows in it. They ascend by `sequence` among cells whose peers are of one group; a put for
    several peers is of the group of its first. Cells for ranks of one place in every node have one number: all workers then
    send as much to other nodes.

    Args:
        sequence: in which order the puts begin, [num_slots, peers, columns].
        ahead: of each peer how many ranks the source of its rows is after their receiver, [ep_size].
    """
    deal = _by_run if len(sequence) and slots.per_expert >= slots.ep_size else _by_slot
    return deal(slots, sequence, ahead, groups, node_size)


def _by_run(slots: LikelySlots, sequence: np.ndarray, ahead: np.ndarray, groups: int, node_size: int) -> np.ndarray:
    """Where a rank has the rows of whole slots of an expert: cells are those of each expert and rank, one after the other.

    Every rank sends one run of rows to each expert. Wherever that begins, its slots have the numbers of its cells, in turn:
    a put has those of the expert whose run is nearest, of a rank that it is for.
    """
    num_slots, num_peers, num_cols = sequence.shape
    slot, run = np.arange(num_slots)[:, None], max(1, round(slots.per_expert / slots.ep_size))
    first = np.ceil(np.arange(slots.num_experts) * slots.per_expert).astype(int)
    begin = (np.arange(slots.ep_size) * slots.per_expert / slots.ep_size).astype(int)  # of each source
    peer = np.argsort(ahead) % num_peers
    cells = np.minimum(first[:, None, None] + begin[:, None] + np.arange(run), num_slots - 1)
    nodes, source = -(-slots.ep_size // node_size), np.arange(slots.ep_size)
    began = sequence[cells, peer[:, None]].astype(np.int64)[:, source % node_size] * nodes
    began += (source // node_size)[:, None, None]
    group = ahead[:num_peers][peer] % node_size % groups
    numbers = _numbers(began, group[:, None, None], groups, nodes)
    off = slot - begin[ahead] - (run - 1) / 2
    expert = np.rint(off / slots.per_expert)
    off = np.rint(off - expert * slots.per_expert + (run - 1) / 2).astype(int)
    some = _nearest(np.abs(off), num_peers)
    source, off = ahead[some], np.take_along_axis(off, some, 1)
    expert = np.take_along_axis(expert, some, 1).astype(int) % slots.num_experts
    longer = (off + DRIFT) // (run + 2 * DRIFT)  # where there are more rows than likely, other workers send them
    return numbers[expert, source, off % run] + (longer * run * num_cols)[:, :, None]


def _nearest(away: np.ndarray, num_peers: int) -> np.ndarray:
    """Of the ranks that each put is for, the position of the one that is the least away, [num_slots, peers]."""
    num_slots, ep_size = away.shape
    most = -(-ep_size // num_peers)
    every = np.full((num_slots, most * num_peers), away.max(initial=0) + 1)
    every[:, :ep_size] = away
    return every.reshape(num_slots, most, num_peers).argmin(1) * num_peers + np.arange(num_peers)


def _by_slot(slots: LikelySlots, sequence: np.ndarray, ahead: np.ndarray, groups: int, node_size: int) -> np.ndarray:
    """Where a slot has rows of several ranks: one peer of a cell is likely to have rows, of neighbouring ranks, so many as
    a slot is of, whichever is the first."""
    num_peers, slot = sequence.shape[1], np.arange(len(sequence))[:, None]
    first = (slots.place / slots.per_expert * slots.ep_size).astype(int)[:, None] % slots.ep_size
    sources = math.ceil(slots.ep_size / slots.per_expert)
    likely = np.argsort(ahead)[(first + np.arange(sources)) % slots.ep_size] % num_peers
    nodes, node = -(-slots.ep_size // node_size), slots.source // node_size
    in_first_node = slot[:, 0] - node * round(slots.per_expert * node_size / slots.ep_size)
    began = sequence[slot, likely].astype(np.int64)[np.maximum(in_first_node, 0)] * nodes + node[:, None, None]
    numbers = _numbers(began, (ahead[likely] % node_size % groups)[:, :, None], groups, nodes)
    half, apart = num_peers // 2, np.arange(num_peers)
    nearest = ((apart + half) % num_peers - half) % sources  # for peers so many ranks after the first likely one
    out = numbers[slot, nearest[(ahead[:num_peers] - first) % num_peers]]
    if groups > 1:
        _number_as_before(slots, out, likely)
    return out


def _numbers(began: np.ndarray, group: np.ndarray, groups: int, nodes: int) -> np.ndarray:
    """Of each cell how many of its group come before it, where those for ranks of one place in every node count once;
    `began` says which does, `group` is as it or broadcast."""
    of_group = np.broadcast_to(group, began.shape).reshape(-1)
    order = np.argsort(of_group * (began.max(initial=0) + 1) + began.reshape(-1))
    sizes = np.bincount(of_group, minlength=groups)
    out = np.empty(began.shape, np.int32)
    out.reshape(-1)[order] = (np.arange(began.size) - np.repeat(np.cumsum(sizes) - sizes, sizes)) // nodes
    return out


def _number_as_before(slots: LikelySlots, numbers: np.ndarray, likely: np.ndarray) -> None:
    """Gives peers that are likely in the slot before and not in this one the number they have there: on other ranks a
    slot may begin with their rows. `numbers` [num_slots, peers, columns], `likely` peers of each slot."""
    slot = np.arange(len(numbers))
    is_likely = np.zeros(numbers.shape[:2], bool)
    is_likely[slot[:, None], likely] = True
    last = np.ceil((slots.expert + 1) * slots.per_expert).astype(int) - 1
    before = np.where(slots.place == 0, np.minimum(last, len(last) - 1), slot - 1)
    is_later = is_likely[before] & ~is_likely
    numbers[is_later] = numbers[before][is_later]
