"""Canonicalizes operations and buffers: keeps what of them decides what tasks touch and compute.

Names are only printed; a coordinate that only another kind of domain has, an access that a body does not ask about, the
height of a matrix in a buffer that is none: two operations that differ in these alone do the same, on every target.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.params import Matmul, Notice, Params, Way, WeightBlock
from hpmoe.tile_ops.row_modes import Ready


def canonical_op(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> tf.TileOp:
    """The operation without what no body asks about; what no kernel takes stays as it is."""
    op = op.replace(label="", equation=0, signal="tile")
    if op.cols == 0 <= op.tile_cols or 0 < op.cols < op.tile_cols:
        op = op.replace(tile_cols=op.cols)
    operands = [_access(op, i, a, buffers, routes) for i, a in enumerate(op.operands)]
    if op.primitive.commutes or op.params.commutes:
        operands[1:] = sorted(operands[1:], key=_order)
    op = op.replace(params=_params(op, buffers, routes))
    return op.replace(domain=_domain(op, routes), operands=tuple(operands))


def _order(access: tf.Access) -> tuple:
    return access.buffer, access.rows.number, access.cols.number, access.offset, access.value


def _params(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> Params:
    """What its body is told, where that makes a difference."""
    params = op.params
    if op.primitive.is_notice:  # by which buffer its put is found makes none
        return Notice(Way.OUT if _is_alike_both_ways(op, buffers, routes) else known(params.way), -1)
    if isinstance(params, Matmul) and params.is_transposed and _is_alike_both_ways(op, buffers, routes):
        return dataclasses.replace(params, is_transposed=False)
    if isinstance(params, WeightBlock) and op.domain.blocks == 1:
        heights = [buffers[a.buffer].cols for a in op.operands[1:2] if 0 <= a.buffer < len(buffers)]
        return dataclasses.replace(params, block=min(params.block, *heights)) if heights else params  # of a lone block
    return params


def _is_alike_both_ways(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> bool:
    """Whether each matrix of a product has a single element, which is the same when turned, or a notification is of rows of
    a lone rank, to which the same ones go that come back."""
    if op.primitive.is_notice:
        return 0 <= op.domain.route < len(routes) and routes[op.domain.route].ep_size == 1
    if len(op.operands) < 3:
        return False
    b = op.operands[2].buffer
    return 0 <= b < len(buffers) and op.cols == buffers[b].cols == 1 == (buffers[b].rows_per_expert or buffers[b].num_rows)


def _domain(op: tf.TileOp, routes: Sequence[tf.RoutePlan]) -> tf.Domain:
    domain, primitive = op.domain, op.primitive
    is_unrouted = not (primitive.needs_route or primitive.sums_rows or domain.is_slots)
    if is_unrouted and -1 <= domain.route < len(routes) and not any(a.rows.of_experts for a in op.operands):
        domain = dataclasses.replace(domain, route=-1)
    if primitive.sums_rows and not primitive.is_matmul and 1 <= domain.size <= domain.blocks:
        domain = dataclasses.replace(domain, blocks=domain.size)  # all are the first expert's
    return domain


def _access(op: tf.TileOp, i: int, access: tf.Access, buffers: Sequence[tf.Buffer],
            routes: Sequence[tf.RoutePlan]) -> tf.Access:
    modes = op.primitive.operand(i)
    if access.buffer == -1 and modes.may_be_number:
        return tf.Access(-1, value=access.value)
    if not 0 <= access.buffer < len(buffers):
        return access
    buffer = buffers[access.buffer]
    changes = {"value": 0.0, "buffer": _of_equal_form(access.buffer, buffers)}
    plan = routes[op.domain.route] if 0 <= op.domain.route < len(routes) else None
    if access.cols is col_modes.BLOCK and col_modes.BLOCK not in modes.cols:
        changes["cols"] = col_modes.ALL
    if access.cols is col_modes.ONE and buffer.cols == 1 and access.offset == 0:
        if modes.takes_one_column:
            changes["cols"] = col_modes.ALL
        elif modes.may_be_number and op.cols == 1:
            changes["cols"] = col_modes.OWN
    if op.primitive.moves_rows:
        changes |= _moved(op, i, access, plan)
    elif modes.takes_whole_rows and access.cols in (col_modes.ALL, col_modes.BLOCK) and 0 <= access.offset < buffer.cols:
        changes["offset"] = 0
    elif op.primitive.sums_rows and not modes.is_summed and access.rows.ready is not Ready.COPIES:
        changes |= {"rows": row_modes.OWN} if _rows_named(access, buffer, plan) <= (buffer.num_rows or 0) else {}
    elif col_modes.BLOCK in modes.cols:
        changes["cols"] = col_modes.BLOCK
    elif modes.is_weight:
        is_whole = access.cols is not col_modes.OWN or (access.offset == 0 and op.cols == op.tile_cols == buffer.cols)
        is_lone = access.rows is row_modes.SLOT_EXPERT and plan and plan.num_local_experts == 1
        changes |= {"cols": col_modes.ALL} if is_whole else {}
        changes |= {"rows": row_modes.ONE} if access.rows is row_modes.ALL or is_lone else {}
    return dataclasses.replace(access, **changes)


def is_alike_in_padding(op: tf.TileOp, buffers: Sequence[tf.Buffer]) -> bool:
    """Whether an operation that signals nothing may write the rows past a rank's tokens, too: what it reads of them is
    given, and those of its own temporary are nobody else's."""
    if op.params.function is None or not op.domain.is_tiles or any(a.buffer >= len(buffers) for a in op.operands):
        return False
    is_given = all(a.buffer < 0 or a.rows is row_modes.ONE or buffers[a.buffer].role == "input" for a in op.inputs)
    return is_given and all(a.rows is row_modes.OWN and a.buffer >= 0 and buffers[a.buffer].role == "temporary"
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
    if i == 1 and op.primitive.is_blocking and op.primitive.is_back:
        return {"rows": row_modes.OWN}
    return {"rows": row_modes.TOKENS} if i == 1 and access.rows is row_modes.ENTRIES and plan and plan.top_k == 1 else {}


def _rows_named(access: tf.Access, buffer: tf.Buffer, plan: tf.RoutePlan | None) -> int:
    """Rows that a kernel wants a buffer to have for an access whose rows its body finds by itself."""
    if plan is None or not access.rows.needs_route:
        return 0
    if access.rows is row_modes.SLOT_EXPERT:
        return plan.num_local_experts * (buffer.rows_per_expert or 1)
    of_tokens = {row_modes.ENTRIES: plan.num_tokens * plan.top_k, row_modes.TOKENS: plan.num_tokens}
    return of_tokens.get(access.rows, plan.max_rows)


def canonical_buffer(b: int, flow: tf.Taskflow | tf.Made) -> tf.Buffer:
    """The buffer without its name, the memory it shares, and what only other accesses than those it has ask about."""
    buffers, ops = flow.buffers, flow.ops
    buffer = buffers[b]
    changes: dict[str, object] = {"name": "", "memory": -1}
    if b not in (*flow.inputs, *flow.outputs):
        changes["shape"] = ()  # as nobody sees it
    accesses = [(op, i, a) for op in ops for i, a in enumerate(op.operands) if a.buffer == b]
    is_asked = any(a.rows.of_experts or op.primitive.moves_copies or op.primitive.operand(i).is_weight
                   for op, i, a in accesses)
    # Into matrices of one row where it says 0, too.
    is_summed = any(op.primitive.makes_blocks and i == 0 for op, i, _ in accesses)
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
    used = {op.domain.route if a.rows in (row_modes.OWN, row_modes.PEER) else -1 for op, _, a in accesses}
    of_all = used.pop() if len(used) == 1 else -1
    return of_all if 0 <= of_all < len(routes) and routes[of_all].once_of == route else route


def _room(b: int, buffers: Sequence[tf.Buffer], accesses: Sequence[tuple[tf.TileOp, int, tf.Access]]) -> dict:
    """Rows and columns of a temporary that may be more than its tasks need, as they touch theirs alone."""
    buffer, room = buffers[b], {}
    if buffer.num_rows and all(a.rows.each_alone or (a.rows is row_modes.ALL and op.primitive.operand(i).is_summed)
                               for op, i, a in accesses):
        room["num_rows"] = 1
    needed = max([a.offset + op.cols for op, _, a in accesses], default=1)
    if _is_apart(b, buffers) and buffer.cols >= needed and all(
            op.primitive.operand(i).by_column and a.cols is col_modes.OWN and op.cols for op, i, a in accesses):
        room["cols"] = needed
    return room


def canonical_route(plan: tf.RoutePlan, counts_returns: bool) -> tuple[tf.RoutePlan, int]:
    """The route without weights that decide nothing, and its slots in place of their rows, which the taskflow says; the
    tokens of an event for returned rows where there are such events, as far as a rank has them."""
    is_cut = min(plan.tile_rows, plan.num_local_experts, plan.num_experts) > 0
    num_slots = plan.num_slots if is_cut else -1
    weights, tokens = plan.weights if plan.drops_by_weight else -1, min(plan.return_tokens, max(1, plan.num_tokens))
    return dataclasses.replace(plan, tile_rows=0, weights=weights, return_tokens=tokens if counts_returns else 0), num_slots
