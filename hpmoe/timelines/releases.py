"""The signals that ended the waits of a run, and what its workers waited for."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.timelines.run import Run, op_name


def waiting_for(line: Run) -> dict[str, float]:
    """Returns the microseconds that all workers together waited, by cause, the longest first; see Timeline.waiting_for."""
    by, names = releases(line), [op_name(line.flow, op) for op in line.flow.ops]
    op = np.where(by >= 0, line.flow.tasks["op"][line.task[by]], len(names))
    lost = np.bincount(op, line.begin - line.wait_begin, len(names) + 1)
    out: dict[str, float] = {}
    for i in np.argsort(-lost, kind="stable"):
        name = names[i] if i < len(names) else "events already counted"
        if lost[i] > 0:
            out[name] = out.get(name, 0.0) + float(lost[i])
    return out


def releases(line: Run) -> np.ndarray:
    """Returns, for each row, the row whose signal ended its wait, or -1 without a wait, [ep * num_tasks] int.

    A simulation says so itself. Of a measured run it is the last to end of the tasks that signal an awaited event and had
    begun before anybody went on from it. Where the event is found at run time (an expert of a slot, a tile of entries), it
    is the last of all tasks that signal its block to end before the wait did.
    """
    if line.simulated is not None:
        return line.simulated.released_by
    flow, ep = line.flow, line.flow.ep_size
    row_of = np.empty((ep, flow.num_tasks), np.int64)
    row_of[line.rank, line.task] = np.arange(len(line.task))
    source, target, signal = _sent(line, row_of)
    block_of, num_events, num_blocks = flow.deps.events["block"], len(flow.deps.events), len(flow.deps.blocks)
    rank, waits = np.repeat(np.arange(ep), len(flow.deps.waits)), np.tile(flow.deps.waits, ep)
    row, event, signalled = row_of[rank, waits["task"]], waits["event"], flow.deps.signals["event"][signal]
    at_run_time = np.array([b.dynamic for b in flow.deps.blocks], bool)[block_of[event]] | (waits["kind"] != tf.STATIC)
    out = np.full(len(line.task), -1)
    for chosen, candidate in (
            (~at_run_time, _last_of_event(line, source, target * num_events + signalled, row, rank * num_events + event)),
            (at_run_time, _last_of_block(line, source, target * num_blocks + block_of[signalled], row,
                                         rank * num_blocks + block_of[event]))):
        for r, c in zip(row[chosen].tolist(), candidate[chosen].tolist(), strict=True):
            if c >= 0 and line.end[c] > line.wait_begin[r] and (out[r] < 0 or line.end[c] > line.end[out[r]]):
                out[r] = c
    return out


def _sent(line: Run, row_of: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns every signal of every rank: the row that sends it, the rank where it arrives, its index among the signals."""
    flow, ep, signals = line.flow, line.flow.ep_size, line.flow.deps.signals
    signal, rank, other = (x.reshape(-1) for x in np.meshgrid(np.arange(len(signals)), np.arange(ep), np.arange(ep),
                                                              indexing="ij"))
    remote, task = signals["remote"][signal], signals["task"][signal]
    op, first = flow.tasks["op"][task], flow.tasks["peer"][task]
    orders = np.array([flow.order_of(o.leg) for o in flow.ops], int).reshape(-1, ep, ep)
    position = np.argsort(orders, axis=2)[op, rank, other]
    apart = np.array([op.num_peers or ep for op in flow.ops])[op]
    is_for = (position >= first) & ((position - first) % apart == 0)
    arrives = (remote == tf.EVERY_RANK) | np.where(remote == tf.PEER, is_for, other == rank)
    return row_of[rank, task][arrives], other[arrives], signal[arrives]


def _last_of_event(line: Run, source: np.ndarray, signalled: np.ndarray, row: np.ndarray,
                   awaited: np.ndarray) -> np.ndarray:
    """Returns for each wait the last to end of the rows that signal its event and began before any that waited; or -1."""
    size = int(max(signalled.max(initial=0), awaited.max(initial=0))) + 1
    first = np.full(size, np.inf)
    np.minimum.at(first, awaited, line.begin[row])
    early = line.begin[source] < first[signalled]
    source, signalled = source[early], signalled[early]
    last = np.full(size, -1)
    order = np.argsort(line.end[source], kind="stable")
    last[signalled[order]] = source[order]
    return last[awaited]


def _last_of_block(line: Run, source: np.ndarray, signalled: np.ndarray, row: np.ndarray,
                   awaited: np.ndarray) -> np.ndarray:
    """Returns for each wait the last row to end, before the wait did, of those that signal its block; or -1."""
    times = np.sort(line.end[source])
    key = signalled * (len(times) + 1) + np.searchsorted(times, line.end[source])
    order = np.argsort(key, kind="stable")
    found = np.searchsorted(key[order], awaited * (len(times) + 1) + np.searchsorted(times, line.begin[row], "right")) - 1
    candidate = order[np.maximum(found, 0)] if len(order) else np.zeros(len(found), int)
    right = (found >= 0) & (len(order) > 0)
    out = np.full(len(awaited), -1)
    out[right] = np.where(signalled[candidate[right]] == awaited[right], source[candidate[right]], -1)
    return out
