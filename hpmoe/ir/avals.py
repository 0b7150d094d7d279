"""Abstract values: what is known of an array or of a route before there are any numbers."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, cast

from hpmoe.routing.capacity import check_rank_capacity
from hpmoe.routing.kinds.kind import OfKind, RouteKind
from hpmoe.support.dtypes import TENSORS, name_of_dtype
from hpmoe.support.errors import check_argument, is_int, is_name
from hpmoe.support.keywords import suggests_keywords

MOST_DIMENSIONS = 32  # of an array of NumPy
MOST_ELEMENTS = 2**59  # whose bytes 63 bits count, as MindSpore does without looking

SHORT_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int32": "i32", "int64": "i64",
               "bool": "bool", "int8": "i8", "uint8": "u8"}


class Rows:
    """The number of rows a rank receives through one route: a dimension known only when the routing is."""

    def __repr__(self) -> str:
        return "R"


@suggests_keywords
@dataclasses.dataclass(frozen=True)
class ShapeDtypeStruct:
    """Shape and dtype of an array; a dimension is an int or a `Rows`.

    Args:
        shape: a sequence of dimensions; or a tensor, an array or a ShapeDtypeStruct, whose shape is used.
        dtype: name of a dtype, or a dtype of MindSpore or NumPy. If shape is an array, the array's dtype by default.

    Raises:
        ArgumentError: a dimension is not an int or too large, there are too many dimensions, or dtype is no dtype.

    Example:
        >>> import mindspore as ms
        >>> ShapeDtypeStruct((4, 8), "float32"), ShapeDtypeStruct((4, 8),
        ...                                                       ms.bfloat16), ShapeDtypeStruct(ms.Tensor([1, 2], ms.int32))
        (f32[4,8], bf16[4,8], i32[2])
    """

    shape: tuple[int | Rows, ...]
    dtype: str = ""

    def __post_init__(self) -> None:
        given: Any = self.shape  # or any value that a user passes
        if hasattr(given, "shape") and hasattr(given, "dtype"):
            object.__setattr__(self, "dtype", self.dtype or given.dtype)
            object.__setattr__(self, "shape", tuple(given.shape))
        if not isinstance(self.dtype, str):
            object.__setattr__(self, "dtype", name_of_dtype(self.dtype) or self.dtype)
        is_listed = isinstance(self.shape, (tuple, list))
        is_shape = is_listed and all(isinstance(d, Rows) or is_int(d, 0, 2**63) for d in self.shape)
        check_argument(is_shape, "hpmoe.ShapeDtypeStruct", "shape", repr(self.shape),
                       "a tuple of ints that are not negative")
        check_argument(len(self.shape) <= MOST_DIMENSIONS, "hpmoe.ShapeDtypeStruct", "shape",
                       f"of {len(self.shape)} dimensions",
                       f"of at most {MOST_DIMENSIONS}")
        most = math.prod(max(1, int(d)) for d in self.shape if not isinstance(d, Rows))  # sizes of an empty one count, too
        check_argument(most <= MOST_ELEMENTS, "hpmoe.ShapeDtypeStruct", "shape", repr(self.shape),
                       "of at most 2**59 elements")
        check_argument(is_name(self.dtype, TENSORS), "hpmoe.ShapeDtypeStruct", "dtype", repr(self.dtype),
                       "a name such as \"float32\", or a dtype of MindSpore or NumPy")
        object.__setattr__(self, "shape", tuple(d if isinstance(d, Rows) else int(d) for d in self.shape))

    def __repr__(self) -> str:
        return f"{SHORT_DTYPE.get(self.dtype, self.dtype)}[{','.join(map(repr, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class RouteAval(OfKind):
    """The abstract value of a route: where every (token, choice) entry goes.

    Attributes:
        rows: the symbolic number of received rows.
        kind: the RouteKind by which rows are routed.
        node_size: number of consecutive ranks of a node, for a route by ids; or None.
        rank_capacity_factor: capacity of a rank as a multiple of its rows in a balanced routing; None for all rows.
    """

    rows: Rows
    kind: RouteKind
    node_size: int | None = None
    rank_capacity_factor: float | None = None

    @property
    def shape(self) -> tuple[int | Rows, ...]:
        """Shape of the table of received rows."""
        return (self.rows,)

    @property
    def dtype(self) -> str:
        return "route"

    @functools.cached_property
    def max_rows(self) -> int:
        """The most rows that a rank receives under any routing, at most the limit that rank_capacity_factor sets."""
        return self.kind.most_rows(self._row_capacity)

    @property
    def _row_capacity(self) -> int | None:
        factor = self.rank_capacity_factor
        return None if factor is None else math.ceil(min(self.num_tokens * self.top_k * factor, MOST_ELEMENTS))

    def check_received(self, received: Sequence[int]) -> None:
        """Raises ArgumentError if an element of `received`, the rows of each rank, exceeds the limit."""
        if self.rank_capacity_factor is not None:
            check_rank_capacity(received, self.max_rows, self.num_tokens * self.top_k, self.rank_capacity_factor)

    @property
    def expected_padding(self) -> int:
        """Padding rows that a rank is expected to receive: half of the most padding that its experts can need."""
        return self.num_local_experts * (self.alignment - 1) // 2

    @property
    def expected_rows(self) -> int:
        """Rows that a rank is expected to receive if the routing is unknown.

        These are `sampled_rows` with a rank_capacity_factor, `balanced_rows` if experts have a capacity or there are more
        than two ranks, and otherwise `max_rows`.
        """
        if self.rank_capacity_factor is not None:
            return min(self.max_rows, self.sampled_rows)
        return min(self.max_rows, self.balanced_rows) if self.capacity or self.ep_size > 2 else self.max_rows

    @property
    def balanced_rows(self) -> int:
        """Rows that each rank receives if all ranks receive the same number."""
        return self.num_tokens * self.top_k + self.expected_padding

    @functools.cached_property
    def sampled_rows(self) -> int:
        """Rows that a rank rarely exceeds under uniformly random experts: the mean plus two standard deviations."""
        return drawn(self.balanced_rows)

    def __repr__(self) -> str:
        return "route"


def drawn(rows: int) -> int:
    """Returns `rows`, the mean received rows of a rank under uniformly random experts, plus two standard deviations."""
    return rows + int(2 * rows ** 0.5)


def as_route(aval: ShapeDtypeStruct | RouteAval) -> RouteAval:
    """Returns the aval as a RouteAval."""
    if not isinstance(aval, RouteAval):  # as of a taskflow or program whose parts do not fit together
        raise TypeError(f"{aval} is no route")
    return aval


def fixed(shape: tuple[int | Rows, ...]) -> tuple[int, ...]:
    """Returns a shape, none of whose dimensions is the number of received rows."""
    return cast("tuple[int, ...]", shape)
