"""Which units there are for the tasks of an operation: as many as its rows, its route and the matrices it works on say."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe import taskflow as tf


def units_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], plan: tf.RoutePlan | None, tile_rows: int) -> str:
    """Why the units of an operation, of route `plan`, are not each there once, or ""; its label begins the sentence."""
    domain = op.domain
    if domain.kind == "slots":
        return _unlike(op, plan.num_slots, f"its route has {plan.num_slots} slots")
    if domain.kind == "tiles":
        most = -(-domain.num_rows // tile_rows)
        return _unlike(op, most, f"its {domain.num_rows} rows are {most} tiles of {tile_rows}")
    if domain.kind == "once":
        by_expert = op.opcode == "NOTIFY" and op.signal == "expert"
        if op.moves_copies and op.params[0] < op.params[1]:
            return f"moves {op.params[0]} rows of matrices of {op.params[1]}"
        if by_expert:
            return _unlike(op, plan.num_local_experts, f"a rank has {plan.num_local_experts} experts to tell of")
        return _unlike(op, 1, "it runs once")
    return _blocks_fault(op, buffers, plan)


def _unlike(op: tf.TileOp, most: int, why: str) -> str:
    size = op.domain.size
    return f"has {size} unit{'' if size == 1 else 's'}, not {most}: {why}" if size != most else ""


def _blocks_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    """Matrices, each in blocks of rows: the gradients of experts, sums over their rows, or copies."""
    domain, count, first = op.domain, _num_matrices(op, plan), 0
    if op.opcode == "WGRAD":
        first, block, height = op.params[3], op.params[0], matrix_height(op, buffers)
    elif op.opcode == "COL_SUM":
        block = height = 1
    else:
        block, height = op.params
    if first < 0 or not 0 <= domain.num_rows <= count - first or (domain.num_rows < count and op.opcode != "WGRAD"):
        return f"is of {domain.num_rows} matrices from {first} on; there are {count}"
    if block < 1 or -(-height // block) != domain.blocks:
        return f"cuts matrices of {height} rows into {domain.blocks} blocks of {block}"
    return _unlike(op, domain.num_rows * domain.blocks, f"{domain.num_rows} matrices in {domain.blocks} blocks each")


def matrix_height(op: tf.TileOp, buffers: Sequence[tf.Buffer]) -> int:
    """Rows of each matrix that a weight gradient makes."""
    x = op.operands[1]
    return buffers[x.buffer].cols - x.offset


def _num_matrices(op: tf.TileOp, plan: tf.RoutePlan | None) -> int:
    if plan is None:
        return 1
    if op.moves_copies:
        copies = plan.placement.most_copies if plan.placement else 0
        return copies if op.opcode == "REPLICATE" else plan.num_replicas
    return plan.num_local_experts
