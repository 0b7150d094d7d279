"""Received rows: counted from the ids of a call, and rounded up to the few numbers of rows that programs are planned for."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hpmoe.ir.avals import RouteAval, as_route, drawn
from hpmoe.ir.program import Equation, Program, Var
from hpmoe.ir.stages import views_of_inputs
from hpmoe.routing.capacity import check_topk_weights
from hpmoe.routing.routing import check_topk_ids
from hpmoe.support.known import known
from hpmoe.support.remembered import remembered
from hpmoe.support.trees import PyTree

LEAST = 64  # rows of a bucket
TIMES = 1.0, 1.5, 2.0, 2.75, 4.0, 5.6, 8.0  # even rows, which drawn ones are a few more than, that plans are for
PLANNED = "max_rows", "expected_rows"  # options of a route that say what it is planned for
NO_MAKERS: Mapping[Var, Equation] = {}
Received = Sequence[list[int] | None]  # for each route of a program, the rows of each rank; None if they are not known


def row_bucket(rows: int, most: int) -> int:
    """Returns the number of received rows to plan for `rows` real ones, 64 or more, but at most the route's capacity `most`.

    Numbers are 64, 96, 128, 192 and so on, so that few plans serve all routings. `rows` is at most `most`.

    Example:
        >>> [row_bucket(n, 1000) for n in (0, 10, 65, 100, 900)]
        [64, 64, 96, 128, 1000]
    """
    step = LEAST
    while step < rows:
        if step + step // 2 >= rows:
            step += step // 2
            break
        step *= 2
    return min(step, most)


class PlannedRows(NamedTuple):
    """Received rows of a rank that a plan is made for: buffers hold `most` rows, tasks are ordered for `expected` rows."""

    most: int
    expected: int


def rows_of_any(aval: RouteAval) -> PlannedRows:
    """Returns PlannedRows for any routing, of which nothing is known."""
    return PlannedRows(aval.max_rows, aval.expected_rows)


def rows_at_start(any_rows: PlannedRows, even: int) -> tuple[PlannedRows, ...]:
    """For any routing, of the plans of which a kernel takes one when it starts: that for `any_rows`, and for drawn experts
    on all ranks, which would receive `even` rows each, or on fewer.

    Example:
        >>> [rows.expected for rows in rows_at_start(PlannedRows(most=1000, expected=200), even=200)]
        [200, 228, 334, 440, 596, 856, 1000]
        >>> [rows.expected for rows in rows_at_start(PlannedRows(most=400, expected=400), even=200)]
        [228, 334, 400]
    """
    most, expected = any_rows
    rows = expected, *(drawn(math.ceil(even * times)) for times in TIMES)
    return tuple(PlannedRows(most, n) for n in sorted({min(most, n) for n in rows}))


def rows_of_received(received: int, aval: RouteAval) -> PlannedRows:
    """Returns the planned rows for routings whose fullest rank receives about `received` rows. Expected rows are those of
        random experts, or the capacity, whichever is nearer."""
    most = row_bucket(received, aval.max_rows)
    even = min(most, max(LEAST, aval.sampled_rows))
    return PlannedRows(most, even if received - even < most - received else most)


RouteKey = tuple[PyTree, ...]  # its ids and weights, then names and values of its options
Counted = dict[RouteKey, list[int]]  # received rows of each rank

class PlannedRoute(NamedTuple):
    """A route of a program."""

    key: RouteKey  # what it is in the forward and in the backward program: its ids and weights, and its options
    aval: RouteAval  # of the route
    ids: int | None  # which input of the program its ids are, also in another shape; None where they are computed
    weights: int | None  # which one its weights are, where it reads any
    source: str  # the user's line that makes it


@remembered
def routes_of(program: Program) -> tuple[PlannedRoute, ...]:
    """Returns the routes of a program, in order."""
    position: dict[Var | None, int] = {v: i for i, v in enumerate(program.inputs)}
    views = views_of_inputs(program)
    routes = []
    for eqn in program.equations:
        if isinstance(eqn.outputs[0].aval, RouteAval):
            key = (*eqn.inputs, *(option for option in eqn.params.items() if option[0] not in PLANNED))
            ids, *weights = (position.get(views.get(a)) for a in eqn.inputs)
            routes.append(PlannedRoute(key, as_route(eqn.outputs[0].aval), ids, weights[0] if weights else None,
                                       eqn.source))
    return tuple(routes)


def received_by_ids(program: Program, inputs: Sequence[Sequence[np.ndarray]], lengths: Sequence[int] | None,
                    makers: Mapping[Var, Equation] = NO_MAKERS, counted: Counted | None = None) -> Received:
    """Checks the ids of every route and counts the rows that each rank receives; None for a route without ids among inputs.

    `lengths` are the tokens of each rank, `makers` the equations that computed ids and weights among the inputs, and
    `counted` the rows that are known already, to which those counted now are added.
    """
    counted = {} if counted is None else counted
    received: list[list[int] | None] = []
    for route in routes_of(program):
        if route.ids is None:
            received.append(None)
            continue
        if route.key not in counted:
            real = [checked_ids(route, arrays, None if lengths is None else lengths[rank], rank, makers)
                    for rank, arrays in enumerate(inputs)]
            counted[route.key] = route.aval.kind.by_ids.received(real)
        received.append(counted[route.key])
    return received


def checked_ids(route: PlannedRoute, inputs: Sequence[np.ndarray], num_tokens: int | None, rank: int,
                makers: Mapping[Var, Equation]) -> np.ndarray:
    """Returns the ids of a rank's tokens; checks the ids, and the weights if they decide which entries are dropped."""
    kind = route.aval.kind
    ids = inputs[known(route.ids)].reshape(-1, kind.num_choices)[:num_tokens]
    check_topk_ids(ids, kind.num_model_experts, "hpmoe.dispatch" + (f" on rank {rank}" if kind.ep_size > 1 else ""),
                   _origin(makers.get(route.key[0]), route.source))
    if route.weights is not None:
        check_topk_weights(ids, inputs[route.weights].reshape(-1, kind.num_choices)[:num_tokens], rank, kind.ep_size)
    return ids


def _origin(maker: Equation | None, source: str) -> str:
    """Returns a sentence for errors: the equation that computed the ids, or the line that dispatches given ids."""
    if maker is None:
        return f" The dispatch is written at {source}." if source else ""
    return f" They are computed by {maker.primitive.name}" + (f", written at {maker.source}." if maker.source else ".")


def planned_rows(program: Program, received: Received) -> dict[RouteKey, PlannedRows]:
    """Returns the planned rows of each route of a program; for any number of rows if the received rows are not known."""
    planned = {}
    for route, rows in zip(routes_of(program), received, strict=True):
        if rows is not None:
            route.aval.check_received(rows)
        planned[route.key] = rows_of_any(route.aval) if rows is None else rows_of_received(max(rows), route.aval)
    return planned


def any_rows(program: Program) -> dict[RouteKey, PlannedRows]:
    """Returns the planned rows of each route, for any routing."""
    return {route.key: rows_of_any(route.aval) for route in routes_of(program)}


def with_planned_rows(program: Program, rows: Sequence[PlannedRows]) -> Program:
    """Returns the program planned for `rows[i]` received rows of its i-th route."""
    left = iter(rows)

    def planned(eqn: Equation) -> Equation:
        most, expected = next(left)
        others = {name: value for name, value in eqn.params.items() if name not in PLANNED}
        return eqn.replace(params={**others, "max_rows": most, **({"expected_rows": expected} if expected != most else {})})
    return program.replace(equations=tuple(
        planned(e) if isinstance(e.outputs[0].aval, RouteAval) else e for e in program.equations))


def rows_between(aval: RouteAval, imbalance: float) -> list[PlannedRows]:
    """Returns the planned rows of calls in which the fullest rank receives from the mean up to `imbalance` times the mean.

    Example:
        >>> from hpmoe.ir.avals import Rows
        >>> from hpmoe.routing.kinds.direct import Direct
        >>> kind = Direct(ep_size=4, num_tokens=512, num_choices=2, num_model_experts=8)
        >>> rows_between(RouteAval(Rows(), kind), imbalance=1.5)
        [PlannedRows(most=1024, expected=1024), PlannedRows(most=1536, expected=1088), PlannedRows(most=1536, expected=1536)]
    """
    mean = aval.num_tokens * aval.top_k + aval.expected_padding
    first, last = min(mean, aval.max_rows), int(min(mean * imbalance, aval.max_rows))
    found: dict[PlannedRows, None] = {}
    while first <= last:
        end = rows_of_received(first, aval).most
        found.update(dict.fromkeys(rows_of_received(received, aval) for received in (first, min(end, last))))
        first = end + 1
    return list(found)
