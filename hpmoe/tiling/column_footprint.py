"""The columns of a storage that the tasks of an operation touch, each alone and all together."""

from __future__ import annotations

import dataclasses

from hpmoe.support.intervals import Interval, covers, joined, meet


@dataclasses.dataclass(frozen=True)
class ColumnFootprint:
    """The columns that the tasks of an operation touch: `fixed`, sorted and joined, by each; and by that of a tile of `cols`
    columns, `tile_cols` wide, those of its tile, from each of the `offsets` on."""

    fixed: list[Interval]
    offsets: list[int]
    cols: int
    tile_cols: int

    @property
    def num_tiles(self) -> int:
        return -(-self.cols // self.tile_cols) if self.offsets else 1

    @property
    def together(self) -> list[Interval]:
        """Sorted and joined, those of all tiles."""
        return joined([*self.fixed, *((o, o + self.cols) for o in self.offsets)])

    def of_tile(self, k: int) -> list[Interval]:
        first, last = k * self.tile_cols, min((k + 1) * self.tile_cols, self.cols)
        return joined([*self.fixed, *((o + first, o + last) for o in self.offsets)])

    def each_covers(self, columns: list[Interval]) -> bool:
        """Returns True if every tile covers `columns`.

        At most as many tiles as offsets can cover columns that are not fixed, as tiles of one offset are disjoint.
        """
        if covers(self.fixed, columns):
            return True
        return self.num_tiles <= len(self.offsets) and all(covers(self.of_tile(k), columns) for k in range(self.num_tiles))

    def each_meets(self, columns: list[Interval]) -> bool:
        """Returns True if every tile overlaps `columns`."""
        if meet(self.fixed, columns):
            return True
        starts = ((max(a - o, 0), min(b - o, self.cols)) for o in self.offsets for a, b in columns)
        tiles = joined((a // self.tile_cols, (b - 1) // self.tile_cols + 1) for a, b in starts if a < b)
        return covers(tiles, [(0, self.num_tiles)])
