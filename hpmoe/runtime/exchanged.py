"""What ranks that are processes tell each other once a step: their numbers of tokens, and of rows for each expert."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from hpmoe.ir.avals import Aval
from hpmoe.ir.program import Program
from hpmoe.routing.routing import rows_by_counts
from hpmoe.runtime.planned_rows import PlannedRoute, PlannedRows, RouteKey, routes_of, rows_of_any, rows_of_received

ALL_TOKENS = -1  # of a rank without padding


class Exchanged:
    """What is known in a step of all ranks.

    Attributes:
        lengths: tokens of each rank; None where no rank has padding.
        counts: for each route by ids, int32 [ep, ep * num_local_experts], the rows of each rank for each expert.
    """

    def __init__(self) -> None:
        self.lengths: tuple[int, ...] | None = None
        self.counts: dict[RouteKey, np.ndarray] = {}

    def add(self, routes: Sequence[PlannedRoute], told: np.ndarray) -> None:
        """Takes in what each rank has told, [ep, 1 + columns]: its number of tokens, then the counts of these routes."""
        lengths, whole = told[:, 0], routes[0].aval.num_tokens
        padded = (lengths != ALL_TOKENS).any()
        self.lengths = tuple(np.where(lengths == ALL_TOKENS, whole, lengths).tolist()) if padded else None
        ends = np.cumsum([1, *map(num_columns, routes)])
        self.counts.update((route.key, told[:, a:b]) for route, a, b in zip(routes, ends, ends[1:], strict=False))

    def missing(self, program: Program) -> list[PlannedRoute]:
        """Routes of a program of which nothing is known yet."""
        return [route for route in routes_by_ids(program) if route.key not in self.counts]

    def of_program(self, program: Program) -> list[np.ndarray]:
        """The counts of each of its routes by ids, in order."""
        return [self.counts[route.key] for route in routes_of(program) if not route.aval.once]

    def planned_rows(self, program: Program) -> dict[RouteKey, PlannedRows]:
        """The rows that each of its routes is planned for, the same on all ranks."""
        rows = {}
        for route in routes_of(program):
            if route.aval.once:
                rows[route.key] = rows_of_any(route.aval)
            else:
                received = rows_by_counts(self.counts[route.key].sum(axis=0), route.aval.ep_size, route.aval.alignment)
                route.aval.check_received(received)
                rows[route.key] = rows_of_received(max(received), route.aval)
        return rows

    def as_array(self, program: Program) -> np.ndarray:
        """All that is known of a program's step, as `add` takes it."""
        routes = routes_by_ids(program)
        lengths = np.full(routes[0].aval.ep_size, ALL_TOKENS) if self.lengths is None else np.array(self.lengths)
        return np.column_stack([lengths, *(self.counts[route.key] for route in routes)]).astype(np.int32)


def routes_by_ids(program: Program) -> list[PlannedRoute]:
    """The routes of a program that ids decide, each once."""
    found: Mapping[RouteKey, PlannedRoute] = {route.key: route for route in routes_of(program) if not route.aval.once}
    return list(found.values())


def num_columns(route: PlannedRoute) -> int:
    """Experts and copies of all ranks."""
    return route.aval.ep_size * route.aval.num_local_experts


def exchanged_avals(routes: Iterable[PlannedRoute]) -> list[Aval]:
    """That of `Exchanged.as_array` for these routes; nothing where there are none."""
    routes = list(routes)
    return [Aval((routes[0].aval.ep_size, 1 + sum(map(num_columns, routes))), "int32")] if routes else []
