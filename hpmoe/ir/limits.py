"""Limits of a taskflow's size: what its tables and the packed image, whose numbers have 32 bits, can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.support.errors import TransformError

MOST_RANKS = 4096  # each orders all others
MOST_ROWS = 2**31 - 1
MOST_EXPERTS = 2**22  # every rank counts the rows of each
MOST_TASKS = 2**24  # of a rank; a word of the image holds a task's place, and in what is left what it waits for


def check_limits(name: str, ep_size: int, buffers: Sequence[tf.Buffer], ops: Sequence[tf.TileOp],
                 routes: Sequence[tf.RoutePlan]) -> None:
    """Raises TransformError where a taskflow named `name` has more ranks, rows or tasks than there is room for."""
    _check(name, "it is for", ep_size, MOST_RANKS, "ranks")
    for b in buffers:
        _check(name, f"{b.name} has", b.num_rows or 0, MOST_ROWS, f"rows of {b.cols} columns")
        _check(name, f"{b.name} has", b.cols, MOST_ROWS, "columns")
    for plan in routes:
        _check(name, "a route has", plan.num_experts, MOST_EXPERTS, "experts")
        _check(name, "a route has", plan.num_tokens * plan.top_k, MOST_ROWS, "entries of a rank, num_tokens * top_k")
        _check(name, "a route has", plan.max_rows, MOST_ROWS, "received rows of a rank")
    for op in ops:
        rows = op.domain.num_rows if op.domain.is_tiles else 0
        _check(name, f"{op.label} counts", rows * op.num_col_tiles, MOST_ROWS, "rows, each once for every tile of columns")
    num_tasks = sum(math.prod(op.grid) for op in ops)
    _check(name, "it has", num_tasks, MOST_TASKS, "tasks on a rank", "; write larger rows= or cols= in tile_partition")


def _check(name: str, has: str, count: int, most: int, what: str, write: str = "") -> None:
    if count > most:
        raise TransformError(f"{name} is too large: {has} {count:,} {what}; the limit is {most:,}{write}")
