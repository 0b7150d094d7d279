"""For how many received rows a program is planned: few plans serve all routings."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

from hpmoe.program import Program, RouteAval


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


class PlannedRoute(NamedTuple):
    """A route of a program.

    Attributes:
        key: what it is in the forward and in the backward program: its ids and weights, and its options.
        aval: of the route.
        ids: which input of the program its ids are.
        weights: which one its weights are, where it reads any.
    """

    key: tuple[Any, ...]
    aval: RouteAval
    ids: int
    weights: int | None


@functools.lru_cache(maxsize=256)
def routes_of(program: Program) -> tuple[PlannedRoute, ...]:
    """The routes of a program, in order."""
    position = {v: i for i, v in enumerate(program.inputs)}
    routes = []
    for eqn in program.equations:
        if isinstance(eqn.outputs[0].aval, RouteAval):
            key = (*eqn.inputs, *(option for option in eqn.params.items() if option[0] != "max_rows"))
            ids, *weights = (position.get(a) for a in eqn.inputs)
            routes.append(PlannedRoute(key, eqn.outputs[0].aval, ids, weights[0] if weights else None))
    return tuple(routes)


def with_max_rows(program: Program, max_rows: Sequence[int]) -> Program:
    """The program planned for at most `max_rows[i]` received rows through its i-th route."""
    left = iter(max_rows)
    return program.replace(equations=tuple(
        e.replace(params={**e.params, "max_rows": next(left)}) if isinstance(e.outputs[0].aval, RouteAval) else e
        for e in program.equations))
