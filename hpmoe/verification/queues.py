"""Checks that each task is in one queue of its unit, once."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.taskflow_text import task_name
from hpmoe.planner.planner import are_queues
from hpmoe.support.errors import VerifyError
from hpmoe.support.known import known
from hpmoe.verification.fault import fail

UNITS = {"aic": 1, "aiv": 2}


def check_queues(flow: tf.Taskflow) -> None:
    """Raises VerifyError unless each task is in one queue of its unit, once."""
    for q in [q for q, queue in enumerate(flow.queues) if len(queue) and np.asarray(queue).dtype.kind not in "iu"][:1]:
        raise VerifyError(f"verify: queue {q} is of {np.asarray(flow.queues[q]).dtype}; it must be of the numbers of tasks")
    if len(flow.queues) != known(flow.machine).num_queues:
        raise VerifyError(f"verify: there are {len(flow.queues)} queues, {known(flow.machine).name} has "
                          f"{known(flow.machine).num_queues}")
    listed = np.concatenate([np.asarray(q) for q in flow.queues])
    bad = np.flatnonzero((listed < 0) | (listed >= flow.num_tasks))
    if len(bad):
        raise VerifyError(f"verify: a queue names task t{listed[bad[0]]}; there are t0 to t{flow.num_tasks - 1}")
    takes = np.zeros(len(flow.queues), int)
    for unit, bit in UNITS.items():
        takes += np.isin(np.arange(len(flow.queues)), known(flow.machine).queues_of(unit)) * bit
    if are_queues(flow, np.array([UNITS[op.unit] for op in flow.ops], np.uint8), takes):
        return
    times = np.bincount(listed, minlength=flow.num_tasks)
    for t in np.flatnonzero(times != 1)[:1]:
        named = ", ".join(f"{known(flow.machine).queue_name(q)} at {i}" for q, queue in enumerate(flow.queues)
                          for i in np.flatnonzero(np.asarray(queue) == t)) or "no queue"
        fail(flow, f"task t{t} {task_name(flow, int(t))} is in {named}; it must be in one queue, once", int(t))
    is_aic, lengths = flow.units()[listed], [len(q) for q in flow.queues]
    for unit, is_it in (("aic", is_aic), ("aiv", ~is_aic)):
        refused = [q not in known(flow.machine).queues_of(unit) for q in range(len(flow.queues))]
        for i in np.flatnonzero(is_it & np.repeat(refused, lengths))[:1]:
            t, queue = int(listed[i]), int(np.repeat(np.arange(len(lengths)), lengths)[i])
            fail(flow, f"task t{t} {task_name(flow, t)} is {unit} work in queue {known(flow.machine).queue_name(queue)}", t)
