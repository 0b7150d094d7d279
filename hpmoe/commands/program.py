"""The traced MoE-FFN of given sizes, from shapes alone."""

from __future__ import annotations

from collections.abc import Callable

import hpmoe
from hpmoe.commands.options import Options
from hpmoe.ir.program import Program


def program(o: Options, direction: str,
            rewrite: Callable[[Program], Program] = lambda p: p, nodes: int | None = None) -> Program:
    """The traced MoE-FFN of these sizes, from shapes alone; `rewrite` is applied before its gradient is taken."""
    mesh = hpmoe.Mesh(o.ep, tp=shards_of(o), nodes=nodes)
    traced = rewrite(hpmoe.trace(hpmoe.moe_ffn, *avals(o), mesh=mesh))
    return traced if direction == "forward" else hpmoe.rewriting.vjp(traced)


def limited(program: Program, rank_capacity_factor: float | None) -> Program:
    """Limits the row capacity of a rank, or leaves it at all rows."""
    if rank_capacity_factor is None:
        return program
    return hpmoe.limit_rows.apply_to(program, rank_capacity_factor=rank_capacity_factor)


def avals(o: Options) -> list[hpmoe.ShapeDtypeStruct]:
    """The arguments of moe_ffn on one rank."""
    local, inner = o.experts // o.ep, o.intermediate // shards_of(o)
    shapes = [(o.dtype, o.tokens, o.hidden), ("int32", o.tokens, o.top_k), ("float32", o.tokens, o.top_k),
              (o.dtype, local, o.hidden, 2 * inner), (o.dtype, local, inner, o.hidden)]
    return [hpmoe.ShapeDtypeStruct(tuple(s), dtype) for dtype, *s in shapes]


def shards_of(o: Options) -> int:
    """Ranks that share an expert; 1 where the sizes say nothing of it."""
    return getattr(o, "tp", None) or 1
