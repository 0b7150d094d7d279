"""The critical path of a run: what its end waited for, task by task back to its beginning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from hpmoe import taskflow as tf
from hpmoe.taskflow_text import task_name
from hpmoe.timelines.timeline import Timeline, format_us, op_name

RUNS_SHOWN = 40


@dataclasses.dataclass(frozen=True)
class Step:
    """A piece of a critical path.

    Attributes:
        rank, queue, task: whose piece it is.
        begin, end: microseconds.
        kind: "body", of the task; "signal", from the end of the task that released it until its body; "events", the worker
            looks at events that had counted enough; "between", the worker is between two tasks, or before its first.
        why: what the piece began after.
    """

    rank: int
    queue: int
    task: int
    begin: float
    end: float
    kind: str
    why: str

    @property
    def us(self) -> float:
        return self.end - self.begin


@dataclasses.dataclass(frozen=True, eq=False)
class CriticalPath:
    """What the end of a run waited for, back to its beginning: pieces one after another that add up to the span.

    The task that ended last began when its wait ended or, where it did not have to wait, when its worker had done the task
    before it. A wait ends by the signal of another task, on this rank or another one, and that task began in turn ... .

    Attributes:
        line: the run.
        steps: the pieces, in order of time.

    Example:
        >>> import hpmoe
        >>> f = hpmoe.tile_partition(lambda x, w: hpmoe.swiglu(x @ w), rows=128, cols=256)
        >>> flow = hpmoe.assign_queues(f, machine=hpmoe.ascend_a3).lower(
        ...     hpmoe.Aval((128, 1024), "bfloat16"), hpmoe.Aval((1024, 512), "bfloat16"))
        >>> [(step.kind, step.task) for step in hpmoe.simulate(flow).critical_path().steps]
        [('body', 0), ('signal', 2), ('body', 2)]
    """

    line: Timeline
    steps: tuple[Step, ...]

    def shares(self) -> dict[str, float]:
        """Microseconds on the path by tile operation, and as "signals", "events" and "between tasks"; the longest first."""
        other = {"signal": "signals", "events": "events", "between": "between tasks"}
        out: dict[str, float] = {}
        for step in self.steps:
            name = other.get(step.kind) or self._op(step)
            out[name] = out.get(name, 0.0) + step.us
        return dict(sorted(out.items(), key=lambda item: -item[1]))

    def runs(self) -> list[list[Step]]:
        """The pieces in groups: bodies of one operation that follow each other, each with what lies before it."""
        out: list[list[Step]] = []
        before: list[Step] = []
        for step in self.steps:
            before.append(step)
            if step.kind == "body":
                if out and self._op(out[-1][-1]) == self._op(step):
                    out[-1] += before
                else:
                    out.append(before)
                before = []
        return out

    def text(self) -> str:
        """The path with the tasks on it; neighbours of the same operation are one line: its first and last task, and
        how much of it is waiting."""
        return "\n".join(_text(self))

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _op(self, step: Step) -> str:
        return op_name(self.line.flow, self.line.flow.ops[self.line.flow.tasks["op"][step.task]])


def critical_path(line: Timeline) -> CriticalPath:
    """Walks back from the task that ended last; see CriticalPath."""
    if len(line.task) == 0:
        return CriticalPath(line, ())
    by, row, now = releases(line), int(np.argmax(line.end)), line.span
    steps: list[Step] = []

    def add(until: float, kind: str, why: str) -> float:
        """A piece of the current row from `until`, which is not later than `now`, to `now`; returns where it began."""
        if until < now:
            steps.append(Step(int(line.rank[row]), int(line.queue[row]), int(line.task[row]), until, now, kind, why))
        return min(until, now)

    while True:
        source = int(by[row])
        first = row == 0 or (line.rank[row - 1], line.queue[row - 1]) != (line.rank[row], line.queue[row])
        if 0 <= source and line.begin[source] < line.begin[row]:
            now = add(float(line.begin[row]), "body", f"released by {_where(line, source)}")
            now = add(float(line.end[source]), "signal", f"the end of {_where(line, source)}")
            row = source
            continue
        why = "the beginning" if first else f"{_where(line, row - 1)}, before it in its queue"
        now = add(float(line.begin[row]), "body", why)
        now = add(float(line.wait_begin[row]), "events", why)
        now = add(0.0 if first else float(line.end[row - 1]), "between", why)
        if first:
            return CriticalPath(line, tuple(reversed(steps)))
        row -= 1


def _where(line: Timeline, row: int) -> str:
    return f"t{line.task[row]} {task_name(line.flow, int(line.task[row]))} on rank {line.rank[row]}"


def releases(line: Timeline) -> np.ndarray:
    """For each row the row whose signal ended its wait, or -1 where its events had counted enough, [ep * num_tasks] int.

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
    rank = np.repeat(np.arange(ep), len(flow.waits))
    wait = np.tile(np.arange(len(flow.waits)), ep)
    row, event = row_of[rank, flow.waits["task"][wait]], flow.waits["event"][wait]
    block = flow.events["block"][event]
    at_run_time = np.array([b.dynamic for b in flow.blocks], bool)[block] | (flow.waits["kind"][wait] != tf.STATIC)
    out = np.full(len(line.task), -1)
    for chosen, candidate in (
            (~at_run_time, _last_of_event(line, source, target * len(flow.events) + flow.signals["event"][signal], row,
                                          rank * len(flow.events) + event)),
            (at_run_time, _last_of_block(line, source, target * len(flow.blocks)
                                         + flow.events["block"][flow.signals["event"][signal]],
                                         row, rank * len(flow.blocks) + block))):
        for r, c in zip(row[chosen].tolist(), candidate[chosen].tolist(), strict=True):
            if c >= 0 and line.end[c] > line.wait_begin[r] and (out[r] < 0 or line.end[c] > line.end[out[r]]):
                out[r] = c
    return out


def _sent(line: Timeline, row_of: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Every signal of every rank: the row that sends it, the rank where it arrives, and its index in flow.signals."""
    flow, ep = line.flow, line.flow.ep_size
    signal, rank, other = (x.reshape(-1) for x in np.meshgrid(np.arange(len(flow.signals)), np.arange(ep), np.arange(ep),
                                                              indexing="ij"))
    remote, task = flow.signals["remote"][signal], flow.signals["task"][signal]
    position, first = np.argsort(flow.peer_order, axis=1)[rank, other], flow.tasks["peer"][task]
    apart = np.array([op.num_peers or ep for op in flow.ops])[flow.tasks["op"][task]]
    is_for = (position >= first) & ((position - first) % apart == 0)
    arrives = (remote == tf.EVERY_RANK) | np.where(remote == tf.PEER, is_for, other == rank)
    return row_of[rank, task][arrives], other[arrives], signal[arrives]


def _last_of_event(line: Timeline, source: np.ndarray, signalled: np.ndarray, row: np.ndarray,
                   awaited: np.ndarray) -> np.ndarray:
    """For each wait the last to end of the rows that signal its event and had begun before any that waited for it; or -1."""
    size = int(max(signalled.max(initial=0), awaited.max(initial=0))) + 1
    first = np.full(size, np.inf)
    np.minimum.at(first, awaited, line.begin[row])
    early = line.begin[source] < first[signalled]
    source, signalled = source[early], signalled[early]
    last = np.full(size, -1)
    order = np.argsort(line.end[source], kind="stable")
    last[signalled[order]] = source[order]
    return last[awaited]


def _last_of_block(line: Timeline, source: np.ndarray, signalled: np.ndarray, row: np.ndarray,
                   awaited: np.ndarray) -> np.ndarray:
    """For each wait the last row to end, before the wait did, of those that signal its block; or -1."""
    times = np.sort(line.end[source])
    key = signalled * (len(times) + 1) + np.searchsorted(times, line.end[source])
    order = np.argsort(key, kind="stable")
    found = np.searchsorted(key[order], awaited * (len(times) + 1) + np.searchsorted(times, line.begin[row], "right")) - 1
    candidate = order[np.maximum(found, 0)] if len(order) else np.zeros(len(found), int)
    right = (found >= 0) & (len(order) > 0)
    out = np.full(len(awaited), -1)
    out[right] = np.where(signalled[candidate[right]] == awaited[right], source[candidate[right]], -1)
    return out


# Text.


def _text(path: CriticalPath) -> Iterator[str]:
    total, flow = max(path.line.span, 1e-12), path.line.flow
    kind = "simulated " if path.line.is_simulated else ""
    shares = ", ".join(f"{name} {us / total:.1%}".replace("%", " %") for name, us in path.shares().items())
    yield f"critical path, {kind}{format_us(path.line.span)}: {shares}"
    runs = path.runs()
    shown = sorted(sorted(range(len(runs)), key=lambda i: runs[i][0].begin - runs[i][-1].end)[:RUNS_SHOWN])
    yield f"{'at us':>10} {'us':>9} {'waits us':>9} {'tasks':>6}"
    for i in shown:
        steps, bodies = runs[i], [s for s in runs[i] if s.kind == "body"]
        tasks = [f"t{s.task} {task_name(flow, s.task)}" for s in (bodies[:1] + bodies[1:][-1:])]
        waits = sum(s.us for s in steps if s.kind != "body")
        yield (f"{steps[0].begin:10.1f} {steps[-1].end - steps[0].begin:9.1f} {waits:9.1f} {len(bodies):6}  "
               f"{_place(path, bodies)}: {' .. '.join(tasks)}")
    if len(runs) > len(shown):
        hidden = [s for i in set(range(len(runs))) - set(shown) for s in runs[i]]
        yield (f"{'':10} {sum(s.us for s in hidden):9.1f} {sum(s.us for s in hidden if s.kind != 'body'):9.1f} "
               f"{sum(s.kind == 'body' for s in hidden):6}  in {len(runs) - len(shown)} shorter lines left out")


def _place(path: CriticalPath, steps: list[Step]) -> str:
    """The ranks and workers of some pieces."""
    ranks = sorted({s.rank for s in steps})
    names = list(dict.fromkeys(path.line.flow.machine.queue_name(s.queue) for s in steps))
    where = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    return f"{where}, {names[0]}" if len(names) == 1 else f"{where}, {len(names)} workers"
