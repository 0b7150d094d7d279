"""The critical path of a run: what its end waited for, task by task back to its beginning."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from hpmoe.ir.taskflow_text import task_name
from hpmoe.support.known import known
from hpmoe.support.notebook import NotebookText
from hpmoe.timelines.releases import releases
from hpmoe.timelines.run import Run, format_us, op_name

RUNS_SHOWN = 40
LEAST_NAMED = 0.005  # share of the path; what takes less is added up


@dataclasses.dataclass(frozen=True)
class Step:
    """A piece of a critical path."""

    rank: int  # with queue and task, whose piece it is
    queue: int
    task: int
    begin: float  # microseconds
    end: float
    # "body", of the task; "signal", from the end of the task that released it until its body; "events", the worker looks
    # at events that had counted enough; "between", the worker is between two tasks, or before its first.
    kind: str
    why: str  # what the piece began after

    @property
    def us(self) -> float:
        return self.end - self.begin


@dataclasses.dataclass(frozen=True, eq=False)
class CriticalPath(NotebookText):
    """Chain of waits from the end of a run to its beginning: consecutive pieces that add up to the span.

    The task that ended last began when its wait ended or, where it did not have to wait, when its worker had done the task
    before it. A wait ends by the signal of another task, on this rank or another one, and that task began in turn ... .

    Example:
        >>> import hpmoe
        >>> f = hpmoe.tile_partition(lambda x, w: hpmoe.swiglu(x @ w), rows=128, cols=256)
        >>> flow = hpmoe.assign_queues(f, machine=hpmoe.machines.ascend_a3).lower(
        ...     hpmoe.ShapeDtypeStruct((128, 1024), "bfloat16"), hpmoe.ShapeDtypeStruct((1024, 512), "bfloat16"))
        >>> [(step.kind, step.task) for step in hpmoe.simulate(flow).critical_path().steps]
        [('body', 0), ('signal', 2), ('body', 2)]
    """

    line: Run  # the run
    steps: tuple[Step, ...]  # the pieces, in order of time

    def shares(self) -> dict[str, float]:
        """Returns microseconds on the path by tile operation, "signals", "events" and "between tasks", the longest first."""
        other = {"signal": "signals", "events": "events", "between": "between tasks"}
        out: dict[str, float] = {}
        for step in self.steps:
            name = other.get(step.kind) or self._op(step)
            out[name] = out.get(name, 0.0) + step.us
        return dict(sorted(out.items(), key=lambda item: -item[1]))

    def runs(self) -> list[list[Step]]:
        """Returns the pieces in groups: bodies of one operation that follow each other, each with the pieces before it."""
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
        """Returns the path as text: the first and last task of neighbours of one operation, and how much of it is waiting.
        """
        return "\n".join(_text(self))

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _op(self, step: Step) -> str:
        return op_name(self.line.flow, self.line.flow.ops[self.line.flow.tasks["op"][step.task]])


def critical_path(line: Run) -> CriticalPath:
    """Walks back from the task that ended last; see CriticalPath."""
    if len(line.task) == 0:
        return CriticalPath(line, ())
    by, row, now = releases(line), int(np.argmax(line.end)), line.span
    steps: list[Step] = []

    def add(until: float, kind: str, why: str) -> float:
        """Adds the piece from `until`, not later than `now`, to `now` to the current row; returns where it began."""
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


def _where(line: Run, row: int) -> str:
    return f"t{line.task[row]} {task_name(line.flow, int(line.task[row]))} on rank {line.rank[row]}"


def _text(path: CriticalPath) -> Iterator[str]:
    total, flow = max(path.line.span, 1e-12), path.line.flow
    kind = "simulated " if path.line.is_simulated else ""
    shares = {name: us / total for name, us in path.shares().items()}
    named = {name: share for name, share in shares.items() if share >= LEAST_NAMED}
    if len(named) < len(shares):
        named["others"] = sum(shares.values()) - sum(named.values())
    parts = ", ".join(f"{name} {share:.1%}".replace("%", " %") for name, share in named.items())
    yield f"critical path, {kind}{format_us(path.line.span)}: {parts}"
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
    """Returns the ranks and workers of some pieces as text."""
    ranks = sorted({s.rank for s in steps})
    names = list(dict.fromkeys(known(path.line.flow.machine).queue_name(s.queue) for s in steps))
    where = f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
    return f"{where}, {names[0]}" if len(names) == 1 else f"{where}, {len(names)} workers"
