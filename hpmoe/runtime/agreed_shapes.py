"""Shapes of a call on ranks that are processes: equal on all ranks, but a rank without tokens may have no rows."""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence

from hpmoe import tracing
from hpmoe.ir.avals import Aval
from hpmoe.runtime.arguments import Arguments
from hpmoe.support.errors import check_argument
from hpmoe.support.trees import Function, PyTree

Size = tuple[int, ...] | int | None  # of a leaf of the arguments: the shape of an array, or an int
Sizes = list[Size]


def as_told(given: Arguments) -> bytes:
    """The sizes of the arguments of this rank, as other ranks read them."""
    sizes: Sizes = [tuple(x.shape) if is_array else x if type(x) is int else None
                    for x, is_array in zip(given.leaves, given.is_array, strict=True)]
    return repr(sizes).encode()


def agreed(function: Function, given: Arguments, told: Sequence[bytes], own: int, first: int) -> Arguments:
    """The arguments that this rank computes with: its own, or for a rank without tokens arguments of the others' sizes.

    Args:
        function: the function that is called, for the names of its arguments.
        given: the arguments of this rank.
        told: `as_told` of each rank.
        own, first: the index of this rank in `told`, and the number of the first rank.

    Raises:
        ArgumentError: two ranks have arrays of different shapes, of which none is empty.
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
    return Aval(size, str(x.dtype).lower()) if isinstance(size, tuple) else x if size is None else size
