"""requeue: a taskflow in other queues, with the waits that these do not imply."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir.taskflow import Taskflow
from hpmoe.machines.machine import Machine
from hpmoe.machines.this_cpu import cpu
from hpmoe.planner.planner import transitive_reduction
from hpmoe.support.errors import check_argument, kind_of
from hpmoe.support.keywords import suggests_keywords
from hpmoe.tiling.rebuild import rebuild
from hpmoe.transforms.assign_queues import as_queues
from hpmoe.verification.queues import check_queues
from hpmoe.verification.verify import check_acyclic, verify


@suggests_keywords
def requeue(flow: Taskflow, queues: Sequence[Sequence[int]], *, machine: Machine | None = None) -> Taskflow:
    """Returns the taskflow with other queues; derives events, waits and signals and verifies the result.

    `requeue` derives them from the regions that operations touch, as `rebuild` does, so any order is allowed in which no
    task precedes what it reads. Tables of `flow` lack the waits that its present queues imply, and are not used.

    Args:
        flow: a Taskflow, with or without queues.
        queues: for each queue of the machine, the indices of its tasks in the order in which they run, like `flow.queues`.
            Each task is in exactly one queue, of its unit ("aic" or "aiv"). `machine.queue_name(q)` is "aic.0" and so on,
            `machine.queues_of("aiv")` the queues of a unit, and `flow.units()` the unit of each task.
        machine: the machine of the queues. If None, the machine of the flow, or else the CPU of this process.

    Returns:
        A verified Taskflow with queues.

    Raises:
        ArgumentError: flow is no Taskflow, machine no Machine, or queues no sequence.
        VerifyError: an index is unknown, missing or there twice; a task is in a queue of the other unit; the number of
            queues is not the machine's; or tasks would wait for each other, in which case the text lists a shortest cycle.

    Example:
        >>> import hpmoe
        >>> from hpmoe.rewriting import requeue
        >>> @hpmoe.transform(requires="queues")
        ... def swap_workers(flow):
        ...     return requeue(flow, flow.queues[::-1])
        >>> tiles = hpmoe.tile_partition(lambda x: (x * x) * 2.0, rows=2)
        >>> staged = swap_workers(hpmoe.assign_queues(tiles, machine=hpmoe.cpu(2), policy="stage_order"))
        >>> print(staged.lower(hpmoe.ShapeDtypeStruct((4, 3), "float32")))
        # <lambda> | tile_partition(rows=2, cols=1024) | assign_queues(cpu, stage_order) | swap_workers
        taskflow <lambda>  ranks=1 tasks=4 events=0 waits=0 signals=0 slots=0
          queue worker.0  2 tasks
            t1 mul[rows 2:4, cols 0:3] x -> a wait -  signal -
            t3 mul[rows 2:4, cols 0:3] a -> b wait -  signal -
          queue worker.1  2 tasks
            t0 mul[rows 0:2, cols 0:3] x -> a wait -  signal -
            t2 mul[rows 0:2, cols 0:3] a -> b wait -  signal -
    """
    who = "hpmoe.rewriting.requeue"
    check_argument(isinstance(flow, Taskflow), who, "flow", f"a {type(flow).__name__}", "a Taskflow")
    check_argument(machine is None or isinstance(machine, Machine), who, "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.machines.ascend_a3 or hpmoe.load_machine(name), or None")
    try:
        arrays = as_queues(queues)
    except (TypeError, ValueError) as error:
        check_argument(False, who, "queues", f"{kind_of(queues)}, not a list of lists ({error})",
                       "a list of the task numbers of each queue")
    flow = rebuild(flow, flow.ops)
    assigned = flow.replace(queues=arrays, machine=machine or flow.machine or cpu(ep_size=flow.ep_size))
    check_queues(assigned)
    check_acyclic(assigned)
    reduced = transitive_reduction(assigned)
    verify(reduced)
    return reduced
