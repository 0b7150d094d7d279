"""Packs an assigned Taskflow into the binary image that every rank's kernel reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.ir.taskflow import SIGNAL, WAIT, Buffer, RoutePlan, Taskflow, TileOp
from hpmoe.kernels import protocol
from hpmoe.kernels.image import pack_image
from hpmoe.kernels.native import Tables, load
from hpmoe.kernels.protocol import DropPolicy, Dtype
from hpmoe.support.dtypes import storage_dtype
from hpmoe.support.errors import TransformError
from hpmoe.support.known import known
from hpmoe.tile_ops import row_modes


def pack(flow: Taskflow) -> np.ndarray:
    """Returns the image of a Taskflow with queues, uint8: its tasks queue by queue, waits and signals as templates.

    Every task of the image waits for and signals exactly what the taskflow's tables say. A template holds the waits and
    signals that many tasks share, relative to their places.

    Raises:
        TransformError: it is too large for an image.
    """
    ops = np.array([_op(op) for op in flow.ops], protocol.OP) if flow.ops else np.zeros(0, protocol.OP)
    tasks, index_bits, templates = _pack_templates(flow, ops)
    order = np.concatenate([np.asarray(q, np.int64) for q in flow.queues]) if flow.num_tasks else np.zeros(0, np.int64)
    sections = {
        **templates, "tasks": tasks[order], "ops": ops, "event_runs": _event_runs(flow.deps.events),
        "queues": np.cumsum([0, *(len(q) for q in flow.queues)]).astype("<i4"),
        "buffers": np.array([_buffer(b) for b in flow.buffers], protocol.BUFFER),
        **_routes(flow.routes),
        "peer_order": flow.peer_orders.reshape(-1).astype("<i4"),
    }
    return pack_image(sections, ep_size=flow.ep_size, tile_rows=flow.tile_rows, num_events=len(flow.deps.events),
                      index_bits=index_bits)


def _pack_templates(flow: Taskflow, ops: np.ndarray) -> tuple[np.ndarray, int, dict[str, np.ndarray]]:
    """Returns the word of each task, how many of its bits are its place, and the sections that the other bits point into."""
    blocks = np.ascontiguousarray(flow.deps.events["block"], np.int32)
    waits, signals = np.ascontiguousarray(flow.deps.waits, WAIT), np.ascontiguousarray(flow.deps.signals, SIGNAL)
    tables = Tables(*(a.ctypes.data for a in (ops, blocks, waits, signals)),
                    len(ops), flow.num_tasks, len(blocks), len(waits), len(signals))
    words, sizes = np.empty(flow.num_tasks, protocol.TASK), np.empty(4, np.int64)
    out = [np.empty(n, t) for n, t in ((flow.num_tasks, protocol.TASK_TEMPLATE), (len(waits), protocol.WAIT),
                                       (len(signals), protocol.SIGNAL))]
    result = load().hpmoe_pack_templates(tables, *(a.ctypes.data for a in (words, *out, sizes)))
    if result == 1:
        raise MemoryError(f"pack: not enough memory for {flow.num_tasks} tasks")
    if result == 2:
        raise ValueError(f"pack: the tables of {flow.name} name a task, an event or a tile that does not exist")
    if result:
        raise TransformError(f"pack: {flow.name} is too large: its {flow.num_tasks:,} tasks have more waits and signals "
                             "than a 32-bit word can number; write larger rows= or cols= in tile_partition")
    names = ("templates", "waits", "signals")
    return words, int(sizes[0]), {name: a[:n] for name, a, n in zip(names, out, sizes[1:].tolist(), strict=True)}


def _event_runs(events: np.ndarray) -> np.ndarray:
    """Runs of events that differ only in their index, which grows by one."""
    same = np.ones(max(len(events) - 1, 0), bool)
    for name, step in (("extent", 0), ("mult", 0), ("route", 0), ("index", 1)):
        same &= np.diff(events[name]) == step
    first = np.flatnonzero(np.concatenate([np.ones(min(len(events), 1), bool), ~same]))
    runs = np.zeros(len(first), protocol.EVENT_RUN)
    runs["first"] = first
    for name in ("extent", "index", "mult", "route"):
        runs[name] = events[name][first]
    return runs


def _buffer(buffer: Buffer) -> tuple[int, int, int, int]:
    return buffer.cols, buffer.rows_per_expert, Dtype[storage_dtype(buffer.dtype).upper()], buffer.num_rows or 0


def _routes(routes: Sequence[RoutePlan]) -> dict[str, np.ndarray]:
    """Returns the tables of routes, of the shares of routes with replicas, and of routes over stops."""
    shares = [_shares(r) for r in routes]
    stops = [r.kind.stops.reshape(-1) if r.kind.is_of_tokens else np.zeros(0, np.int64) for r in routes]
    first_share, first_stop = (np.cumsum([0, *map(len, parts)]) for parts in (shares, stops))
    rows = [_route(*each) for each in zip(routes, first_share, first_stop, strict=False)]
    return {"routes": np.array(rows, protocol.ROUTE),
            "shares": np.concatenate([np.zeros(0, protocol.SHARE), *shares]),
            "stops": np.concatenate([np.zeros(0, np.int64), *stops]).astype("<i4")}


def _shares(route: RoutePlan) -> np.ndarray:
    parts = route.placement.parts if route.placement else np.zeros((0, 3))
    out = np.zeros(len(parts), protocol.SHARE)
    for name, column in zip(known(out.dtype.names), parts.T, strict=True):
        out[name] = column
    return out


def _route(route: RoutePlan, first_share: int, first_stop: int) -> tuple:
    capacity = route.capacity
    policy = DropPolicy[capacity.policy.upper()] if capacity else DropPolicy.NONE
    return (route.ids, route.num_experts, route.num_local_experts, route.top_k, route.num_slots, route.num_tokens,
            route.max_rows, policy, route.weights, first_share, route.of, route.over,
            first_stop if route.kind.is_of_tokens else -1, route.return_tokens, route.alignment, route.tp_size,
            capacity.factor if capacity else 0.0)


def _operand(op: TileOp, i: int) -> tuple:
    access = op.operands[i]
    returns = i == 1 and op.primitive.is_blocking and op.primitive.is_back  # reads rows of any source
    rows, cols = row_modes.OWN if returns else access.rows, op.primitive.operand(i).image_cols(access.cols)
    return access.buffer, rows.number, cols, access.offset, access.value, (0, 0)


def _op(op: TileOp) -> tuple:
    domain = op.domain
    operands = [_operand(op, i) for i in range(len(op.operands))]
    operands += [(0, 0, 0, 0, 0.0, (0, 0))] * (protocol.MAX_OPERANDS - len(operands))
    *words, blocks = domain.words()
    return (op.primitive.number, *words, blocks * op.parts, len(op.operands), op.num_outputs, domain.first, domain.size,
            op.num_peers, op.cols, op.tile_cols, op.words, operands)
