"""simulate: a taskflow's packed image run on a model of a machine, all ranks together, in discrete events."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from hpmoe.costs import WORK, Work
from hpmoe.dtypes import numpy_dtype
from hpmoe.errors import LaunchError, check_argument, is_number
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.native import Rank, Status, load
from hpmoe.kernels.packing import pack
from hpmoe.kernels.protocol import Code
from hpmoe.machine import Machine, Mesh
from hpmoe.taskflow import Taskflow
from hpmoe.timelines.timeline import RATES, Simulated, Timeline
from hpmoe.workload import balanced_ids, imbalanced_ids

NUM_BINS = 512  # of the time over which traffic is counted


class _Machine(ctypes.Structure):
    """HpmoeMachine of simulator/simulate.h."""

    _fields_ = [(name, ctypes.c_double) for name in (
        "l2_bytes_per_us", "worker_l2_bytes_per_us", "l2_bytes", "memory_bytes_per_us", "worker_memory_bytes_per_us",
        "link_bytes_per_us", "worker_link_bytes_per_us", "node_link_bytes_per_us", "worker_node_link_bytes_per_us",
        "task_us", "wait_us", "poll_us", "repoll_us", "signal_us", "remote_us", "node_remote_us", "host_cores")] + [
            ("node_size", ctypes.c_int64)]


def simulate(flow: Taskflow, machine: Machine | None = None, *, routing: Sequence[np.ndarray] | float | None = None,
             mesh: Mesh | None = None, seed: int = 0, topk_weights: Sequence[np.ndarray] | None = None,
             num_tokens: Sequence[int] | None = None) -> Timeline:
    """Runs a taskflow's queues on a model of a machine: when each worker of each rank would wait and work.

    Workers walk their queues in order, wait for events until these have counted what the routing makes their thresholds,
    and signal, exactly as a launch does: it is the same image, read by the same code. A task takes time of its own and
    shares memory and link bandwidth with whatever uses them at that moment; see `Machine`. The result is deterministic.

    Args:
        flow: with queues, as `assign_queues` makes it.
        machine: what to run it on, with as many queues as the flow; the one it was assigned for where None.
        routing: for each rank its topk_ids [T, K], the same for every route; perfectly balanced where None. A number is an
            imbalance: one rank receives that many times the rows of the mean, the others share the rest.
        mesh: the ranks; those that the flow was made for, which None stands for.
        seed: of the routing that an imbalance stands for: which rank is hot, and which experts each token takes.
        topk_weights: for each rank its topk_weights [T, K], read where drop_policy is "probs" and given with routing then.
            Where both are None all weights are equal, and the last entries over a capacity are dropped.
        num_tokens: tokens of each rank; all rows of topk_ids by default.

    Returns:
        A Timeline; its times are simulated.

    Raises:
        ArgumentError: the flow has no queues, or routing, weights, mesh or machine do not fit it.
        LaunchError: the schedule gets stuck; the text names task and event. Or the routing is over a capacity whose policy
            is "error", or over what the plan has room for.

    Example:
        >>> import hpmoe
        >>> staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu, rows=128, cols=256), machine=hpmoe.ascend_a3)
        >>> flow = staged.lower(hpmoe.Aval((8192, 4096), "bfloat16"))
        >>> hpmoe.simulate(flow).summary()
        'simulated 25.1 us, 65 % busy, 0.0 us waiting'
    """
    check_argument(isinstance(flow, Taskflow) and bool(flow.queues), "hpmoe.simulate", "flow",
                   "without queues" if isinstance(flow, Taskflow) else f"a {type(flow).__name__}", "what assign_queues made")
    machine = machine or flow.machine
    check_argument(isinstance(machine, Machine) and machine.num_queues == len(flow.queues), "hpmoe.simulate", "machine",
                   f"{machine.name} of {machine.num_queues} queues" if isinstance(machine, Machine) else repr(machine),
                   f"an hpmoe.Machine of {len(flow.queues)} queues, as the flow has")
    check_argument(mesh is None or mesh == Mesh(flow.ep_size), "hpmoe.simulate", "mesh", repr(mesh),
                   f"{Mesh(flow.ep_size)}, which the flow was made for, or None")
    work, image = Work(flow, machine), pack(flow)
    lengths = _lengths(flow, num_tokens)
    arrays = [ids | _weights(flow, rank, routing, topk_weights) for rank, ids in enumerate(_ids(flow, routing, seed))]
    ranks = _ranks(flow, arrays, lengths)
    trace = np.zeros((flow.ep_size, flow.num_tasks, 3), np.int64)
    released_by = np.full(flow.ep_size * flow.num_tasks, -1, np.int64)
    missed = np.zeros(flow.ep_size * flow.num_tasks)
    traffic = np.zeros((flow.ep_size, len(RATES), 2))
    served = np.zeros(1 + flow.ep_size * len(RATES) * NUM_BINS)
    table = np.ascontiguousarray(work.table.reshape(-1), WORK)
    status = Status()
    load().hpmoe_simulate(image.ctypes.data, image.nbytes, ranks, flow.ep_size, ctypes.byref(_native(machine)),
                          table.ctypes.data, work.num_parts, trace.ctypes.data, released_by.ctypes.data, missed.ctypes.data,
                          traffic.ctypes.data,
                          served.ctypes.data, NUM_BINS, ctypes.byref(status))
    if status.code:
        fault = load().hpmoe_image_fault(image.ctypes.data, image.nbytes) or b""
        raise _explained(flow, make_error(status, image, fault.decode()))
    return Timeline.from_trace(flow, trace, Simulated(machine, traffic, released_by, missed, float(served[0]),
                                                      served[1:].reshape(flow.ep_size, len(RATES), NUM_BINS)))


def _native(machine: Machine) -> _Machine:
    values = {name: getattr(machine, name) for name, _ in _Machine._fields_ if hasattr(machine, name)}
    return _Machine(**values, worker_node_link_bytes_per_us=machine.worker_link_bytes_per_us)


def _lengths(flow: Taskflow, num_tokens: Sequence[int] | None) -> list[int]:
    most = max([r.num_tokens for r in flow.routes] or [op.clipped_rows for op in flow.ops], default=0)
    lengths = [most] * flow.ep_size if num_tokens is None else [int(n) for n in num_tokens]
    check_argument(len(lengths) == flow.ep_size and all(0 <= n <= most for n in lengths), "hpmoe.simulate", "num_tokens",
                   lengths, f"{flow.ep_size} ints from 0 to {most}")
    return lengths


def _ids(flow: Taskflow, routing: Sequence[np.ndarray] | float | None, seed: int) -> list[dict[int, np.ndarray]]:
    """For each rank its ids of each route, by their buffer."""
    out: list[dict[int, np.ndarray]] = [{} for _ in range(flow.ep_size)]
    for plan in (p for p in flow.routes if p.once_of < 0):
        sizes = (flow.ep_size, plan.num_tokens, plan.top_k, plan.num_experts)
        if routing is None:
            of_ranks = balanced_ids(*sizes)
        elif is_number(routing):
            of_ranks = imbalanced_ids(*sizes, imbalance=routing, seed=seed)
        else:
            of_ranks = _given_ids(routing, *sizes)
        for mine, ids in zip(out, of_ranks, strict=True):
            mine[plan.ids] = ids
    return out


def _given_ids(routing: Sequence[np.ndarray], ep_size: int, num_tokens: int, top_k: int, num_experts: int
               ) -> list[np.ndarray]:
    check_argument(len(routing) == ep_size, "hpmoe.simulate", "routing", f"of {len(routing)} ranks",
                   f"topk_ids of {ep_size} ranks")
    out, shape = [np.ascontiguousarray(ids, np.int32) for ids in routing], (num_tokens, top_k)
    for rank, ids in enumerate(out):
        check_argument(ids.shape == shape and ids.min(initial=0) >= 0 and ids.max(initial=0) < num_experts,
                       "hpmoe.simulate", f"routing[{rank}]",
                       f"of shape {ids.shape} in {ids.min(initial=0)}..{ids.max(initial=0)}",
                       f"topk_ids of shape {shape} in 0..{num_experts - 1}")
    return out


def _weights(flow: Taskflow, rank: int, routing: Sequence[np.ndarray] | float | None,
             topk_weights: Sequence[np.ndarray] | None) -> dict[int, np.ndarray]:
    """For each buffer of weights that decide what is dropped, those of a rank."""
    out = {}
    for plan in flow.routes:
        if plan.weights < 0:
            continue
        shape, dtype = (plan.num_tokens, plan.top_k), numpy_dtype(flow.buffers[plan.weights].dtype)
        is_drawn = routing is None or is_number(routing)
        check_argument(is_drawn or topk_weights is not None, "hpmoe.simulate", "topk_weights", "None",
                       "given with routing: drop_policy=\"probs\" keeps the entries with the largest")
        if topk_weights is None:
            out[plan.weights] = np.zeros(shape, dtype)
            continue
        check_argument(len(topk_weights) == flow.ep_size, "hpmoe.simulate", "topk_weights", f"of {len(topk_weights)} ranks",
                       f"of {flow.ep_size} ranks")
        mine = np.ascontiguousarray(topk_weights[rank], dtype)
        check_argument(mine.shape == shape, "hpmoe.simulate", f"topk_weights[{rank}]", f"of shape {mine.shape}",
                       f"of shape {shape}")
        out[plan.weights] = mine
    return out


def _ranks(flow: Taskflow, arrays: list[dict[int, np.ndarray]], lengths: list[int]) -> ctypes.Array:
    ranks = (Rank * flow.ep_size)()
    for rank, mine in enumerate(arrays):
        pointers = (ctypes.c_void_p * len(flow.buffers))()
        for buffer, array in mine.items():
            pointers[buffer] = array.ctypes.data
        ranks[rank].buffers, ranks[rank].num_tokens = pointers, lengths[rank]
    return ranks


def _explained(flow: Taskflow, error: LaunchError) -> LaunchError:
    is_stuck = getattr(error, "status", {}).get("code") == Code.TIMEOUT
    return LaunchError(f"hpmoe.simulate: {flow.name}{' gets stuck' if is_stuck else ''}: {error}")
