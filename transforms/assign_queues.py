"""assign_queues: tasks -> static in-order AIC and AIV queues, and the events that are still needed between them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from hpmoe.costs.task_costs import task_costs
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine
from hpmoe.machines.this_cpu import cpu
from hpmoe.planner.planner import schedule, transitive_reduction
from hpmoe.runtime.rewrite import name_of
from hpmoe.runtime.transform import transform
from hpmoe.scheduling.expected_slots import costs_of_expected_slots, expected_costs
from hpmoe.scheduling.score import is_scored, score
from hpmoe.scheduling.workers import dealt, vector_workers
from hpmoe.support.errors import TransformError, VerifyError, call_user, check_argument, is_name
from hpmoe.support.known import known
from hpmoe.verification.queues import check_queues
from hpmoe.verification.verify import check_acyclic

Policy = Callable[[tf.Taskflow, Machine], Sequence[np.ndarray]]
Priority = Callable[[tf.Taskflow], Sequence[float]]


def _by_unit(flow: tf.Taskflow, machine: Machine) -> list[tuple[range, np.ndarray]]:
    """Yields (queues, their tasks in program order) for each kind of unit."""
    if machine.unified:
        return [(machine.queues_of("aic"), np.arange(flow.num_tasks))]
    is_aic = flow.units()
    return [(machine.queues_of("aic"), np.flatnonzero(is_aic)), (machine.queues_of("aiv"), np.flatnonzero(~is_aic))]


def round_robin(flow: tf.Taskflow, machine: Machine) -> list[np.ndarray]:
    """Deals the tasks of each unit out in turn, in program order."""
    queues = [np.zeros(0, np.int64)] * machine.num_queues
    for numbers, tasks in _by_unit(flow, machine):
        for i, q in enumerate(numbers):
            queues[q] = tasks[i::len(numbers)]
    return queues


def stage_order(flow: tf.Taskflow, machine: Machine) -> list[np.ndarray]:
    """Assigns operator after operator, each cut into equal runs of tasks, the order of kernels launched one by one."""
    parts: list[list[np.ndarray]] = [[] for _ in range(machine.num_queues)]
    for numbers, tasks in _by_unit(flow, machine):
        for op in np.unique(flow.tasks["op"][tasks]):
            runs = np.array_split(tasks[flow.tasks["op"][tasks] == op], len(numbers))
            for q, run in zip(numbers, runs, strict=True):
                parts[q].append(run)
    return [np.concatenate(p) if p else np.zeros(0, np.int64) for p in parts]


def critical_path(flow: tf.Taskflow, machine: Machine, order: np.ndarray | None = None) -> list[np.ndarray]:
    """Schedules a list: a free worker takes the ready task with the longest path of costs to the end.

    On a machine of two kinds of units a free worker takes the ready task with the least `score`, and vector tasks are dealt
    out evenly afterwards, in the order in which they began. If `is_scored` is False, round_robin deals out all tasks.

    Args:
        order: a number for each task, of which the least is taken first, [num_tasks] int64; None for the default order.
    """
    if machine.unified:
        return schedule(flow, task_costs(flow, machine), np.zeros(flow.num_tasks), (machine.num_queues,), order)[0]
    if order is None and not is_scored(flow, machine):
        return round_robin(flow, machine)
    costs = expected_costs(flow, machine)
    expected = costs_of_expected_slots(flow, costs)
    vector = vector_workers(flow, machine, expected)
    order = score(flow, machine) if order is None else order
    kind = np.array([0 if op.unit == "aic" else 1 + vector.kind(op) for op in flow.ops])[flow.tasks["op"]]
    costs *= np.array([vector.share(op) for op in flow.ops])[flow.tasks["op"]]
    sync = machine.sync
    seen_us = sync.signal_us + sync.poll_us + sync.wait_us  # else what waits would be put in front of what is ready
    queues, sequence = schedule(flow, costs, kind, (machine.num_aic, *vector), order, seen_us)
    return dealt(flow, machine, queues, sequence, vector)


def expert_barrier(flow: tf.Taskflow, machine: Machine) -> list[np.ndarray]:
    """Queues of the paper's public implementation: one operator after another, half of the vector workers, and matmul tiles
    dealt out from the first worker on again for every expert. Signals for an expert, with overlap_comm(signal="expert"), go
    out from a worker of their own as soon as its puts are done. `hpmoe simulate` adds its events and its waiting.

    That implementation also lets the weight gradients of an expert follow the tiles that read the same rows. Here a slot's
    expert is known at run time alone, and such a gradient could wait for tiles behind it in its own queue. Leaving it out
    does the reference no harm: with it, 4096 balanced tokens on 8 ranks take 5 to 14 % longer backward."""
    parts: list[list[np.ndarray]] = [[] for _ in range(machine.num_queues)]
    signaller = machine.queues_of("aiv")[len(machine.queues_of("aiv")) // 2]
    for unit, tasks in _by_unit(flow, machine):
        is_matmul = machine.unified or unit.start == 0
        workers = unit if is_matmul else unit[:max(1, len(unit) // 2)]
        for op in np.unique(flow.tasks["op"][tasks]):
            mine = tasks[flow.tasks["op"][tasks] == op]
            if flow.ops[op].primitive.is_completion_flag and not machine.unified:
                parts[signaller].append(mine)
                continue
            runs = _by_expert(flow, flow.ops[op], mine) if is_matmul else [mine]
            for run in runs:
                for i, q in enumerate(workers):
                    parts[q].append(run[i::len(workers)])
    return [np.concatenate(p) if p else np.zeros(0, np.int64) for p in parts]


def _by_expert(flow: tf.Taskflow, op: tf.TileOp, tasks: np.ndarray) -> list[np.ndarray]:
    """Returns the tasks of each expert; for slots, those of its own if every expert gets equally many."""
    if op.domain.route < 0:
        return [tasks]
    plan, rows = flow.routes[op.domain.route], flow.tasks["row"][tasks]
    per_expert = op.domain.blocks
    if op.domain.is_slots:
        per_expert = max(1, -(-plan.max_rows // (plan.num_local_experts * flow.tile_rows)))
    experts = np.minimum(rows // per_expert, plan.num_local_experts - 1)
    return [tasks[experts == e] for e in np.unique(experts)]


POLICIES: dict[str, Policy] = {"critical_path": critical_path, "round_robin": round_robin, "stage_order": stage_order,
                               "expert_barrier": expert_barrier}


def _check(machine: Machine | None = None, policy: str | Policy = "critical_path", priority: Priority | None = None) -> None:
    check_argument(machine is None or isinstance(machine, Machine), "assign_queues", "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.machines.ascend_a3 or hpmoe.load_machine(name), or None")
    check_argument(callable(policy) or is_name(policy, POLICIES), "assign_queues", "policy", repr(policy),
                   f"one of {', '.join(POLICIES)}, or a function (taskflow, machine) -> queues")
    check_argument(priority is None or callable(priority), "assign_queues", "priority", repr(priority),
                   "a function taskflow -> a number for each task, or None")


@transform(requires="tiles", makes="queues", once=True, check=_check)
def assign_queues(flow: tf.Taskflow, *, machine: Machine | None = None, policy: str | Policy = "critical_path",
                  priority: Priority | None = None) -> tf.Taskflow:
    """Puts every task into a static in-order queue of a worker and keeps only the waits that this order does not imply.

    Rewrite:
        tasks t0 t1 t2 ... with their waits
        ->
        queue aic.0: t4 t8 ...    queue aiv.0: t0 t1 ...    fewer waits, fewer events

    Requires: tile_partition.
    Ensures: each task in one queue of its unit, once; no cycle through queue order and events, on any number of ranks. Under
        list scheduling for an NPU, puts that say how long each waits for its turn on a link, by the rows that there are.

    Args:
        f: the staged function.
        machine: the machine of the queues; by default that of tile_partition, or the CPU of this process.
        policy: "critical_path" (list scheduling on task costs), "round_robin", "stage_order" (operator after operator),
            "expert_barrier" (the order of the paper's public implementation), or a function (taskflow, machine) -> one array
            of task indices for each queue, in order. `hpmoe.autotune` tries two.
        priority: order of ready tasks in list scheduling: a function taskflow -> a number for each task, [num_tasks]. The
            largest is taken first; of equal ones the first task. A task never precedes its waits. The function can read
            `taskflow.machine`, and `hpmoe.rewriting.expected_rows(taskflow)` for how full slots are expected to be. Under
            another policy the priority only orders each queue.

    Raises:
        ArgumentError: an option is none of these, or a priority gives no number, or NaN, for a task.
        TransformError: applied out of order or twice, a policy's queues are not a legal schedule, or a function raises.

    Example:
        >>> import hpmoe
        >>> hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.moe_ffn), machine=hpmoe.machines.ascend_a3).level
        'queues'
        >>> def last_rows_first(flow):
        ...     return flow.tasks["row"]
        >>> tiles = hpmoe.tile_partition(lambda x: x * 2.0, rows=2)
        >>> staged = hpmoe.assign_queues(tiles, machine=hpmoe.cpu(1), priority=last_rows_first)
        >>> print(staged.lower(hpmoe.ShapeDtypeStruct((6, 3), "float32")))
        # <lambda> | tile_partition(rows=2, cols=1024) | assign_queues(cpu, critical_path, priority=last_rows_first)
        taskflow <lambda>  ranks=1 tasks=3 events=0 waits=0 signals=0 slots=0
          queue worker.0  3 tasks
            t2 mul[rows 4:6, cols 0:3] x -> a wait -  signal -
            t1 mul[rows 2:4, cols 0:3] x -> a wait -  signal -
            t0 mul[rows 0:2, cols 0:3] x -> a wait -  signal -
    """
    machine = known(machine or flow.machine or cpu(ep_size=flow.ep_size))
    order = None if priority is None else _order_of(flow.replace(machine=machine), priority)
    name = policy if isinstance(policy, str) else name_of(policy)
    ordered = "" if priority is None else f", priority={name_of(priority)}"
    provenance = *flow.provenance, f"assign_queues({machine.name}, {name}{ordered})"
    queues = _queues(flow, machine, policy, order)
    try:
        assigned = _assigned(flow.replace(machine=machine, provenance=provenance), queues, policy, order)
    except (VerifyError, TypeError, ValueError) as error:
        raise TransformError(f"assign_queues: policy {name} made no legal schedule: {error}") from error
    return transitive_reduction(assigned)


def _assigned(flow: tf.Taskflow, queues: Sequence[np.ndarray], policy: str | Policy,
              order: np.ndarray | None) -> tf.Taskflow:
    """Returns the tasks in queues, in an order; queues of a user's policy are checked."""
    assigned = flow.replace(queues=as_queues(queues))
    if callable(policy):
        check_queues(assigned)
    if order is not None and policy != "critical_path":
        assigned = _ordered(assigned, order)
    if callable(policy):
        check_acyclic(assigned)
    return assigned


def as_queues(queues: Iterable[Sequence[int] | np.ndarray]) -> tuple[np.ndarray, ...]:
    """Returns read-only arrays of the queues' tasks, int64 if these are integers."""
    return tuple(map(_as_queue, queues))


def _as_queue(queue: Sequence[int] | np.ndarray) -> np.ndarray:
    tasks = np.array(queue).reshape(-1)
    if not len(tasks) or tasks.dtype.kind in "iu":
        tasks = tasks.astype(np.int64)
    tasks.setflags(write=False)
    return tasks


def _queues(flow: tf.Taskflow, machine: Machine, policy: str | Policy, order: np.ndarray | None) -> Sequence[np.ndarray]:
    """Returns the queues of a policy."""
    if not isinstance(policy, str):
        return call_user("assign_queues", "policy(taskflow, machine)", "the task numbers of each queue", policy, flow,
                         machine)
    if policy == "critical_path" and order is not None:
        return critical_path(flow, machine, order)
    return POLICIES[policy](flow, machine)


def _order_of(flow: tf.Taskflow, priority: Priority) -> np.ndarray:
    """Returns each task's rank by priority: the number of tasks with a larger one, or an equal one before it, int64."""
    found = call_user("assign_queues", "priority(taskflow)", "a number for each task", priority, flow)
    try:
        values = np.asarray(found)
    except (TypeError, ValueError):
        values = np.array(None)
    got = f"{values.dtype} of shape {values.shape}" if values.dtype.kind != "O" else f"a {type(found).__name__}"
    check_argument(values.dtype.kind in "biuf" and values.shape == (flow.num_tasks,), "assign_queues",
                   f"what priority {name_of(priority)} returns", got, f"one real number for each of {flow.num_tasks} tasks")
    for task in np.flatnonzero(np.isnan(values))[:1]:
        check_argument(False, "assign_queues", f"what priority {name_of(priority)} returns", f"nan for task t{task}",
                       f"one real number for each of {flow.num_tasks} tasks")
    order = np.empty(flow.num_tasks, np.int64)
    order[np.argsort(values[::-1], kind="stable")[::-1]] = np.arange(flow.num_tasks)
    return np.ascontiguousarray(order[::-1])


def _ordered(flow: tf.Taskflow, order: np.ndarray) -> tf.Taskflow:
    """Returns the taskflow with each queue in the order in which one worker would run all ready tasks, the first one first.
    """
    _, sequence = schedule(flow, np.ones(flow.num_tasks), np.zeros(flow.num_tasks), (1,), order)
    return flow.replace(queues=as_queues(q[np.argsort(sequence[q])] for q in flow.queues))
