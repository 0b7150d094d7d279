"""What a persistent kernel takes besides its tasks: its launch, its prologue, in which rows get their places, and passing by
tasks of slots that are not needed."""

from __future__ import annotations

import math

from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.routing.route_plan import RoutePlan

# What the scalar unit of an AIV reads or writes near it: at the start and for the events that it sets targets of, and for
# each expert whose entries it lists.
OF_START, OF_LISTED = 200, 4
# Ids that a vector unit looks at together, loads that are under way at once, and instructions: of a look, of what is listed
# for an expert, of running sums. Each takes a step for 64 words and, assumed, 20 more, at so many in a microsecond.
AT_ONCE, AHEAD, OF_LOOK, OF_PICK, OF_SUMS, STEP_WORDS, STEPS_MORE, STEPS_PER_US = 2048, 4, 5, 2, 24, 64, 20, 1815
# Experts of a block whose entries a core looks for, and groups of entries that there are at least with the smaller one.
BLOCKS, GROUPS = (16, 32), 4
# Where entries are dropped, experts have copies, or tokens go to a rank once, words for each entry that a core counts and
# sorts, and for each expert's list of that.
OF_ENTRY, OF_LIST = 20, 20
# Of all vector workers: when they have counted, told other ranks, set targets; and copies that one waits for, one after the
# other: counts out and in, lists out, counters of ranks twice, their entries, targets out, and in six more each time that
# its scalar unit's cache fetches lines.
MEETINGS, COPIES = 3, 13
# Where entries are dropped, copies more, besides those of entries that are looked at to count what comes back: a core has
# the targets of a line of 16 events, each of some tokens.
OF_DROPS, COUNTED_AT_ONCE, EVENTS = 4, 1024, 16
OF_CHOICE = 3  # copies more where a plan is chosen: counts of all ranks, and targets and runs of events, not read ahead
OF_SPARE = 3  # words of a task of a slot past the last with rows: its own, and what is kept of its template


def start_us(flow: tf.Taskflow, machine: Machine) -> float:
    """Microseconds of a launch of a taskflow until its first task can begin.

    Example:
        >>> import hpmoe
        >>> moe = hpmoe.tile_partition(hpmoe.moe_ffn, rows=128, cols=256)
        >>> shapes = (4096, 7168), (4096, 8), (4096, 8), (64, 7168, 4096), (64, 2048, 7168)
        >>> avals = [hpmoe.Aval(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
        >>> flow = hpmoe.overlap_comm(moe).lower(*avals)
        >>> no_prologue = {"vector.scalar_us": 0.0, "memory.dma_us": 0.0}
        >>> round(start_us(flow, hpmoe.ascend_a3)), round(start_us(flow, hpmoe.ascend_a3.replace(no_prologue)))
        (36, 20)
    """
    return machine.host.launch_us + prologue_us(flow, machine)


def choice_us(machine: Machine) -> float:
    """Microseconds that a launch takes longer to begin where it takes one of several plans, by plan_choice.h."""
    return OF_CHOICE * machine.memory.dma_us


def pass_us(machine: Machine) -> float:
    """Microseconds in which a worker passes by a task of a slot past the last that has rows, without a look at what it waits
    for; as long as decoding a task where a machine says nothing of its scalar units."""
    scalar_us = machine.vector.scalar_us
    return min(machine.sync.task_us, OF_SPARE * scalar_us) if scalar_us else machine.sync.task_us


def prologue_us(flow: tf.Taskflow, machine: Machine) -> float:
    """Microseconds in which the vector workers sort the entries of each route, tell the other ranks, place the rows of all
    ranks and set the thresholds of events, by what kernels/ascendc/prologue.h does in turn; nothing where no rows
    are routed, or on a machine that says nothing of it."""
    if not flow.routes or not (machine.vector.scalar_us or machine.memory.dma_us):
        return 0.0
    workers, words, copies, meetings, gathering = len(machine.queues_of("aiv")), OF_START, COPIES, MEETINGS, 0.0
    asked = {plan.of for plan in flow.routes}
    for number, plan in enumerate(flow.routes):
        lists = plan.num_local_experts * plan.ep_size
        if plan.capacity is not None and plan.capacity.drops:
            meetings += 1
            copies += OF_DROPS + _counted(plan) / AHEAD
        if _is_gathered(plan) and number not in asked:
            gathering += _gather_us(plan, workers, machine)
            continue
        entries = math.ceil(plan.num_tokens / workers) * plan.top_k
        words += OF_ENTRY * entries + OF_LIST * lists
        copies += workers + 6
        meetings += 1
    met = meetings * (machine.sync.signal_us + machine.sync.poll_us) + (machine.sync.remote_us if flow.ep_size > 1 else 0.0)
    return words * machine.vector.scalar_us + copies * machine.memory.dma_us + met + gathering


def _is_gathered(plan: RoutePlan) -> bool:
    """Whether entries are sorted by masks of the vector unit: is_gathered of kernels/ascendc/gather_sort.h."""
    return not plan.kind.is_of_tokens and plan.placement is None and not plan.drops_by_weight


def _counted(plan: RoutePlan) -> int:
    """How often a worker looks at entries to count those that are kept of each event's tokens."""
    return min(plan.num_returns, EVENTS) * math.ceil(plan.return_tokens * plan.top_k / COUNTED_AT_ONCE)


def _gather_us(plan: RoutePlan, workers: int, machine: Machine) -> float:
    """A worker looks at a group of entries for those of a block of experts, while more come in, and at these for those of
    each expert; and where the entries of each begin is added up, as in kernels/ascendc/gather_sort.h."""
    experts, groups = _block(plan, workers)
    blocks = math.ceil(plan.num_experts / experts) + 1
    entries, turns = plan.num_tokens * plan.top_k / groups, math.ceil(blocks * groups / workers)
    chunks = math.ceil(entries / AT_ONCE)
    dma_us = machine.memory.dma_us
    looks = dma_us + max(OF_LOOK * chunks * _vector_us(AT_ONCE), (chunks - 1) // AHEAD * dma_us)
    picks = experts * (OF_PICK * _vector_us(entries / (blocks - 1)) + OF_LISTED * machine.vector.scalar_us)
    return turns * (looks + picks) + (groups + OF_SUMS) * _vector_us(plan.num_experts)


def _block(plan: RoutePlan, workers: int) -> tuple[int, int]:
    """Experts of a block, and groups of entries."""
    drops = plan.capacity is not None and plan.capacity.policy == "position"
    sizes, wanted = ((1, 2, 4, 8, 16, 32), 1) if drops else (BLOCKS, GROUPS)
    groups = {size: workers // (math.ceil(plan.num_experts / size) + 1) for size in sizes}
    size = next((size for size in sizes if groups[size] >= wanted), sizes[-1])
    return min(size, plan.num_experts), 1 if drops else max(groups[size], 1)


def _vector_us(words: float) -> float:
    return (math.ceil(words / STEP_WORDS) + STEPS_MORE) / STEPS_PER_US
