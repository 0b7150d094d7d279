"""For how many received rows a program is planned: few plans serve all routings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hpmoe.program import Equation, Program, RouteAval


def row_bucket(rows: int, most: int) -> int:
    """The planned number of received rows for `rows` real ones: steps of 1.5 and 1.33 in turn, so that few plans serve all.

    Example:
        >>> [row_bucket(n, 1000) for n in (0, 10, 65, 100, 900)]
        [64, 64, 96, 128, 1000]
    """
    step = 64
    while step < rows:
        if step + step // 2 >= rows:
            step += step // 2
            break
        step *= 2
    return min(step, most)


def routes_of(program: Program) -> list[Equation]:
    return [e for e in program.equations if isinstance(e.outputs[0].aval, RouteAval)]


def route_key(eqn: Equation) -> tuple[Any, ...]:
    """What a route is in the forward and in the backward program: its ids and weights, and its options."""
    return (*eqn.inputs, *(option for option in eqn.params.items() if option[0] != "max_rows"))


def with_max_rows(program: Program, max_rows: Sequence[int]) -> Program:
    """The program planned for at most `max_rows[i]` received rows through its i-th route."""
    left = iter(max_rows)
    return program.replace(equations=tuple(
        e.replace(params={**e.params, "max_rows": next(left)}) if isinstance(e.outputs[0].aval, RouteAval) else e
        for e in program.equations))
