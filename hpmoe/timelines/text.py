"""Text of a Timeline: a row of letters for each worker, and a report of where the time went."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpmoe.support.known import known
from hpmoe.timelines.critical_path import critical_path
from hpmoe.timelines.kinds import KINDS, kinds_in
from hpmoe.timelines.over_time import most_of
from hpmoe.timelines.releases import waiting_for
from hpmoe.timelines.run import Run, format_us, num_workers, workers_text


def gantt_text(line: Run, width: int) -> str:
    """Returns a row of `width` letters for each worker: the kind of work it did most of in each `span / width`."""
    return "\n".join(_gantt(line, width))


def _gantt(line: Run, width: int) -> Iterator[str]:
    flow = line.flow
    yield " | ".join([f"# {flow.name}", *flow.provenance])
    yield (f"timeline {flow.name}  ranks={flow.ep_size} workers={num_workers(flow)} "
           f"tasks={flow.num_tasks}  {line.summary()}")
    names = [known(flow.machine).queue_name(q) for q in range(len(flow.queues))]
    share, doing = line.utilisation(), most_of(line, width)
    for rank in range(flow.ep_size):
        for q, name in enumerate(names):
            row = "".join(KINDS[i].letter for i in doing[rank, q])
            yield f"  rank {rank} {name:<{max(map(len, names))}} |{row}| {share[rank, q]:4.0%}".replace("%", " %")
    yield "  " + "   ".join(f"{kind.letter} {kind.name}" for kind in kinds_in(flow))


def report_text(line: Run) -> str:
    """Returns the use of each unit, exposed communication, waiting by its cause, and the critical path."""
    exposed, kind = line.exposed_communication(), "simulated" if line.is_simulated else "measured"
    lines = [f"{line.flow.name}, {line.summary()}", f"{kind} utilisation of each unit: mean, and from the least to the most "
             "used rank"]
    lines += [f"  {unit:<8}{share.mean():7.1%}   {share.min():.1%} to {share.max():.1%}".replace("%", " %")
              for unit, share in line.unit_utilisation().items()]
    lines += [f"{kind} exposed communication: {format_us(exposed.mean())} a rank, "
              f"at most {format_us(exposed.max(initial=0))}",
              f"{kind} waiting, summed over {workers_text(line.flow)}"]
    workers = num_workers(line.flow) * max(line.span, 1e-12)
    for name, us in {**{f"for {name}": us for name, us in waiting_for(line).items()},
                     "after their last task": after_last(line)}.items():
        lines.append(f"  {us / workers:6.1%} of their time  {name}".replace("%", " %"))
    return "\n".join([*lines, critical_path(line).text()])


def after_last(line: Run) -> float:
    """Returns the microseconds from each worker's last task to the end of the run, summed over all workers."""
    num_queues = len(line.flow.queues)
    last = np.zeros(line.flow.ep_size * num_queues)
    np.maximum.at(last, line.rank * num_queues + line.queue, line.end)
    return float((line.span - last).sum())
