"""Refuses an operation that its definition does not allow: domain, operands and their modes, params, grid."""

from __future__ import annotations

from hpmoe.ir import taskflow as tf
from hpmoe.tile_ops import col_modes
from hpmoe.tile_ops.tile_primitive import TilePrimitive


def rule_fault(op: tf.TileOp) -> str:
    """Returns the fault of an operation that no body can run, or ""; the operation's label begins the sentence."""
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
    """Each task of a grid writes elements of its own, and all of them together all columns that are written."""
    is_put = op.primitive.is_put or op.primitive.is_completion_flag
    if (op.num_peers > 0) != is_put:
        return f"has tasks for {op.num_peers} peers; {op.opcode} has them for {'one at least' if is_put else 'none'}"
    if op.signal == "peer" and not is_put:
        return "signals by peer; only puts and what tells of them do"
    if op.cols < 0 or (op.cols and op.tile_cols < 1):
        return f"divides {op.cols} columns into tiles of {op.tile_cols}"
    if any(a.cols is col_modes.OWN for a in op.operands if a.buffer >= 0) and not op.cols:
        return "takes its own columns and has none"
    if op.grid[2] > 1 and not all(a.cols is col_modes.OWN for a in op.outputs):
        return f"writes whole rows {op.grid[2]} times, once for each tile of its {op.cols} columns"
    return ""
