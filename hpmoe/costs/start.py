"""What a persistent kernel takes besides its tasks: its launch, its prologue, in which rows get their places, and passing by
tasks of slots that are not needed."""

from __future__ import annotations

import math

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.routing.route_plan import RoutePlan

# What the scalar unit of an AIV reads or writes near it: at the start and for the events that it sets targets of, for each
# expert of all ranks, for each expert of a rank.
OF_START, OF_EXPERT, OF_PLACE = 200, 2, 3
# Entries whose experts a vector unit looks at together, loads that are under way at once, and an instruction on so many: 32
# steps of 256 bytes and, assumed, 20 cycles more.
AT_ONCE, AHEAD, LOOK_US = 2048, 4, 52 / 1815
# Where entries are dropped, experts have copies, or tokens go to a rank once, words for each entry that a core counts and
# sorts, and for each expert's list of that.
OF_ENTRY, OF_LIST = 20, 20
# Of all vector workers: when they have counted, told other ranks, set targets; and copies that one waits for, one after the
# other: counts out and in, lists out, counters of ranks twice, their entries, targets out, and in six more each time that
# its scalar unit's cache fetches lines.
MEETINGS, COPIES = 3, 13
OF_SPARE = 3  # words of a task of a slot past the last with rows: its own, and what is kept of its template


def start_us(flow: tf.Taskflow, machine: Machine) -> float:
    """Microseconds of a launch of a taskflow until its first task can begin.

    Example:
        >>> import hpmoe
        >>> moe = hpmoe.tile_partition(hpmoe.moe_ffn, rows=128, cols=256)
        >>> shapes = (4096, 7168), (4096, 8), (4096, 8), (64, 7168, 4096), (64, 2048, 7168)
        >>> avals = [hpmoe.Aval(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
        >>> flow = hpmoe.overlap_comm(moe).lower(*avals)
        >>> round(start_us(flow, hpmoe.ascend_a3)), round(start_us(flow, hpmoe.ascend_a3.replace(scalar_us=0.0, dma_us=0.0)))
        (39, 20)
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
    workers, words, copies, meetings, gathering = len(machine.queues_of("aiv")), OF_START, COPIES, MEETINGS, 0.0
    asked = {plan.once_of for plan in flow.routes}
    for number, plan in enumerate(flow.routes):
        lists = plan.num_local_experts * plan.ep_size
        words += OF_PLACE * plan.num_local_experts * math.ceil(plan.ep_size / workers)
        if _is_gathered(plan) and number not in asked:
            gathering += _gather_us(plan, workers, machine)
            words += OF_EXPERT * plan.num_experts
            continue
        choices = flow.routes[plan.once_of].top_k if plan.every_node else plan.top_k
        entries = math.ceil(plan.num_tokens / workers) * (plan.top_k + choices) / 2  # an entry of a node is one half
        words += OF_ENTRY * entries + OF_LIST * lists
        copies += workers + 6
        meetings += 1
    met = meetings * (machine.signal_us + machine.poll_us) + (machine.remote_us if flow.ep_size > 1 else 0.0)
    return words * machine.scalar_us + copies * machine.dma_us + met + gathering


def _is_gathered(plan: RoutePlan) -> bool:
    """Whether entries are sorted by masks of the vector unit: is_gathered of kernels/ascendc/gather_sort.h."""
    return plan.once_of < 0 and plan.placement is None and (plan.capacity is None or plan.capacity.policy == "error")


def _gather_us(plan: RoutePlan, workers: int, machine: Machine) -> float:
    """A worker looks at all entries for each of its experts, one comparison and one gathering at a time, while others come
    in."""
    experts, chunks = math.ceil((plan.num_experts + 1) / workers), math.ceil(plan.num_tokens * plan.top_k / AT_ONCE)
    work = (2 * experts + 1) * LOOK_US + experts * machine.scalar_us
    return machine.dma_us + chunks * max(work, machine.dma_us / AHEAD)
