"""Protocols for NumPy bodies and size checks: a task's frame, its operation, and its buffers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from hpmoe.routing.relayed_rows import RelayedRows
from hpmoe.routing.routing import Routing
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.domains import Domain
from hpmoe.tile_ops.params import Params
from hpmoe.tile_ops.row_modes import RowMode

P = TypeVar("P", bound=Params, covariant=True)


class Touched(Protocol):
    """Access to an operand; see `hpmoe.ir.tile_op.Access`."""

    @property
    def buffer(self) -> int: ...
    @property
    def rows(self) -> RowMode: ...
    @property
    def cols(self) -> ColMode: ...
    @property
    def offset(self) -> int: ...


class Stored(Protocol):
    """An array of one rank; see `hpmoe.ir.tile_op.Buffer`."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def cols(self) -> int: ...
    @property
    def num_rows(self) -> int | None: ...
    @property
    def rows_per_expert(self) -> int: ...


class Move(NamedTuple):
    """Copy of `rows` rows of matrices, from row `source` to row `target` of rank `peer`, for its local expert `expert`."""

    peer: int
    expert: int
    source: int
    target: int
    rows: int


Buffers = Sequence[Stored]
# What a task has done: the rows it made ready, the rows or entries that it sent to each rank, or the matrices it moved.
Moved = int | dict[int, np.ndarray] | dict[int, int] | list[Move]


class Operation(Protocol[P]):
    """Attributes of `hpmoe.ir.tile_op.TileOp` that tile_ops read, with `params` of class P."""

    @property
    def domain(self) -> Domain: ...
    @property
    def operands(self) -> Sequence[Touched]: ...
    @property
    def num_outputs(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def params(self) -> P: ...
    def width(self, i: int, buffers: Buffers) -> int: ...


class Frame(Protocol[P]):
    """Argument of a task's body; see `hpmoe.interpreters.task_bodies.TaskFrame`."""

    rank: int
    ranks: range
    unit: int
    rows: slice

    @property
    def op(self) -> Operation[P]: ...
    @property
    def params(self) -> P: ...
    @property
    def routing(self) -> Routing: ...
    @property
    def peers(self) -> list[int]: ...
    def operands(self) -> list[Any]: ...  # arrays, and numbers where they may stand in their place
    def array(self, i: int, rank: int | None = None) -> np.ndarray: ...
    def whole(self, i: int, rank: int | None = None) -> np.ndarray: ...
    def kept(self) -> np.ndarray: ...
    @property
    def sent(self) -> Routing | RelayedRows: ...
    def relayed(self, route: int) -> RelayedRows: ...
    def rows_sent(self, source: int, owner: int) -> np.ndarray: ...
    def moves(self) -> list[Move]: ...
    def columns(self, i: int) -> slice: ...
    def own(self, i: int) -> slice: ...


Body = Callable[[Frame[P]], Moved]
