"""Faults of an operation: what its definition does not allow, operands that do not fit together, units that are missing."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.support.dtypes import storage_dtype
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.domains import AllRows
from hpmoe.tile_ops.row_modes import Ready
from hpmoe.tile_ops.tile_primitive import Result, TilePrimitive


def op_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan], tile_rows: int) -> str:
    """Returns the fault of an operation, or ""; the operation's label begins the sentence."""
    return _rule_fault(op) or shapes_fault(op, buffers, routes) or _units_fault(op, buffers, routes, tile_rows)


def _rule_fault(op: tf.TileOp) -> str:
    """Returns the fault of an operation that no body can run."""
    primitive, domain = op.primitive, op.domain
    if not isinstance(primitive, TilePrimitive):
        return f"is {primitive!r}, which is no tile operation"
    if type(domain) not in primitive.domains:
        known = " or ".join(cls.__name__ for cls in primitive.domains)
        return f"is {op.opcode} over {type(domain).__name__}; it runs over {known}"
    if domain.num_rows < 0 or domain.blocks < 1:
        return f"is over {domain.num_rows} rows in {domain.blocks} blocks"
    if op.num_outputs != len(primitive.outputs):
        return f"writes {op.num_outputs} of its operands; {op.opcode} writes {len(primitive.outputs)}"
    if type(op.params) is not primitive.params or not op.params.are_of_their_types():
        return f"has params {op.params!r}; {op.opcode} takes {primitive.params.__name__}"
    return _operands_fault(op) or _grid_fault(op)


def _operands_fault(op: tf.TileOp) -> str:
    primitive = op.primitive
    inputs = op.params.inputs
    least, most = primitive.required, len(primitive.outputs) + len(primitive.inputs)
    least, most = (least, most) if inputs is None else (1 + inputs,) * 2
    if not least <= len(op.operands) <= most:
        return f"has {len(op.operands)} operands; {op.opcode} takes {least}..{most}"
    for i, access in enumerate(op.operands):
        modes = primitive.operand(i)
        if access.buffer < 0 and (i < op.num_outputs or not modes.may_be_number):
            return f"takes a number for operand {i}; {op.opcode} takes a buffer"
        for name, mode, known in (("rows", access.rows, modes.rows), ("columns", access.cols, modes.cols)):
            if access.buffer >= 0 and mode not in known:
                return f"takes {name} {mode} of operand {i}; {op.opcode} takes {' or '.join(map(str, known))}"
    return ""


def _grid_fault(op: tf.TileOp) -> str:
    """Returns the fault of a grid, whose tasks must write elements of their own, together all written columns; or ""."""
    is_put = op.primitive.is_put or op.primitive.is_completion_flag
    if (op.num_peers > 0) != is_put:
        return f"has tasks for {op.num_peers} peers; {op.opcode} has them for {'one at least' if is_put else 'none'}"
    if op.signal == "peer" and not is_put:
        return "signals by peer; only puts and what tells of them do"
    if op.cols < 0 or (op.cols and op.tile_cols < 1):
        return f"divides {op.cols} columns into tiles of {op.tile_cols}"
    if any(a.cols is col_modes.OWN for a in op.operands if a.buffer >= 0) and not op.cols:
        return "takes its own columns and has none"
    if op.parts < 1 or (op.parts > 1 and not op.can_divide_rows):
        return f"divides the rows of a unit into {op.parts} parts; only a task of whole rows, which reads its own, may"
    if op.num_col_tiles > 1 and not all(a.cols is col_modes.OWN for a in op.outputs):
        return f"writes whole rows {op.num_col_tiles} times, once for each tile of its {op.cols} columns"
    return ""


def shapes_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan]) -> str:
    """Returns the fault of an operation whose routes, dtypes or sizes do not fit together, or ""."""
    return _route_fault(op, _plan_of(op, routes)) or _dtype_fault(op, buffers) or op.primitive.fault(op, buffers, routes)


def _route_fault(op: tf.TileOp, plan: tf.RoutePlan | None) -> str:
    rows, primitive = {a.rows for a in op.operands}, op.primitive
    if plan is None:
        needs_one = primitive.needs_route or op.domain.is_slots or row_modes.EXPERT in rows
        if primitive.sums_rows and not isinstance(op.domain, AllRows):
            return "sums rows of experts that no route brings"
        return "needs a route and has none" if needs_one else ""
    if isinstance(op.domain, AllRows):
        return "sums all rows where a route brings those of experts"
    if any(mode.of_slots_expert for mode in rows) and not (op.domain.is_slots or primitive.moves_copies):
        return f"takes what is of a slot's expert, over {type(op.domain).__name__}"
    if plan.placement is None and (primitive.moves_copies or any(mode.ready is Ready.COPIES for mode in rows)):
        return "is about copies, of which its route has none"
    return ""


def _dtype_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer]) -> str:
    dtypes = [storage_dtype(buffers[a.buffer].dtype) if a.buffer >= 0 else "float32" for a in op.operands]
    if op.primitive.result is Result.MOVED:
        return "" if dtypes[0] == dtypes[1] else f"moves {dtypes[1]} to {dtypes[0]}"
    for i, (access, dtype) in enumerate(zip(op.operands, dtypes, strict=True)):
        if not op.primitive.operand(i).takes(dtype):
            return f"takes {buffers[access.buffer].name}, which is of {dtype}"
    return ""


def _plan_of(op: tf.TileOp, routes: Sequence[tf.RoutePlan]) -> tf.RoutePlan | None:
    return routes[op.domain.route] if op.domain.route >= 0 else None


def _units_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], routes: Sequence[tf.RoutePlan], tile_rows: int) -> str:
    """Returns why the units of an operation are not each there once."""
    plan = _plan_of(op, routes)
    if op.domain.in_blocks:
        return _blocks_fault(op, buffers, plan)
    if op.primitive.moves_copies and op.params.block < op.params.height:
        return f"moves {op.params.block} rows of matrices of {op.params.height}"
    return _unlike(op, *op.domain.units_there(plan, tile_rows))


def _unlike(op: tf.TileOp, most: int, why: str) -> str:
    size = op.domain.size
    return f"has {size} unit{'' if size == 1 else 's'}, not {most}: {why}" if size != most else ""


def _blocks_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    """Returns the fault in the blocks of matrices, of experts' gradients, sums over their rows or replicas, or ""."""
    domain, count, first = op.domain, _num_matrices(op, plan), op.domain.first // max(1, op.domain.blocks)
    block, height = block_and_height(op, buffers)
    if first < 0 or not 0 <= domain.num_rows <= count - first or (domain.num_rows < count and not op.primitive.makes_blocks):
        return f"is of {domain.num_rows} matrices from {first} on; there are {count}"
    if block < 1 or -(-height // block) != domain.blocks:
        return f"cuts matrices of {height} rows into {domain.blocks} blocks of {block}"
    return _unlike(op, domain.num_rows * domain.blocks, f"{domain.num_rows} matrices in {domain.blocks} blocks each")


def block_and_height(op: tf.TileOp, buffers: Sequence[tf.Buffer]) -> tuple[int, int]:
    """Returns the rows of the blocks that tasks make or move of matrices, and of a matrix; a sum over rows makes one row."""
    if op.primitive.makes_blocks:
        return op.params.block, op.width(1, buffers)
    return (op.params.block, op.params.height) if op.primitive.moves_copies else (1, 1)


def _num_matrices(op: tf.TileOp, plan: tf.RoutePlan | None) -> int:
    if plan is None:
        return 1
    if op.primitive.moves_copies:
        copies = plan.placement.most_copies if plan.placement else 0
        return plan.num_replicas if op.primitive.is_back else copies
    return plan.num_local_experts
