"""simulate: a taskflow's packed image run on a model of a machine, all ranks together, in discrete events."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, overload

import numpy as np

from hpmoe.costs.work import WORK, Work
from hpmoe.ir.stages import Stages
from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.native import Rank, Status, load
from hpmoe.kernels.packing import pack
from hpmoe.kernels.protocol import Code
from hpmoe.kernels.simulated_inputs import inputs_of, lengths_of
from hpmoe.machines.machine import Machine
from hpmoe.routing.capacity import PerRank
from hpmoe.support.errors import LaunchError, check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.known import known
from hpmoe.timelines.run import RATES, Simulated, rows_of
from hpmoe.timelines.timeline import Timeline

NUM_BINS = 512  # of the time over which traffic is counted
MOST_TASKS = 2**25  # of all ranks; what is known of each takes some BYTES_OF_TASK at most
BYTES_OF_TASK = 160


CONSTANTS = (  # of HpmoeMachine in simulator/simulate.h, in its order
    "l2.bytes", "l2.bytes_per_us", "l2.worker_bytes_per_us", "memory.bytes_per_us", "memory.worker_bytes_per_us",
    "link.bytes_per_us", "link.node_bytes_per_us", "link.worker_bytes_per_us",
    "sync.task_us", "sync.wait_us", "sync.poll_us", "sync.repoll_us", "sync.signal_us", "sync.remote_us",
    "sync.node_remote_us", "host.cores")


class _Machine(ctypes.Structure):
    """HpmoeMachine of simulator/simulate.h."""

    _fields_ = [("constants", ctypes.c_double * len(CONSTANTS)), ("pass_us", ctypes.c_double), ("node_size", ctypes.c_int64),
                ("num_early", ctypes.c_int64)]


@overload
def simulate(flow: Taskflow, machine: Machine | None = None, *, routing: PerRank | float | None = None,
             seed: int = 0, topk_weights: Sequence[np.ndarray] | None = None,
             num_tokens: Sequence[int] | None = None, loads: np.ndarray | None = None) -> Timeline: ...


@overload
def simulate(flow: Stages, machine: Machine | None = None, *, routing: PerRank | float | None = None,
             seed: int = 0, topk_weights: Sequence[np.ndarray] | None = None,
             num_tokens: Sequence[int] | None = None, loads: np.ndarray | None = None) -> tuple[Timeline, ...]: ...


@suggests_keywords
def simulate(flow: Taskflow | Stages, machine: Machine | None = None, *, routing: PerRank | float | None = None,
             seed: int = 0, topk_weights: Sequence[np.ndarray] | None = None,
             num_tokens: Sequence[int] | None = None, loads: np.ndarray | None = None) -> Timeline | tuple[Timeline, ...]:
    """Runs a taskflow's queues on a model of a machine: when each worker of each rank would wait and work.

    Workers run their queues in order, wait for events and signal events exactly as in a launch: the simulator reads the same
    image with the same code. A task takes its own time, and shares memory and link bandwidth with the tasks that run at the
    same moment; see `Machine`. The result is deterministic.

    Args:
        flow: a Taskflow with queues, as `assign_queues` makes it, or Stages of such.
        machine: the machine to simulate, with as many queues of each kind as the flow; None for the machine of the flow.
        routing: topk_ids [T, K] of each rank, used by every route; None for balanced routing. A number is an imbalance: one
            rank receives that many times the mean rows, the others share the rest.
        seed: for an imbalance or `loads`: seed of the sampled ids, and so of the hot rank.
        topk_weights: topk_weights [T, K] of each rank, for drop_policy "probs" together with routing. If both are None all
            weights are equal, and the last entries over a capacity are dropped.
        num_tokens: number of tokens of each rank; all rows of topk_ids by default.
        loads: tokens of each expert, [E], instead of a routing: samples ids with `seed` in proportion to loads.

    Returns:
        A simulated Timeline; for Stages a tuple with one Timeline for each launch, in order.

    Raises:
        ArgumentError: the flow has no queues or more than 2**25 tasks on all ranks, which take 5 GiB; or routing, weights
            or machine do not fit it.
        LaunchError: the schedule gets stuck; the text names task and event. Or the routing is over a capacity whose policy
            is "error", or over what the plan can hold.

    Example:
        >>> import hpmoe
        >>> staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=128, cols=256),
        ...                              machine=hpmoe.machines.ascend_a3)
        >>> flow = staged.lower(hpmoe.ShapeDtypeStruct((8192, 4096), "bfloat16"))
        >>> hpmoe.simulate(flow).summary()
        'simulated 78.9 us, 65 % busy, 0.0 us waiting summed over 72 workers'
    """
    if isinstance(flow, Stages):
        return tuple(simulate(stage, machine, routing=routing, seed=seed, topk_weights=topk_weights, num_tokens=num_tokens,
                              loads=loads) for stage in flow)
    machine = _machine(flow, machine)
    _check_size(flow)
    arrays, lengths = inputs_of(flow, routing, seed, topk_weights, loads), lengths_of(flow, num_tokens)
    return Timeline(flow, *rows_of(flow), *_run(flow, machine, _ranks(flow, arrays, lengths)))


class Outline(NamedTuple):
    """Summary of a simulated run, without its tasks.

    Attributes:
        span: microseconds from the first task to the end of the last.
        utilisation: the share of it that each worker spent in task bodies, [ep, num_queues].
        traffic: as Simulated has it, [ep, len(RATES), 2].
    """

    span: float
    utilisation: np.ndarray
    traffic: np.ndarray


def outline(flow: Taskflow, machine: Machine | None = None, *, routing: PerRank | float | None = None,
            topk_weights: Sequence[np.ndarray] | None = None) -> Outline:
    """Simulates like `simulate` and returns only totals, with memory for the routing and the workers.

    Raises:
        ArgumentError, LaunchError: as simulate.

    Example:
        >>> import hpmoe
        >>> staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=128, cols=256),
        ...                              machine=hpmoe.machines.ascend_a3)
        >>> flow = staged.lower(hpmoe.ShapeDtypeStruct((8192, 4096), "bfloat16"))
        >>> outline(flow).span == hpmoe.simulate(flow).span
        True
    """
    machine = _machine(flow, machine)
    _check_size(flow)
    arrays = inputs_of(flow, routing, 0, topk_weights)  # lives as long as the run, which has its addresses
    busy, traffic, _ = _native_run(flow, machine, _ranks(flow, arrays, lengths_of(flow, None)), None)
    return Outline(float(busy[0]), busy[1:].reshape(flow.ep_size, -1) / max(float(busy[0]), 1e-12), traffic)


def _machine(flow: Taskflow, machine: Machine | None) -> Machine:
    """Returns what to run a flow on, after checking that it fits the flow."""
    check_argument(isinstance(flow, Taskflow) and bool(flow.queues), "hpmoe.simulate", "flow",
                   "without queues" if isinstance(flow, Taskflow) else f"a {type(flow).__name__}", "what assign_queues made",
                   "That of a kernel is its .flow." if hasattr(flow, "flow") else "")
    on = known(flow.machine) if machine is None else machine
    check_argument(isinstance(on, Machine) and _workers(on) == _workers(known(flow.machine)), "hpmoe.simulate", "machine",
                   f"{on.name} of {_workers(on)}" if isinstance(on, Machine) else repr(machine),
                   f"an hpmoe.Machine of {_workers(known(flow.machine))}, as the flow has")
    return on


def _workers(machine: Machine) -> str:
    if machine.unified:
        return f"{machine.num_queues} queues"
    return f"{machine.num_aic} AIC and {machine.num_aiv} AIV queues"


def _check_size(flow: Taskflow) -> None:
    tasks = flow.ep_size * flow.num_tasks
    check_argument(tasks <= MOST_TASKS, "hpmoe.simulate", "flow",
                   f"of {tasks} tasks on {flow.ep_size} ranks, which take {tasks * BYTES_OF_TASK / 2**30:.1f} GiB",
                   f"of at most {MOST_TASKS} on all ranks: by fewer tokens or ranks, larger tiles, or room for fewer rows")


class _OfTasks:
    """Arrays that a run writes per task and per moment."""

    def __init__(self, flow: Taskflow):
        tasks = flow.ep_size * flow.num_tasks
        self.times, self.missed, self.released_by = np.zeros((tasks, 3)), np.zeros(tasks), np.full(tasks, -1, np.int32)
        self.served = np.zeros(1 + flow.ep_size * len(RATES) * NUM_BINS)


def _run(flow: Taskflow, machine: Machine, ranks: ctypes.Array
         ) -> tuple[np.ndarray, np.ndarray, np.ndarray, float, Simulated, np.ndarray]:
    """Returns the parts of a Run besides its rows: times, their origin, other facts, and bytes moved."""
    of_tasks = _OfTasks(flow)
    _, traffic, moved = _native_run(flow, machine, ranks, of_tasks)
    wait_begin, begin, end = of_tasks.times.T
    served = of_tasks.served[1:].reshape(flow.ep_size, len(RATES), NUM_BINS)
    return wait_begin, begin, end, 0.0, Simulated(machine, traffic, of_tasks.released_by, of_tasks.missed,
                                                  float(of_tasks.served[0]), served), moved


def _native_run(flow: Taskflow, machine: Machine, ranks: ctypes.Array, of_tasks: _OfTasks | None
                ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the end of the last task and each worker's busy time, [1 + ep * num_queues]; traffic; bytes moved."""
    work, image = Work(flow, machine), pack(flow)
    table = np.ascontiguousarray(work.by_routing.reshape(-1), WORK)
    busy, traffic = np.zeros(1 + flow.ep_size * len(flow.queues)), np.zeros((flow.ep_size, len(RATES), 2))
    moved, status = np.zeros((flow.ep_size, flow.ep_size)), Status()
    kept = [a.ctypes.data for a in (of_tasks.times, of_tasks.released_by, of_tasks.missed)] if of_tasks else [None] * 3
    served = of_tasks.served if of_tasks else np.zeros(1)
    load().hpmoe_simulate(image.ctypes.data, image.nbytes, ranks, flow.ep_size, ctypes.byref(_native(machine, flow.ep_size)),
                          table.ctypes.data, work.footprints.num_parts, *kept,
                          *(a.ctypes.data for a in (traffic, served, moved, busy)),
                          NUM_BINS if of_tasks else 0, ctypes.byref(status))
    check_argument(status.code != Code.TIMEOUT or status.rank >= 0, "hpmoe.simulate", "machine",
                   f"{machine.name}, on which the run takes centuries",
                   "a machine on which the run takes less than 9e15 us")
    if status.code:
        fault = load().hpmoe_image_fault(image.ctypes.data, image.nbytes) or b""
        raise _explained(flow, make_error(status, image, fault.decode()))
    return busy, traffic, moved


def _native(machine: Machine, ep_size: int) -> _Machine:
    values = {name: machine[name] for name in CONSTANTS} | {"link.bytes_per_us": machine.link.rate(ep_size)}
    early = 0 if machine.unified else (machine.num_aic + 1) // 2  # of num_early in core/operands.h
    pass_us = machine.sync.pass_us or machine.sync.task_us
    return _Machine((ctypes.c_double * len(values))(*values.values()), pass_us, machine.link.node_size, early)


def _ranks(flow: Taskflow, arrays: list[dict[int, np.ndarray]], lengths: list[int]) -> ctypes.Array:
    ranks, addresses = (Rank * flow.ep_size)(), np.zeros((flow.ep_size, len(flow.buffers)), np.uint64)
    for rank, mine in enumerate(arrays):
        for buffer, array in mine.items():
            addresses[rank, buffer] = array.ctypes.data
        ranks[rank].buffers, ranks[rank].num_tokens = addresses[rank].ctypes.data, lengths[rank]
    vars(ranks)["addresses"] = addresses  # lives as long as they do
    return ranks


def _explained(flow: Taskflow, error: LaunchError) -> LaunchError:
    is_stuck = getattr(error, "status", {}).get("code") == Code.TIMEOUT
    return LaunchError(f"hpmoe.simulate: {flow.name}{' gets stuck' if is_stuck else ''}: {error}")
