"""Warm-up: the plans that calls of some shapes will ask for, made before there are arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpmoe.ir.avals import RouteAval
from hpmoe.runtime.one_call import Traced
from hpmoe.runtime.planned_rows import PlannedRows, RouteKey, routes_of, rows_of_received
from hpmoe.runtime.running import Runner
from hpmoe.support.errors import check_argument, is_number
from hpmoe.support.mindspore_private import taking_gradient
from hpmoe.support.trees import PyTree

IMBALANCE = 1.5


def warm_up(runner: Runner, args: Sequence[PyTree], kwargs: Mapping[str, PyTree], imbalance: float) -> None:
    """Makes the plans of a Runner's function for arguments like `args`; see StagedFunction.warm_up."""
    check_argument(is_number(imbalance) and imbalance >= 1, "warm_up", "imbalance", repr(imbalance), "a number from 1 on")
    traced, arrays, rows = runner.planned(args, kwargs)
    for buckets in _buckets(runner, traced, arrays is not None, rows, imbalance):
        runner.plans.plan_all(traced.program, buckets)
    with taking_gradient():
        traced, arrays, rows = runner.planned(args, kwargs)
    if not traced.linearized.differentiable:
        return
    for buckets in _buckets(runner, traced, arrays is not None, rows, imbalance):
        runner.plans.plan_all(traced.linearized.forward, buckets)
        runner.plans.plan_all(traced.linearized.backward, buckets)


def _buckets(runner: Runner, traced: Traced, is_given: bool, rows: Mapping[RouteKey, PlannedRows],
             imbalance: float) -> Iterator[dict[RouteKey, PlannedRows]]:
    """The planned rows of all routes: those of the given ids, and of others from balanced to imbalanced ones."""
    choices = {route.key: [rows[route.key]] if is_given and route.ids is not None or runner.plans.staged.is_on_device
               else rows_between(route.aval, imbalance) for route in routes_of(traced.program)}
    for i in range(max(map(len, choices.values()), default=1)):
        yield {key: found[min(i, len(found) - 1)] for key, found in choices.items()}


def rows_between(aval: RouteAval, imbalance: float) -> list[PlannedRows]:
    """What calls are planned for by whose ids the rank with the most rows has the mean to `imbalance` times the mean.

    Example:
        >>> from hpmoe.ir.avals import Rows
        >>> rows_between(RouteAval(Rows(), num_tokens=512, top_k=2, num_experts=8, ep_size=4), imbalance=1.5)
        [PlannedRows(most=1024, likely=1024), PlannedRows(most=1536, likely=1088), PlannedRows(most=1536, likely=1536)]
    """
    mean = aval.num_tokens * aval.top_k + aval.likely_padding
    first, last = min(mean, aval.max_rows), int(min(mean * imbalance, aval.max_rows))
    found: dict[PlannedRows, None] = {}
    while first <= last:
        end = rows_of_received(first, aval).most
        found.update(dict.fromkeys(rows_of_received(received, aval) for received in (first, min(end, last))))
        first = end + 1
    return list(found)
