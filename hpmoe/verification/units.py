"""The units that there must be for the tasks of an operation: as its rows, its route and the matrices it works on say."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir import taskflow as tf


def units_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], plan: tf.RoutePlan | None, tile_rows: int) -> str:
    """Why the units of an operation of a route `plan` are not each there once, or ""; its label begins the sentence."""
    if op.domain.in_blocks:
        return _blocks_fault(op, buffers, plan)
    if op.primitive.moves_copies and op.params.block < op.params.height:
        return f"moves {op.params.block} rows of matrices of {op.params.height}"
    return _unlike(op, *op.domain.units_there(plan, tile_rows))


def _unlike(op: tf.TileOp, most: int, why: str) -> str:
    size = op.domain.size
    return f"has {size} unit{'' if size == 1 else 's'}, not {most}: {why}" if size != most else ""


def _blocks_fault(op: tf.TileOp, buffers: Sequence[tf.Buffer], plan: tf.RoutePlan | None) -> str:
    """Matrices, each in blocks of rows: the gradients of experts, sums over their rows, or copies."""
    domain, count, first = op.domain, _num_matrices(op, plan), op.domain.first // max(1, op.domain.blocks)
    block, height = block_and_height(op, buffers)
    if first < 0 or not 0 <= domain.num_rows <= count - first or (domain.num_rows < count and not op.primitive.makes_blocks):
        return f"is of {domain.num_rows} matrices from {first} on; there are {count}"
    if block < 1 or -(-height // block) != domain.blocks:
        return f"cuts matrices of {height} rows into {domain.blocks} blocks of {block}"
    return _unlike(op, domain.num_rows * domain.blocks, f"{domain.num_rows} matrices in {domain.blocks} blocks each")


def block_and_height(op: tf.TileOp, buffers: Sequence[tf.Buffer]) -> tuple[int, int]:
    """Rows of the blocks that tasks make or move of matrices, and of a matrix; a sum over rows makes one row."""
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
