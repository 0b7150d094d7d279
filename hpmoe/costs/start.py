"""What a persistent kernel takes besides its tasks: its launch, its prologue, in which rows get their places, and passing by
tasks of slots that are not needed."""

from __future__ import annotations

import math

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine

# Words of UB that kernels/ascendc reads and writes by its scalar unit: for each entry that a core counts and sorts, for each
# expert's list of that, for each expert of each rank whose rows it places, for each event whose threshold it finds.
OF_ENTRY, OF_LIST, OF_PLACE, OF_EVENT = 20, 20, 11, 30
OF_SPARE = 8  # of a task of a slot past the last with rows: its word, its template's and its slot, and where the last one is
MEETINGS = 4  # of all vector workers: when they have counted, sorted, placed rows, set thresholds


def start_us(flow: tf.Taskflow, machine: Machine) -> float:
    """Microseconds of a launch of a taskflow until its first task can begin.

    Example:
        >>> import hpmoe
        >>> moe = hpmoe.tile_partition(hpmoe.moe_ffn, rows=128, cols=256)
        >>> shapes = (4096, 7168), (4096, 8), (4096, 8), (64, 7168, 4096), (64, 2048, 7168)
        >>> avals = [hpmoe.Aval(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
        >>> flow = hpmoe.overlap_comm(moe).lower(*avals)
        >>> round(start_us(flow, hpmoe.ascend_a3)), round(start_us(flow, hpmoe.ascend_a3.replace(scalar_us=0.0, dma_us=0.0)))
        (159, 20)
    """
    return machine.launch_us + prologue_us(flow, machine)


def pass_us(machine: Machine) -> float:
    """Microseconds in which a worker passes by a task of a slot past the last that has rows, without a look at what it waits
    for; as long as decoding a task where a machine says nothing of its scalar units."""
    return min(machine.task_us, OF_SPARE * machine.scalar_us) if machine.scalar_us else machine.task_us


def prologue_us(flow: tf.Taskflow, machine: Machine) -> float:
    """Microseconds in which the vector workers sort the entries of each route, tell the other ranks, place the rows of all
    ranks and set the thresholds of events, by what kernels/ascendc/prologue.h does in turn; nothing where no rows
    are routed, or on a machine that says nothing of it."""
    if not flow.routes or not (machine.scalar_us or machine.dma_us):
        return 0.0
    workers = len(machine.queues_of("aiv"))
    words, transfers, meetings = OF_EVENT * math.ceil(len(flow.events) / workers), 2, MEETINGS
    for plan in flow.routes:
        entries, lists = math.ceil(plan.num_tokens / workers) * plan.top_k, plan.num_local_experts * plan.ep_size
        times = 2 if plan.once_of >= 0 else 1  # what goes to a rank once is sorted by ranks and by their experts
        words += times * (OF_ENTRY * entries + OF_LIST * lists) + OF_PLACE * lists
        transfers += times * (workers + 6) + 3 * math.ceil(plan.ep_size / workers) + 4 * plan.ep_size
        meetings += times - 1
    met = meetings * (machine.signal_us + machine.poll_us) + (machine.remote_us if flow.ep_size > 1 else 0.0)
    return words * machine.scalar_us + transfers * machine.dma_us + met
