"""Domains: what the row coordinate of a task counts."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Protocol

import numpy as np

from hpmoe.routing.route_plan import RoutePlan
from hpmoe.routing.routing import Routing
from hpmoe.routing.slots import Slots as RowSlots
from hpmoe.support.known import known


class Layout(Protocol):
    """Places of the rows of a routing; see `hpmoe.ir.layout.Layout`."""

    routings: list[Routing]
    slots: list[list[RowSlots]]

    def limit(self, rank: int, domain: Domain) -> int: ...
    def tile(self, rank: int, domain: Domain, index: int) -> slice: ...
    def slot(self, rank: int, route: int, index: int) -> slice: ...
    def expert(self, rank: int, route: int, index: int) -> slice: ...


@dataclasses.dataclass(frozen=True)
class Domain:
    """The row units of a tile operation: each unit, such as a slot or a tile of rows, has one task.

    Attributes:
        size: number of units.
        route: index of the route, or -1.
        number: code of the class in a kernel's image.
        blocks: number of units of one expert or one replica.
        num_rows: number of rows that are tiled or summed, or number of experts or replicas.
        clipped: whether tiles after the last token of a rank have no task; only for tiles.
        of_tokens: whether a sum excludes padding rows, those after the last token of a rank.
        first: the first unit.
        first_expert, height: the first expert of the units, and rows of its matrix; only in some subclasses.
        by_expert: whether units are experts of a peer; only for completion flags.
        is_slots, is_tiles, is_copies: whether units are slots of received rows, static tiles of rows, or blocks of replicas.
        in_blocks: whether units are blocks of rows of matrices.
        sums_rows: whether a task sums the rows of its unit.
    """

    size: int
    route: int = -1
    number: ClassVar[int] = 0
    blocks: ClassVar[int] = 1
    num_rows: ClassVar[int] = 0
    clipped: ClassVar[bool] = False
    of_tokens: ClassVar[bool] = False
    first: ClassVar[int] = 0
    first_expert: ClassVar[int] = 0
    height: ClassVar[int] = 0
    by_expert: ClassVar[bool] = False
    is_slots: ClassVar[bool] = False
    is_tiles: ClassVar[bool] = False
    is_copies: ClassVar[bool] = False
    in_blocks: ClassVar[bool] = False
    sums_rows: ClassVar[bool] = False

    def rows(self, layout: Layout, rank: int, unit: int) -> slice:
        """Returns the rows that the task of unit number `unit` computes on a rank, for the routing of `layout`."""
        return slice(0, 1)

    def rows_of_units(self, layout: Layout, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns each unit's number of rows on a rank, and the index of their expert in the operation."""
        return np.ones(self.size), np.zeros(self.size, int)

    def units_there(self, plan: RoutePlan | None, tile_rows: int) -> tuple[int, str]:
        """Returns the number of units by a RoutePlan, and the reason."""
        return 1, "it runs once"

    def row_unit(self) -> tuple | None:
        """Returns a key, equal if tasks of two operations are about the same rows one by one; None for tasks without rows.
        """
        return None

    def unit_text(self, unit: int, tile_rows: int) -> str:
        """Returns a unit as printed."""
        return ""

    def words(self) -> tuple[int, int, int, int, int]:
        """Returns kind, route, num_rows, clipped and blocks, as in a kernel's image."""
        return self.number, self.route, self.num_rows, int(self.clipped), self.blocks

    @property
    def summed_words(self) -> tuple[int, int, int]:
        """Words in a kernel's image: rows summed without a route, whether padding is left out, and the first expert."""
        return 0, 0, 0

    @property
    def clipped_rows(self) -> int:
        """Token capacity of a rank if tasks touch only the rows of its tokens; 0 if they touch all rows."""
        return self.num_rows if self.clipped else 0


@dataclasses.dataclass(frozen=True)
class Once(Domain):
    """Domain of a single task for all rows."""


@dataclasses.dataclass(frozen=True)
class CompletionFlags(Domain):
    """One task for each peer, or for each of the experts there (`by_expert`)."""

    by_expert: bool = dataclasses.field(default=False, kw_only=True)

    @property
    def first(self) -> int:
        return 0 if self.by_expert else -1

    def units_there(self, plan: RoutePlan | None, tile_rows: int) -> tuple[int, str]:
        if not self.by_expert:
            return super().units_there(plan, tile_rows)
        experts = known(plan).num_local_experts
        return experts, f"a rank has {experts} experts to tell of"

    def unit_text(self, unit: int, tile_rows: int) -> str:
        return f"expert {unit}" if unit >= 0 else ""


@dataclasses.dataclass(frozen=True)
class Tiles(Domain):
    """Static tiles of `num_rows` rows; if `clipped`, tiles past a rank's number of tokens have no task."""

    num_rows: int = dataclasses.field(default=0, kw_only=True)
    clipped: bool = dataclasses.field(default=False, kw_only=True)
    number: ClassVar[int] = 1
    is_tiles: ClassVar[bool] = True

    def rows(self, layout: Layout, rank: int, unit: int) -> slice:
        return layout.tile(rank, self, unit)

    def rows_of_units(self, layout: Layout, rank: int) -> tuple[np.ndarray, np.ndarray]:
        tiles = [self.rows(layout, rank, i) for i in range(self.size)]
        return np.array([t.stop - t.start for t in tiles], float), np.zeros(self.size, int)

    def units_there(self, plan: RoutePlan | None, tile_rows: int) -> tuple[int, str]:
        most = -(-self.num_rows // tile_rows)
        return most, f"its {self.num_rows} rows are {most} tiles of {tile_rows}"

    def row_unit(self) -> tuple | None:
        return "tile", self.num_rows, self.clipped

    def unit_text(self, unit: int, tile_rows: int) -> str:
        start = unit * tile_rows
        return f"rows {start}:{min(start + tile_rows, self.num_rows)}"


@dataclasses.dataclass(frozen=True)
class Slots(Domain):
    """Slots of the rows that a route brings; which expert and how many rows each has, the routing decides."""

    number: ClassVar[int] = 2
    is_slots: ClassVar[bool] = True

    def rows(self, layout: Layout, rank: int, unit: int) -> slice:
        return layout.slot(rank, self.route, unit)

    def rows_of_units(self, layout: Layout, rank: int) -> tuple[np.ndarray, np.ndarray]:
        slots = layout.slots[self.route][rank]
        return slots.rows.astype(float), slots.expert

    def units_there(self, plan: RoutePlan | None, tile_rows: int) -> tuple[int, str]:
        slots = known(plan).num_slots
        return slots, f"its route has {slots} slots"

    def row_unit(self) -> tuple | None:
        return "slot", self.route

    def unit_text(self, unit: int, tile_rows: int) -> str:
        return f"slot {unit}"


@dataclasses.dataclass(frozen=True)
class Blocks(Domain):
    """Blocks of rows of matrices, `blocks` for each."""

    blocks: int = dataclasses.field(default=1, kw_only=True)
    in_blocks: ClassVar[bool] = True


@dataclasses.dataclass(frozen=True)
class Summed(Blocks):
    """Sums over rows, in `blocks` units for each matrix that is made."""

    number: ClassVar[int] = 3
    sums_rows: ClassVar[bool] = True
    SUMMED_WORDS: ClassVar[tuple[str, ...]] = ("rows", "of_tokens", "first_expert")  # names of summed_words

    def unit_text(self, unit: int, tile_rows: int) -> str:
        expert, block = divmod(unit, self.blocks)
        return f"expert {expert}" + (f" block {block}" if self.blocks > 1 else "")


@dataclasses.dataclass(frozen=True)
class Experts(Summed):
    """Sums over the received rows of `count` local experts, from `first_expert` on, in `blocks` units each."""

    count: int = dataclasses.field(kw_only=True)
    first_expert: int = dataclasses.field(default=0, kw_only=True)

    @property
    def num_rows(self) -> int:
        return self.count

    @property
    def first(self) -> int:
        return self.first_expert * self.blocks

    @property
    def summed_words(self) -> tuple[int, int, int]:
        return 0, 0, self.first_expert

    def rows(self, layout: Layout, rank: int, unit: int) -> slice:
        return layout.expert(rank, self.route, unit // self.blocks)

    def rows_of_units(self, layout: Layout, rank: int) -> tuple[np.ndarray, np.ndarray]:
        rows = layout.routings[self.route].tokens_per_expert(rank)[self.first_expert:self.first_expert + self.count]
        return np.repeat(rows, self.blocks).astype(float), np.repeat(np.arange(len(rows)), self.blocks)


@dataclasses.dataclass(frozen=True)
class AllRows(Summed):
    """One sum over `height` rows, or with `of_tokens` over the rows of tokens only, in `blocks` units."""

    height: int = dataclasses.field(kw_only=True)
    of_tokens: bool = dataclasses.field(default=False, kw_only=True)
    num_rows: ClassVar[int] = 1

    def rows(self, layout: Layout, rank: int, unit: int) -> slice:
        return slice(0, layout.limit(rank, Tiles(0, num_rows=self.height, clipped=self.of_tokens)))

    def rows_of_units(self, layout: Layout, rank: int) -> tuple[np.ndarray, np.ndarray]:
        return np.repeat(float(self.height), self.blocks), np.zeros(self.blocks, int)

    @property
    def summed_words(self) -> tuple[int, int, int]:
        return self.height, int(self.of_tokens), 0

    @property
    def clipped_rows(self) -> int:
        return self.height if self.of_tokens else 0


@dataclasses.dataclass(frozen=True)
class Copies(Blocks):
    """Blocks of the matrices of `count` copies of experts, which go to other ranks or come back."""

    count: int = dataclasses.field(kw_only=True)
    number: ClassVar[int] = 4
    is_copies: ClassVar[bool] = True

    @property
    def num_rows(self) -> int:
        return self.count
