"""Messages between ranks that are processes: shapes of a call; tokens, and rows for each expert, of a step."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Sequence

import numpy as np

from hpmoe import tracing
from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import Program
from hpmoe.runtime.arguments import Arguments
from hpmoe.runtime.planned_rows import PlannedRoute, Received, RouteKey, routes_of
from hpmoe.support.errors import check_argument
from hpmoe.support.trees import Function, PyTree

ALL_TOKENS = -1  # of a rank without padding
Size = tuple[int, ...] | int | None  # of a leaf of the arguments: the shape of an array, or an int
Sizes = list[Size]


class Exchanged:
    """Counts that all ranks exchange in a step.

    Attributes:
        lengths: tokens of each rank; None where no rank has padding.
        counts: for each route by ids, int32 [ep, ep * num_local_experts], the rows of each rank for each expert.
    """

    def __init__(self) -> None:
        self.lengths: tuple[int, ...] | None = None
        self.counts: dict[RouteKey, np.ndarray] = {}

    def add(self, routes: Sequence[PlannedRoute], told: np.ndarray) -> None:
        """Adds the columns that ranks have exchanged, [ep, 1 + columns]: numbers of tokens, then counts of these routes."""
        lengths, whole = told[:, 0], routes[0].aval.num_tokens
        padded = (lengths != ALL_TOKENS).any()
        self.lengths = tuple(np.where(lengths == ALL_TOKENS, whole, lengths).tolist()) if padded else None
        ends = np.cumsum([1, *map(num_columns, routes)])
        self.counts.update((route.key, told[:, a:b]) for route, a, b in zip(routes, ends, ends[1:], strict=False))

    def missing(self, program: Program) -> list[PlannedRoute]:
        """Returns the routes of a program whose counts are not known yet."""
        return [route for route in routes_by_ids(program) if route.key not in self.counts]

    def of_program(self, program: Program) -> list[np.ndarray]:
        """Returns the counts of each of a program's routes by ids, in order."""
        return [self.counts[route.key] for route in routes_of(program) if not route.aval.kind.is_of_tokens]

    def received(self, program: Program) -> Received:
        """Returns, for each route of a program, the rows that each rank receives; None for a route to ranks."""
        return [None if route.aval.kind.is_of_tokens else route.aval.kind.by_ids.received_of(
                    self.counts[route.key].sum(axis=0)) for route in routes_of(program)]

    def as_array(self, program: Program) -> np.ndarray:
        """Returns all that is known of a program's step, as `add` takes it."""
        routes = routes_by_ids(program)
        lengths = np.full(routes[0].aval.ep_size, ALL_TOKENS) if self.lengths is None else np.array(self.lengths)
        return np.column_stack([lengths, *(self.counts[route.key] for route in routes)]).astype(np.int32)


def routes_by_ids(program: Program) -> list[PlannedRoute]:
    """Returns the routes of a program that ids decide, each once."""
    by_ids = (route for route in routes_of(program) if not route.aval.kind.is_of_tokens)
    return list({route.key: route for route in by_ids}.values())


def num_columns(route: PlannedRoute) -> int:
    """Returns the number of experts and replicas of all ranks."""
    return route.aval.ep_size * route.aval.num_local_experts


def exchanged_avals(routes: Iterable[PlannedRoute]) -> list[ShapeDtypeStruct]:
    """Returns the aval of `Exchanged.as_array` for these routes; empty without routes."""
    routes = list(routes)
    return [ShapeDtypeStruct((routes[0].aval.ep_size, 1 + sum(map(num_columns, routes))), "int32")] if routes else []


def as_told(given: Arguments) -> bytes:
    """Returns the sizes of the arguments of this rank, as other ranks read them."""
    sizes: Sizes = [tuple(x.shape) if is_array else x if type(x) is int else None
                    for x, is_array in zip(given.leaves, given.is_array, strict=True)]
    return repr(sizes).encode()


def agreed(function: Function, given: Arguments, told: Sequence[bytes], own: int, first: int) -> Arguments:
    """Returns the arguments that this rank computes with: its own, or for a rank without tokens those of others' sizes.

    `told` is `as_told` of each rank, `own` the index of this rank in it, `first` the number of the first rank.
    """
    ranks: list[Sizes] = [ast.literal_eval(data.decode()) for data in told]
    if len(set(map(len, ranks))) > 1:
        return given  # other arguments: the ranks are at different calls
    fullest = max(range(len(ranks)), key=lambda rank: (_elements(ranks[rank]), -rank))
    for rank, sizes in enumerate(ranks):
        for leaf, (shape, whole) in enumerate(zip(sizes, ranks[fullest], strict=True)):
            if _differ(shape, whole) and not _is_empty(shape, whole):
                one, other = (f"{ranks[r][leaf]} on rank {first + r}" for r in sorted((rank, fullest)))
                name = given.array_names(function)[sum(given.is_array[:leaf])]
                check_argument(False, tracing.function_name(function), name, f"of shape {one} and {other}",
                               "of one shape on all ranks", "Pad the rank that has fewer rows, and pass num_tokens=, the "
                               "number of its real rows." if _differ_in_rows(shape, whole) else "")
    if not any(map(_differ, ranks[own], ranks[fullest])):
        return given
    return given._replace(leaves=[_of_size(x, size) for x, size in zip(given.leaves, ranks[fullest], strict=True)])


def _elements(sizes: Sizes) -> int:
    return sum(math.prod(shape) for shape in sizes if isinstance(shape, tuple))


def _differ(shape: Size, whole: Size) -> bool:
    """Returns True if two ranks have arrays of different shapes."""
    return isinstance(shape, tuple) and isinstance(whole, tuple) and shape != whole


def _differ_in_rows(shape: Size, whole: Size) -> bool:
    if not isinstance(shape, tuple) or not isinstance(whole, tuple):
        return False
    return len(shape) == len(whole) > 0 and shape[1:] == whole[1:]


def _is_empty(shape: Size, whole: Size) -> bool:
    """Returns True if the first array has no rows and equals the second in its other dimensions."""
    return _differ_in_rows(shape, whole) and isinstance(shape, tuple) and shape[0] == 0


def _of_size(x: PyTree, size: Size) -> PyTree:
    return ShapeDtypeStruct(size, str(x.dtype).lower()) if isinstance(size, tuple) else x if size is None else size
