"""The essence of an operation or a buffer: what of it decides what tasks touch and compute.

Names are only printed; a coordinate that only another kind of domain has, an access that a body does not ask about, the
height of a matrix in a buffer that is none: two operations that differ in these alone do the same, on every target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpmoe import taskflow as tf

SUMS = ("WGRAD", "COL_SUM")
UNROUTED = ("MAP", "GMM", "SWIGLU", "SWIGLU_GRAD", "ROW_REDUCE", "ROW_DOT", "GATHER", "LAUNCH")
WHOLE_ROWS = (("REDUCE", 2), ("KEEP", 0), ("KEEP", 1), ("DROP_COUNTS", 0))
ONE_COLUMN = (("ROW_REDUCE", 0), ("ROW_DOT", 0), ("GATHER", 2))
COMMUTATIVE = (("add",), ("mul",), ("equal",), ("not_equal",))
BY_EXPERT = ("slot_expert", "replica", "returned")
ROW_BY_ROW = ("own", "entries", "tokens")
COLUMN_BY_COLUMN = {("GMM", 0), ("REDUCE", 0), ("REDUCE", 1), ("COL_SUM", 1), ("WGRAD", 2),
                    *((opcode, i) for opcode in ("MAP", "SWIGLU", "SWIGLU_GRAD") for i in range(5))}


def op_essence(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> tf.TileOp:
    """The operation without what no body asks about; what no kernel takes stays as it is."""
    op = op.replace(label="", equation=0, params=op.read_params,
                    signal="peer" if (op.opcode, op.signal) == ("NOTIFY", "peer") else "tile")
    if op.cols == 0 <= op.tile_cols or 0 < op.cols < op.tile_cols:
        op = op.replace(tile_cols=op.cols)
    operands = [_access(op, i, a, buffers, routes) for i, a in enumerate(op.operands)]
    if op.opcode == "ROW_DOT" or (op.opcode == "MAP" and op.params[:1] in COMMUTATIVE):
        operands[1:] = sorted(operands[1:], key=dataclasses.astuple)
    if _is_alike_both_ways(op, buffers, routes):
        op = op.replace(params=op.params and (0, *op.params[1:]))
    if op.opcode == "WGRAD" and op.domain.blocks == 1 and op.params:
        heights = [buffers[a.buffer].cols for a in op.operands[1:2] if 0 <= a.buffer < len(buffers)]
        op = op.replace(params=(min(op.params[0], *heights), *op.params[1:]) if heights else op.params)  # of a lone block
    return op.replace(domain=_domain(op, routes), operands=tuple(operands))


def _is_alike_both_ways(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> bool:
    """Whether each matrix of a product has a single element, which is the same when turned, or a notification is of rows of
    a lone rank, to which the same ones go that come back."""
    if op.opcode == "NOTIFY":
        return 0 <= op.domain.route < len(routes) and routes[op.domain.route].ep_size == 1
    if op.opcode != "GMM" or len(op.operands) < 3:
        return False
    b = op.operands[2].buffer
    return 0 <= b < len(buffers) and op.cols == buffers[b].cols == 1 == (buffers[b].rows_per_expert or buffers[b].num_rows)


def _domain(op: tf.TileOp, routes: Sequence[tf.RoutePlan]) -> tf.Domain:
    domain = op.domain
    changes: dict[str, int | bool] = {}
    if domain.kind != "tiles":
        changes["clipped"] = False
    if domain.kind not in ("experts", "copies") and domain.blocks >= 1:
        changes["blocks"] = 1
    elif op.opcode == "COL_SUM" and 1 <= domain.size <= domain.blocks:
        changes["blocks"] = domain.size  # all are the first expert's
    if domain.kind in ("once", "slots") and domain.num_rows >= 0:
        changes["num_rows"] = 0
    if op.opcode in UNROUTED and domain.kind in ("once", "tiles") and -1 <= domain.route < len(routes) \
            and all(a.rows not in BY_EXPERT for a in op.operands):
        changes["route"] = -1
    return dataclasses.replace(domain, **changes)


def _access(op: tf.TileOp, i: int, access: tf.Access, buffers: Sequence[tf.Buffer],
            routes: Sequence[tf.RoutePlan]) -> tf.Access:
    if access.buffer == -1 and op.opcode == "MAP" and i:
        return tf.Access(-1, value=access.value)
    if not 0 <= access.buffer < len(buffers):
        return access
    buffer = buffers[access.buffer]
    changes = {"value": 0.0, "buffer": _of_equal_form(access.buffer, buffers)}
    plan = routes[op.domain.route] if 0 <= op.domain.route < len(routes) else None
    if access.cols == "block" and (op.opcode, i) != ("WGRAD", 1):
        changes["cols"] = "all"
    if access.cols == "one" and buffer.cols == 1 and access.offset == 0:
        if (op.opcode, i) in ONE_COLUMN:
            changes["cols"] = "all"
        elif op.opcode == "MAP" and i and op.cols == 1:
            changes["cols"] = "own"
    if op.moves_rows:
        changes |= _moved(op, i, access, plan)
    elif (op.opcode, i) in WHOLE_ROWS and access.cols in ("all", "block") and 0 <= access.offset < buffer.cols:
        changes["offset"] = 0
    elif op.opcode in SUMS and (i == 0 or i >= 3) and access.rows not in ("replica", "returned"):
        changes |= {"rows": "own"} if _rows_named(access, buffer, plan) <= (buffer.num_rows or 0) else {}
    elif op.opcode == "WGRAD" and i == 1:
        changes["cols"] = "block"
    elif op.opcode == "GMM" and i == 2:
        is_whole = access.cols != "own" or (access.offset == 0 and op.cols == op.tile_cols == buffer.cols)
        is_one = access.rows == "all" or (access.rows == "slot_expert" and plan and plan.num_local_experts == 1)
        changes |= ({"cols": "all"} if is_whole else {}) | ({"rows": "one"} if is_one else {})
    return dataclasses.replace(access, **changes)


def is_alike_in_padding(op: tf.TileOp, buffers: Sequence[tf.Buffer]) -> bool:
    """Whether an operation that signals nothing may write the rows past a rank's tokens, too: what it reads of them is
    given, and those of its own temporary are nobody else's."""
    if op.opcode != "MAP" or op.domain.kind != "tiles" or any(a.buffer >= len(buffers) for a in op.operands):
        return False
    is_given = all(a.buffer < 0 or a.rows == "one" or buffers[a.buffer].role == "input" for a in op.inputs)
    return is_given and all(a.rows == "own" and a.buffer >= 0 and buffers[a.buffer].role == "temporary"
                            and _is_apart(a.buffer, buffers) for a in op.outputs)


def _is_apart(b: int, buffers: Sequence[tf.Buffer]) -> bool:
    """Whether a buffer shares its memory with none, and none is a view of it."""
    others = [v for i, v in enumerate(buffers) if i != b]
    return buffers[b].memory < 0 and buffers[b].storage == b and all(b not in (v.memory, v.storage) for v in others)


def _of_equal_form(b: int, buffers: Sequence[tf.Buffer]) -> int:
    """The buffer that another is a view of, where they are of the same rows and columns."""
    root, buffer = buffers[b].storage, buffers[b]
    forms = [(x.num_rows, x.cols, x.route, x.rows_per_expert, x.dtype) for x in (buffer, *buffers[max(root, 0):][:1])]
    return root if forms.count(forms[0]) == 2 else b


def _moved(op: tf.TileOp, i: int, access: tf.Access, plan: tf.RoutePlan | None) -> dict:
    """Transfers move rows by token or by entry, which are one where a token has one choice."""
    if i == 1 and op.opcode == "ALL_TO_ALL_BACK":
        return {"rows": "own"}
    return {"rows": "tokens"} if i == 1 and access.rows == "entries" and plan and plan.top_k == 1 else {}


def _rows_named(access: tf.Access, buffer: tf.Buffer, plan: tf.RoutePlan | None) -> int:
    """Rows that a kernel wants a buffer to have for an access whose rows its body finds by itself."""
    if plan is None or access.rows in ("own", "all", "one"):
        return 0
    return {"slot_expert": plan.num_local_experts * (buffer.rows_per_expert or 1), "entries": plan.num_tokens * plan.top_k,
            "tokens": plan.num_tokens}.get(access.rows, plan.max_rows)


def buffer_essence(b: int, flow: tf.Taskflow | tf.Made) -> tf.Buffer:
    """The buffer without its name, the memory it shares, and what only other accesses than those it has ask about."""
    buffers, ops = flow.buffers, flow.ops
    buffer = buffers[b]
    changes: dict[str, object] = {"name": "", "memory": -1}
    if b not in (*flow.inputs, *flow.outputs):
        changes["shape"] = ()  # as nobody sees it
    accesses = [(op, i, a) for op in ops for i, a in enumerate(op.operands) if a.buffer == b]
    is_asked = any(a.rows in BY_EXPERT or op.moves_copies or (op.opcode, i) == ("GMM", 2) for op, i, a in accesses)
    is_summed = any((op.opcode, i) == ("WGRAD", 0) for op, i, _ in accesses)  # into matrices of one row where it says 0, too
    if buffer.rows_per_expert >= 0 and not is_asked and (not is_summed or buffer.rows_per_expert == 1):
        changes["rows_per_expert"] = 0
    if buffer.route < 0:
        changes["route"] = -1
    if buffer.role == "temporary" and buffer.storage == b and [v.storage for v in buffers].count(b) == 1:
        changes |= _room(b, buffers, accesses)
        if buffer.route >= 0:
            changes["route"] = _route_with_room(buffer.route, accesses, flow.routes)
    return dataclasses.replace(buffer, **changes)


def _route_with_room(route: int, accesses: Sequence[tuple[tf.TileOp, int, tf.Access]],
                     routes: Sequence[tf.RoutePlan]) -> int:
    """The route of all accesses to a buffer that has rows for it: the rows of experts are no fewer than those of tokens that
    come to a rank once."""
    used = {op.domain.route if a.rows in ("own", "peer") else -1 for op, _, a in accesses}
    of_all = used.pop() if len(used) == 1 else -1
    return of_all if 0 <= of_all < len(routes) and routes[of_all].once_of == route else route


def _room(b: int, buffers: Sequence[tf.Buffer], accesses: Sequence[tuple[tf.TileOp, int, tf.Access]]) -> dict:
    """Rows and columns of a temporary that may be more than its tasks need, as they touch theirs alone."""
    buffer, room = buffers[b], {}
    if buffer.num_rows and all(a.rows in ROW_BY_ROW or (a.rows == "all" and i in (1, 2) and op.opcode in SUMS)
                               for op, i, a in accesses):
        room["num_rows"] = 1
    needed = max([a.offset + op.cols for op, _, a in accesses], default=1)
    if _is_apart(b, buffers) and buffer.cols >= needed and all(
            (op.opcode, i) in COLUMN_BY_COLUMN and a.cols == "own" and op.cols for op, i, a in accesses):
        room["cols"] = needed
    return room


def route_essence(plan: tf.RoutePlan, counts_returns: bool) -> tuple[tf.RoutePlan, int]:
    """The route without weights that decide nothing, and its slots in place of their rows, which the taskflow says; the
    tokens of an event for returned rows where there are such events, as far as a rank has them."""
    is_cut = min(plan.tile_rows, plan.num_local_experts, plan.num_experts) > 0
    num_slots = plan.num_slots if is_cut else -1
    weights, tokens = plan.weights if plan.drops_by_weight else -1, min(plan.return_tokens, max(1, plan.num_tokens))
    return dataclasses.replace(plan, tile_rows=0, weights=weights, return_tokens=tokens if counts_returns else 0), num_slots
