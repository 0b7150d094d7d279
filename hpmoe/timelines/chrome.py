"""A Timeline as a Chrome trace, for ui.perfetto.dev or chrome://tracing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

import numpy as np

from hpmoe.ir.taskflow_text import event_name, task_name
from hpmoe.support.cached_files import Fields
from hpmoe.support.known import known
from hpmoe.timelines.kinds import KINDS, WAITING, kind_indices
from hpmoe.timelines.over_time import time_inside
from hpmoe.timelines.releases import releases
from hpmoe.timelines.run import RATES, Run, op_name

BINS = 200
LINKS = ("egress", "ingress", "node_egress", "node_ingress", "memory")


def chrome_json(timelines: Sequence[Run], *, max_arrows: int = 10_000) -> str:
    """Returns one Chrome trace of several runs of the same ranks, one after another: a process a rank, a thread a worker.

    A task is a complete event of its unit's category, "aic" or "aiv"; the time before it in which its worker waited is
    one named "wait" of category "wait", and an arrow leads from the task whose signal ended the wait to the task that
    waited. Counters of each rank, at most 201 values each for a run: the share of its matrix workers that is busy, and of
    the workers that do the rest; of a simulated run also how much of each link and of memory bandwidth is used, of a
    measured one how many transfers are under way. Times are microseconds.

    Args:
        timelines: the runs.
        max_arrows: most arrows of each run; those of the longest waits are drawn.
    """
    events: list[Fields] = []
    names: dict[tuple[int, int], str] = {}
    kinds = set()
    last = 0.0
    for number, line in enumerate(timelines):
        at = max(line.origin - timelines[0].origin, last)
        events += _task_events(line, at)
        events += _arrows(line, at, max_arrows, f"{number}.")
        events += _counters(line, at)
        last = at + line.span
        kinds.add("simulated" if line.is_simulated else "measured")
        for rank in range(line.flow.ep_size):
            for q in range(len(line.flow.queues)):
                names[rank, q] = known(line.flow.machine).queue_name(q)
    events.sort(key=lambda e: (e["ts"], -e.get("dur", 0.0)))
    return json.dumps({"displayTimeUnit": "ns", "otherData": {"times": " and ".join(sorted(kinds))},
                       "traceEvents": [*_name_events(names, kinds == {"simulated"}), *events]}, separators=(",", ":"))


def _name_events(names: dict[tuple[int, int], str], simulated: bool) -> Iterator[Fields]:
    for rank in sorted({rank for rank, _ in names}):
        name = f"rank {rank}" + (", simulated" if simulated else "")
        yield {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": name}}
        yield {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
    for (rank, q), name in names.items():
        yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": q, "args": {"name": name}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": rank, "tid": q, "args": {"sort_index": q}}


def _task_events(line: Run, at: float) -> Iterator[Fields]:
    flow = line.flow
    kinds = [KINDS[i] for i in kind_indices(flow)]
    labels = [task_name(flow, t) for t in range(flow.num_tasks)]
    awaited: dict[int, list[str]] = {}
    for wait in flow.deps.waits:
        awaited.setdefault(int(wait["task"]), []).append(event_name(flow, int(wait["event"])))
    for rank, q, t, *times in zip(*(c.tolist() for c in (line.rank, line.queue, line.task, line.wait_begin, line.begin,
                                                         line.end)), strict=True):
        wait_begin, begin, end = (round(at + x, 3) for x in times)
        op, kind = flow.ops[flow.tasks["op"][t]], kinds[flow.tasks["op"][t]]
        if begin > wait_begin:
            yield {"name": "wait", "cat": "wait", "cname": WAITING.trace_color, "ph": "X", "pid": rank, "tid": q,
                   "ts": wait_begin, "dur": round(begin - wait_begin, 3),
                   "args": {"task": f"t{t}", "for": awaited.get(t, [])}}
        args: dict[str, str | int] = {"task": f"t{t}", "op": op_name(flow, op), "kind": kind.name, "flow": flow.name}
        if op.domain.is_slots:
            args["slot"] = int(flow.tasks["row"][t])
        yield {"name": labels[t], "cat": op.unit, "cname": kind.trace_color, "ph": "X", "pid": rank, "tid": q,
               "ts": begin, "dur": round(end - begin, 3), "args": args}


def _arrows(line: Run, at: float, max_arrows: int, prefix: str) -> Iterator[Fields]:
    """Yields arrows from inside the task that signalled to the beginning of the task that waited."""
    by = releases(line)
    rows = np.flatnonzero(by >= 0)
    rows = rows[np.argsort(line.wait_begin[rows] - line.begin[rows], kind="stable")[:max_arrows]]
    for i, row in enumerate(rows.tolist()):
        source = int(by[row])
        begin, end = float(line.begin[source]), min(float(line.end[source]), float(line.begin[row]))
        for phase, r, ts in (("s", source, max(begin, end - 0.001)), ("f", row, float(line.begin[row]))):
            event = {"name": "signal", "cat": "signal", "ph": phase, "id": f"{prefix}{i}", "pid": int(line.rank[r]),
                     "tid": int(line.queue[r]), "ts": round(at + ts, 3)}
            yield {**event, "bp": "e"} if phase == "f" else event


def _counters(line: Run, at: float) -> Iterator[Fields]:
    edges = np.linspace(0.0, line.span, BINS + 1)
    for rank in range(line.flow.ep_size):
        for name, values in _shares(line, rank, edges):
            for ts, before, value in zip(edges[:-1], [-1.0, *values[:-1]], values, strict=True):
                if value != before:
                    yield _counter(rank, name, at + ts, value)
            yield _counter(rank, name, at + line.span, 0.0)


def _counter(rank: int, name: str, ts: float, value: float) -> Fields:
    return {"name": name, "ph": "C", "pid": rank, "tid": 0, "ts": round(float(ts), 3), "args": {"value": value}}


def _shares(line: Run, rank: int, edges: np.ndarray) -> Iterator[tuple[str, list[float]]]:
    """Yields each counter of a rank: its name and a value between neighbouring edges."""
    flow, width = line.flow, max(line.span / BINS, 1e-12)
    mine, matrix = line.rank == rank, flow.units()[line.task]
    num_matrix = len(known(flow.machine).queues_of("aic"))
    for name, chosen, count in (("matrix workers busy %", mine & matrix, num_matrix),
                                ("vector work, busy workers %", mine & ~matrix, len(known(flow.machine).queues_of("aiv")))):
        busy = time_inside(edges, line.begin[chosen], line.end[chosen]) / width / max(count, 1)
        yield name, (100 * busy).clip(0, 100).round(1).tolist()
    if line.simulated is None:
        moves = mine & np.array([op.primitive.is_remote for op in flow.ops], bool)[flow.tasks["op"][line.task]]
        if moves.any():
            yield "transfers under way", (time_inside(edges, line.begin[moves], line.end[moves]) / width).round(2).tolist()
        return
    for name, share in link_shares(line, rank, edges).items():
        yield f"{name.replace('_', ' ')} used %", (100 * share).round(1).tolist()


def link_shares(line: Run, rank: int, edges: np.ndarray) -> dict[str, np.ndarray]:
    """Returns a simulated rank's use of memory bandwidth and of each used link between edges, as shares."""
    seen = known(line.simulated)
    rate = {"memory": seen.machine.memory.bytes_per_us, "egress": seen.machine.link.rate(line.flow.ep_size),
            "node_egress": seen.machine.link.node_bytes_per_us}
    rate |= {"ingress": rate["egress"], "node_ingress": rate["node_egress"]}
    times = np.arange(seen.served.shape[2] + 1) * seen.bin_us
    out = {}
    for name in LINKS:
        served = np.concatenate([[0.0], np.cumsum(seen.served[rank, RATES.index(name)])])
        if served[-1] > 0:
            out[name] = np.diff(np.interp(edges, times, served)) / np.maximum(np.diff(edges), 1e-12) / rate[name]
    return out
