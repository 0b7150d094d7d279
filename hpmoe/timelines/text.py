"""The text of a Timeline: a row of letters for each worker, and a report of where its time went."""

from __future__ import annotations

import string
from collections.abc import Iterator

import numpy as np

from hpmoe.support.known import known
from hpmoe.timelines.critical_path import critical_path
from hpmoe.timelines.over_time import most_of
from hpmoe.timelines.releases import waiting_for
from hpmoe.timelines.run import Run, format_us, op_name


def gantt_text(line: Run, width: int) -> str:
    """A row of `width` characters for each worker: what it did most of in each `span / width`."""
    return "\n".join(_gantt(line, width))


def _gantt(line: Run, width: int) -> Iterator[str]:
    flow = line.flow
    yield " | ".join([f"# {flow.name}", *flow.provenance])
    yield (f"timeline {flow.name}  ranks={flow.ep_size} workers={flow.ep_size * len(flow.queues)} "
           f"tasks={flow.num_tasks}  {line.summary()}")
    names = [known(flow.machine).queue_name(q) for q in range(len(flow.queues))]
    share, doing = line.utilisation(), most_of(line, width)
    letters = [*map(_letter, range(len(flow.ops))), ".", " "]
    for rank in range(flow.ep_size):
        for q, name in enumerate(names):
            row = "".join(letters[i] for i in doing[rank, q])
            yield f"  rank {rank} {name:<{max(map(len, names))}} |{row}| {share[rank, q]:4.0%}".replace("%", " %")
    legend = "  "
    for item in [*(f"{_letter(i)} {op_name(flow, op)}" for i, op in enumerate(flow.ops)), ". waiting"]:
        if len(legend) + len(item) > width + 30:
            yield legend.rstrip()
            legend = "  "
        legend += f"{item}   "
    yield legend.rstrip()


def _letter(op: int) -> str:
    letters = string.ascii_uppercase + string.ascii_lowercase + string.digits
    return letters[op % len(letters)]


def report_text(line: Run) -> str:
    """Utilisation of each unit, exposed communication, waiting by what for, and the critical path."""
    exposed, kind = line.exposed_communication(), "simulated" if line.is_simulated else "measured"
    lines = [f"{line.flow.name}, {line.summary()}", f"{kind} utilisation of each unit: mean, and from the least to the most "
             "used rank"]
    lines += [f"  {unit:<8}{share.mean():7.1%}   {share.min():.1%} to {share.max():.1%}".replace("%", " %")
              for unit, share in line.unit_utilisation().items()]
    lines += [f"{kind} exposed communication: {format_us(exposed.mean())} a rank, "
              f"at most {format_us(exposed.max(initial=0))}",
              f"{kind} waiting, of all workers together"]
    workers = len(line.flow.queues) * line.flow.ep_size * max(line.span, 1e-12)
    for name, us in {**{f"for {name}": us for name, us in waiting_for(line).items()},
                     "after their last task": after_last(line)}.items():
        lines.append(f"  {us / workers:6.1%} of their time  {name}".replace("%", " %"))
    return "\n".join([*lines, critical_path(line).text()])


def after_last(line: Run) -> float:
    """Microseconds all workers together had nothing left to do before the end of the run."""
    num_queues = len(line.flow.queues)
    last = np.zeros(line.flow.ep_size * num_queues)
    np.maximum.at(last, line.rank * num_queues + line.queue, line.end)
    return float((line.span - last).sum())
