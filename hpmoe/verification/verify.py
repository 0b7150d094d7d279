"""verify: proves that a Taskflow is a correct schedule for every routing, or raises with the IR around the fault."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.stages import Stages
from hpmoe.ir.taskflow_text import task_name
from hpmoe.planner.planner import find_runnable, transitive_reduction
from hpmoe.support.errors import VerifyError, check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.tile_ops.params import Leg
from hpmoe.tiling.dependencies import derive_dependencies
from hpmoe.tiling.shared_memory import memory_fault
from hpmoe.verification.cycles import find_stuck
from hpmoe.verification.derived import check_fingerprint, check_tables
from hpmoe.verification.fault import fail
from hpmoe.verification.queues import check_queues
from hpmoe.verification.regions import region_fault
from hpmoe.verification.shortest_cycle import cycle_text, find_cycle
from hpmoe.verification.well_formed import check_sizes, check_well_formed


@suggests_keywords
def verify(flow: tf.Taskflow | Stages) -> None:
    """Raises VerifyError unless the taskflow, or each of the Stages, is a correct schedule for every routing.

    Proofs about operations, for any rows that the slots can hold:

    - A body can run each operation, and its operands fit together.
    - An operation has one task for each unit: all slots of its route, tiles of its rows, or blocks of its matrices.
    - Its tasks together touch all of some rows, in some columns. These exist, and no other operation writes them.
    - All elements that are read are written before, and all of each output is. Rows of padding, dropped entries or empty
      replicas may be left unwritten if they are not read.

    Several operations may write different columns, in tiles of any width; they cannot divide rows.

    Proofs about tables: each task is in one queue of its unit; no cycle runs through queue order and events, across ranks
    too; no task writes what is still read. Events, waits and signals must be those that `hpmoe.rewriting.rebuild` derives
    from the operations, and with queues those that `hpmoe.rewriting.requeue` leaves. Tables edited by hand are refused.

    `verify` does not check which function the operations compute.

    Args:
        flow: a Taskflow or Stages, at any stage after tile_partition, with or without queues.

    Raises:
        VerifyError: the schedule has a fault; the text shows the first fault and the tasks around it.
        ArgumentError: flow is no Taskflow.

    Example:
        >>> import hpmoe
        >>> flow = hpmoe.tile_partition(hpmoe.swiglu, rows=4).lower(hpmoe.ShapeDtypeStruct((8, 6), "float32"))
        >>> hpmoe.verify(flow.replace(tile_rows=2))
        Traceback (most recent call last):
        ...
        hpmoe.VerifyError: verify: tile_rows is 2, the tasks were made for 4; recreate them with hpmoe.rewriting.rebuild.
    """
    if isinstance(flow, Stages):
        for stage in flow:
            verify(stage)
        return
    check_argument(isinstance(flow, tf.Taskflow), "hpmoe.verify", "flow", f"a {type(flow).__name__}",
                   "a Taskflow, as f.lower(*args) makes it after tile_partition")
    check_well_formed(flow)
    if len(flow.queues) and flow.machine is None:
        raise VerifyError(f"verify: there are {len(flow.queues)} queues and no machine that has them")
    try:
        check_fingerprint(flow)
        check_sizes(flow)
        _prove(flow)
    except VerifyError:
        raise
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise VerifyError(f"verify: operations, buffers and routes do not fit together: {error}") from error


def _prove(flow: tf.Taskflow) -> None:
    _check_regions(flow)
    _check_tokens(flow)
    _check_early(flow)
    _check_peer_orders(flow)
    _check_memory(flow)
    if flow.queues:
        check_queues(flow)
    derived = flow.replace(deps=derive_dependencies(flow.buffers, flow.ops, flow.routes, flow.tile_rows))
    expected = transitive_reduction(derived) if flow.queues else derived
    if not find_runnable(derived).all():  # with waits that a reduction does not need
        check_acyclic(expected)
    check_tables(flow, expected)


def _check_regions(flow: tf.Taskflow) -> None:
    fault = region_fault(flow.buffers, flow.ops, flow.routes, flow.inputs, flow.outputs, flow.tile_rows)
    if fault is not None:
        tasks = np.flatnonzero(flow.tasks["op"] == fault[1]) if fault[1] is not None else ()
        fail(flow, fault[0], next(map(int, tasks), None))


def _check_tokens(flow: tf.Taskflow) -> None:
    """Checks that tasks skip padding only if rows are tokens, whose events count as many rows as a rank has tokens."""
    num_tokens = max([plan.num_tokens for plan in flow.routes] or [op.domain.clipped_rows for op in flow.ops], default=0)
    for i, op in enumerate(flow.ops):
        clipped = op.domain.clipped_rows
        if clipped not in (0, num_tokens):
            fail(flow, f"{op.label} leaves out padding, but its rows are {clipped} and a rank has {num_tokens} tokens",
                 int(np.flatnonzero(flow.tasks["op"] == i)[0]))


def _check_early(flow: tf.Taskflow) -> None:
    """Checks that values read before a task's waits are ready when the launch begins."""
    made = {flow.buffers[access.buffer].storage for op in flow.ops for access in op.outputs}
    for i, op in enumerate(flow.ops):
        if op.params.is_early and (weight := flow.buffers[op.operands[2].buffer]).storage in made:
            fail(flow, f"{op.label} reads {weight.name} early, which other tasks write",
                 next(map(int, np.flatnonzero(flow.tasks["op"] == i)), None))


def _check_peer_orders(flow: tf.Taskflow) -> None:
    orders, shape = flow.peer_orders, (len(Leg), flow.ep_size, flow.ep_size)
    is_table = isinstance(orders, np.ndarray) and orders.dtype.kind in "iu" and orders.shape == shape
    if not is_table or (np.sort(orders, axis=-1) != np.arange(flow.ep_size)).any():
        raise VerifyError(f"verify: peer_orders is {np.asarray(orders).tolist()}; each row must name each of {flow.ep_size} "
                          "ranks once")


def _check_memory(flow: tf.Taskflow) -> None:
    """Checks that only temporaries share memory, one after the other."""
    if fault := memory_fault(flow.buffers, flow.ops, flow.routes):
        raise VerifyError(f"verify: {fault}")


def check_acyclic(flow: tf.Taskflow) -> None:
    """Raises VerifyError if tasks wait for each other in a cycle of events and queue order, on one rank or across ranks."""
    stuck = find_stuck(flow)
    if stuck is not None:
        cycle = find_cycle(*stuck)
        t = min(lead.node.task for lead in cycle)
        raise VerifyError(f"verify: task t{t} {task_name(flow, t)} can never run: a cycle leads through what it waits for\n"
                          + cycle_text(stuck.order, cycle))
