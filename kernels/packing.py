"""Packs an assigned Taskflow into the binary image that every rank's kernel reads."""

from __future__ import annotations

import numpy as np

from hpmoe.dtypes import storage_dtype
from hpmoe.kernels import protocol
from hpmoe.kernels.protocol import Cols, Domain, DropPolicy, Dtype, MapCode, Opcode, Reduction, Rows
from hpmoe.taskflow import Access, Buffer, RoutePlan, Taskflow, TileOp


def pack(flow: Taskflow) -> np.ndarray:
    """The image of a Taskflow that has queues: its tasks queue by queue, with their waits and signals, uint8."""
    order = np.concatenate([np.asarray(q, np.int64) for q in flow.queues]) if flow.num_tasks else np.zeros(0, np.int64)
    place = np.empty(flow.num_tasks, np.int64)
    place[order] = np.arange(flow.num_tasks)
    tasks = np.zeros(flow.num_tasks, protocol.TASK)
    for name in ("op", "peer", "row", "col", "cols"):
        tasks[name] = flow.tasks[name][order]
    waits = _attach(tasks, "wait", flow.waits, place, protocol.WAIT, ("event", "kind"))
    signals = _attach(tasks, "signal", flow.signals, place, protocol.SIGNAL, ("event", "kind", "amount", "remote"))
    signals["stride"] = 1
    events = np.zeros(len(flow.events), protocol.EVENT)
    for name in ("extent", "index", "mult", "route"):
        events[name] = flow.events[name]
    sections = {
        "tasks": tasks, "waits": waits, "signals": signals, "events": events,
        "queues": np.cumsum([0, *(len(q) for q in flow.queues)]).astype("<i4"),
        "ops": np.array([_op(op) for op in flow.ops], protocol.OP) if flow.ops else np.zeros(0, protocol.OP),
        "buffers": np.array([_buffer(b) for b in flow.buffers], protocol.BUFFER),
        "routes": np.array([_route(r) for r in flow.routes], protocol.ROUTE),
        "peer_order": flow.peer_order.reshape(-1).astype("<i4"),
    }
    return protocol.pack_image(sections, ep_size=flow.ep_size, tile_rows=flow.tile_rows)


def _attach(tasks: np.ndarray, what: str, table: np.ndarray, place: np.ndarray, dtype: np.dtype,
            columns: tuple[str, ...]) -> np.ndarray:
    """Sorts a table by the place of its task and notes each task's share of it."""
    where = place[table["task"]]
    table = table[np.argsort(where, kind="stable")]
    starts = np.searchsorted(np.sort(where), np.arange(len(tasks) + 1))
    tasks[f"first_{what}"], tasks[f"num_{what}s"] = starts[:-1], np.diff(starts)
    out = np.zeros(len(table), dtype)
    for name in columns:
        out[name] = table[name]
    return out


def _buffer(buffer: Buffer) -> tuple[int, int, int, int]:
    return buffer.cols, buffer.rows_per_expert, Dtype[storage_dtype(buffer.dtype).upper()], buffer.num_rows or 0


def _route(route: RoutePlan) -> tuple:
    capacity = route.capacity
    policy = DropPolicy[capacity.policy.upper()] if capacity else DropPolicy.NONE
    return (route.ids, route.num_experts, route.num_local_experts, route.top_k, route.num_slots, route.num_tokens,
            route.max_rows, policy, route.weights, 0, capacity.factor if capacity else 0.0)


def _operand(access: Access) -> tuple:
    cols = Cols.ALL if access.cols == "block" else Cols[access.cols.upper()]
    return access.buffer, Rows[access.rows.upper()], cols, access.offset, access.value, (0, 0)


def _op(op: TileOp) -> tuple:
    domain = op.domain
    operands = [_operand(a) for a in op.operands]
    if op.opcode == "GMM":
        operands[2] = (*operands[2][:2], Cols.OWN, *operands[2][3:])  # the body knows which side is cut
    operands += [(0, 0, 0, 0, 0.0, (0, 0))] * (protocol.MAX_OPERANDS - len(operands))
    params = [*_params(op), 0, 0, 0, 0, 0][:5]
    return (Opcode[op.opcode], Domain[domain.kind.upper()], domain.route, domain.num_rows, int(domain.clipped),
            domain.blocks, len(op.operands), params, (0.0, 0.0), (0, 0), operands)


def _params(op: TileOp) -> tuple[int, ...]:
    if op.opcode == "MAP":
        return (MapCode[op.params[0].upper()],)
    if op.opcode == "ROW_REDUCE":
        return (Reduction[op.params[0].upper()],)
    return op.params[:1] if op.opcode == "NOTIFY" else op.params
