"""The activity in each part of a run: the columns of its text, its picture and its curves."""

from __future__ import annotations

import numpy as np

from hpmoe.timelines.kinds import KINDS, NOTHING, WAITING, kind_indices
from hpmoe.timelines.run import Run


def time_inside(edges: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Returns the total length of the intervals between neighbouring edges.

    Example:
        >>> time_inside(np.array([0.0, 2.0, 4.0]), np.array([1.0, 0.0]), np.array([3.0, 1.0])).tolist()
        [2.0, 1.0]
    """
    def past(times: np.ndarray) -> np.ndarray:
        ordered = np.sort(times)
        count = np.searchsorted(ordered, edges)
        return edges * count - np.concatenate([[0.0], np.cumsum(ordered)])[count]
    return np.diff(past(begin) - past(end))


def busy_share(line: Run, queues: range, edges: np.ndarray) -> np.ndarray:
    """Returns the share of the workers of some queues, on all ranks, that is in bodies between neighbouring edges."""
    mine = (line.queue >= queues.start) & (line.queue < queues.stop)
    busy = time_inside(edges, line.begin[mine], line.end[mine])
    return busy / np.diff(edges) / (len(queues) * line.flow.ep_size)


def most_of(line: Run, width: int, ranks: list[int] | range | None = None) -> np.ndarray:
    """Returns the kind of work that each worker did most of in each of `width` equal parts of the span."""
    flow = line.flow
    ranks = range(flow.ep_size) if ranks is None else ranks
    edges = np.linspace(0.0, line.span, width + 1)
    kind = kind_indices(flow)[flow.tasks["op"][line.task]]
    out = np.empty((len(ranks), len(flow.queues), width), np.int64)
    bounds = np.searchsorted(line.rank * len(flow.queues) + line.queue, np.arange(flow.ep_size * len(flow.queues) + 1))
    for i, rank in enumerate(ranks):
        for q in range(len(flow.queues)):
            mine = slice(*bounds[rank * len(flow.queues) + q:][:2])
            begin, end = line.begin[mine], line.end[mine]
            amounts = [time_inside(edges, begin[kind[mine] == k], end[kind[mine] == k]) for k in range(len(KINDS))]
            amounts[KINDS.index(WAITING)] = time_inside(edges, line.wait_begin[mine], begin)
            amounts[KINDS.index(NOTHING)] = np.maximum(np.diff(edges) - sum(amounts), 0.0)
            out[i, q] = np.argmax(amounts, axis=0)
    return out
