"""Timeline: when each worker waited and worked, measured or simulated; as numbers, text and a Chrome/Perfetto trace."""

from __future__ import annotations

import dataclasses
import json
import string
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from hpmoe.errors import check_argument
from hpmoe.taskflow import Taskflow, TileOp
from hpmoe.taskflow_text import event_name, task_name

RATES = ("l2", "memory", "egress", "ingress", "node_egress", "node_ingress")


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """One run of a Taskflow's queues on all ranks: a row for each task of each rank, in queue order.

    Times are microseconds from the moment at which the first worker came to its first task; the exchange of routes that
    starts a kernel lies before it. A measured body that lost its core to another thread takes as much longer.

    Attributes:
        flow: the Taskflow that ran; it has queues.
        rank, queue, task: [ep * num_tasks] int, where the row ran and which task of `flow` it is.
        wait_begin, begin, end: [ep * num_tasks] float, when its worker came to it, began its body and had signalled.
        origin: microseconds of that first moment on the clock of the run.
        traffic: of a simulated run, [ep, len(RATES), 2] float: bytes that went over each shared rate of a rank, and
            microseconds during which it was in use; None where the run was measured.
    """

    flow: Taskflow
    rank: np.ndarray
    queue: np.ndarray
    task: np.ndarray
    wait_begin: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    origin: float = 0.0
    traffic: np.ndarray | None = None

    @classmethod
    def from_trace(cls, flow: Taskflow, trace: np.ndarray, traffic: np.ndarray | None = None) -> Timeline:
        """The Timeline of a launch.

        Args:
            flow: what was launched.
            trace: int64 [ep, num_tasks, 3] nanoseconds, tasks in the order of the queues.
            traffic: see Timeline.

        Raises:
            ArgumentError: the taskflow has no queues, or the trace is of another shape.

        Example:
            >>> import numpy as np, hpmoe
            >>> staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=4), machine=hpmoe.cpu(1))
            >>> flow = staged.lower(hpmoe.Aval((8, 6), "float32"))
            >>> trace = np.array([[[0, 1000, 3000], [3000, 3000, 4000]]])
            >>> print(Timeline.from_trace(flow, trace).text(width=8))
            # swiglu | tile_partition(rows=4, cols=512) | assign_queues(cpu, critical_path)
            timeline swiglu  ranks=1 workers=1 tasks=2  4.0 us, 75 % busy, 1.0 us waiting
              rank 0 worker.0 |..AAAAAA|  75 %
              A swiglu -> a   . waiting
        """
        check_argument(bool(flow.queues), "Timeline.from_trace", "flow", "without queues", "what assign_queues made")
        shape = (flow.ep_size, flow.num_tasks, 3)
        check_argument(trace.shape == shape, "Timeline.from_trace", "trace", f"of shape {trace.shape}",
                       f"of shape {shape}")
        first = int(trace.min()) if trace.size else 0
        wait_begin, begin, end = ((trace - first) / 1e3).reshape(-1, 3).T
        lengths = [len(q) for q in flow.queues]
        return cls(flow, np.repeat(np.arange(flow.ep_size), flow.num_tasks),
                   np.tile(np.repeat(np.arange(len(lengths)), lengths), flow.ep_size),
                   np.tile(np.concatenate(flow.queues), flow.ep_size), wait_begin, begin, end, first / 1e3, traffic)

    @property
    def is_simulated(self) -> bool:
        return self.traffic is not None

    @property
    def span(self) -> float:
        """Microseconds from the first task to the end of the last."""
        return float(self.end.max(initial=0.0))

    @property
    def waiting(self) -> float:
        """Microseconds all workers together spent waiting for events."""
        return float((self.begin - self.wait_begin).sum())

    def utilisation(self) -> np.ndarray:
        """The share of `span` that each worker spent in task bodies, [ep, num_queues]."""
        shape = (self.flow.ep_size, len(self.flow.queues))
        busy = np.bincount(self.rank * shape[1] + self.queue, self.end - self.begin, shape[0] * shape[1])
        return busy.reshape(shape) / max(self.span, 1e-12)

    def chrome_json(self) -> str:
        """The run as a Chrome trace: open it in ui.perfetto.dev or chrome://tracing."""
        return chrome_json([self])

    def text(self, width: int = 72) -> str:
        """A row of `width` characters for each worker: what it did most of in each `span / width`."""
        return "\n".join(_text(self, width))

    def summary(self) -> str:
        """Span, share of time in task bodies and time waited, on one line."""
        busy = float(self.utilisation().mean()) if self.flow.queues else 0.0
        kind = "simulated " if self.is_simulated else ""
        return f"{kind}{format_us(self.span)}, {busy:.0%} busy, {format_us(self.waiting)} waiting".replace("%", " %")

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__


def format_us(us: float) -> str:
    """A time with three digits and its unit.

    Example:
        >>> [format_us(t) for t in (0.5, 12.34, 4567.0, 2345678.0)]
        ['0.5 us', '12.3 us', '4.57 ms', '2.35 s']
    """
    if us < 1e3:
        return f"{us:.1f} us"
    value, unit = (us / 1e3, "ms") if us < 1e6 else (us / 1e6, "s")
    return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"


# Text.


def _text(line: Timeline, width: int) -> Iterator[str]:
    flow = line.flow
    yield " | ".join([f"# {flow.name}", *flow.provenance])
    yield (f"timeline {flow.name}  ranks={flow.ep_size} workers={flow.ep_size * len(flow.queues)} "
           f"tasks={flow.num_tasks}  {line.summary()}")
    names = [flow.machine.queue_name(q) for q in range(len(flow.queues))]
    share = line.utilisation()
    for rank in range(flow.ep_size):
        for q, name in enumerate(names):
            row = _cells(line, (line.rank == rank) & (line.queue == q), width)
            yield f"  rank {rank} {name:<{max(map(len, names))}} |{row}| {share[rank, q]:4.0%}".replace("%", " %")
    legend = "  "
    for item in [*(f"{_letter(i)} {_op_name(flow, op)}" for i, op in enumerate(flow.ops)), ". waiting"]:
        if len(legend) + len(item) > width + 30:
            yield legend.rstrip()
            legend = "  "
        legend += f"{item}   "
    yield legend.rstrip()


def _cells(line: Timeline, mine: np.ndarray, width: int) -> str:
    """The letter of the operation, '.' for waiting or ' ' for neither, whichever took most of each cell."""
    edges = np.linspace(0.0, line.span, width + 1)
    ops = line.flow.tasks["op"][line.task[mine]]
    wait_begin, begin, end = line.wait_begin[mine], line.begin[mine], line.end[mine]
    amounts = [_inside(edges, begin[ops == i], end[ops == i]) for i in range(len(line.flow.ops))]
    amounts.append(_inside(edges, wait_begin, begin))
    amounts.append(np.maximum(np.diff(edges) - sum(amounts), 0.0))
    letters = [*map(_letter, range(len(line.flow.ops))), ".", " "]
    return "".join(letters[i] for i in np.argmax(amounts, axis=0))


def _inside(edges: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How much of the intervals, which are disjoint and in order, lies between neighbouring edges."""
    if len(begin) == 0:
        return np.zeros(len(edges) - 1)
    done = np.cumsum(end - begin)
    return np.diff(np.interp(edges, np.stack([begin, end], 1).reshape(-1),
                             np.stack([done - (end - begin), done], 1).reshape(-1)))


def _letter(op: int) -> str:
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits
    return letters[op % len(letters)]


def _op_name(flow: Taskflow, op: TileOp) -> str:
    """`swiglu -> c`: the primitive, and the buffer its tasks write."""
    return f"{op.label} -> {flow.buffers[op.operands[0].buffer].name}" if op.operands else f"notify {op.label}"


# Chrome trace.


def chrome_json(timelines: Sequence[Timeline]) -> str:
    """One Chrome trace of several runs of the same ranks, one after another: a process a rank, a thread a worker.

    A task is a complete event of its unit's category, "aic" or "aiv"; the time before it in which its worker waited is
    one named "wait" of category "wait". Times are microseconds.
    """
    events: list[dict[str, Any]] = []
    names: dict[tuple[int, int], str] = {}
    last = 0.0
    for line in timelines:
        at = max(line.origin - timelines[0].origin, last)
        events += _task_events(line, at)
        last = at + line.span
        for rank in range(line.flow.ep_size):
            for q in range(len(line.flow.queues)):
                names[rank, q] = line.flow.machine.queue_name(q)
    events.sort(key=lambda e: (e["ts"], -e["dur"]))
    return json.dumps({"displayTimeUnit": "ns", "traceEvents": [*_name_events(names), *events]},
                      separators=(",", ":"))


def _name_events(names: dict[tuple[int, int], str]) -> Iterator[dict[str, Any]]:
    for rank in sorted({rank for rank, _ in names}):
        yield {"name": "process_name", "ph": "M", "pid": rank, "tid": 0, "args": {"name": f"rank {rank}"}}
        yield {"name": "process_sort_index", "ph": "M", "pid": rank, "tid": 0, "args": {"sort_index": rank}}
    for (rank, q), name in names.items():
        yield {"name": "thread_name", "ph": "M", "pid": rank, "tid": q, "args": {"name": name}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": rank, "tid": q, "args": {"sort_index": q}}


def _task_events(line: Timeline, at: float) -> list[dict[str, Any]]:
    flow = line.flow
    labels = [task_name(flow, t) for t in range(flow.num_tasks)]
    awaited: dict[int, list[str]] = {}
    for wait in flow.waits:
        awaited.setdefault(int(wait["task"]), []).append(event_name(flow, int(wait["event"])))
    out = []
    for rank, q, t, *times in zip(*(c.tolist() for c in (line.rank, line.queue, line.task, line.wait_begin, line.begin,
                                                         line.end)), strict=True):
        wait_begin, begin, end = (round(at + x, 3) for x in times)
        op = flow.ops[flow.tasks["op"][t]]
        if begin > wait_begin:
            out.append({"name": "wait", "cat": "wait", "cname": "grey", "ph": "X", "pid": rank, "tid": q,
                        "ts": wait_begin, "dur": round(begin - wait_begin, 3),
                        "args": {"task": f"t{t}", "for": awaited.get(t, [])}})
        args = {"task": f"t{t}", "op": _op_name(flow, op), "flow": flow.name}
        if op.domain.kind == "slots":
            args["slot"] = int(flow.tasks["row"][t])
        out.append({"name": labels[t], "cat": op.unit, "ph": "X", "pid": rank, "tid": q, "ts": begin,
                    "dur": round(end - begin, 3), "args": args})
    return out
