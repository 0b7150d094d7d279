"""The unit in which a reader of a storage waits: the finest unit of rows, and parts of columns, that it and all writers
are made of."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir import taskflow as tf
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.row_modes import Ready


def read_unit(reader: tf.TileOp, accesses: Sequence[tf.Access], writers: Sequence[tf.TileOp]) -> str:
    """Returns the finest unit that the rows of the reader and of every writer consist of.

    "slot", "tile" (of tokens), "expert", "copies" (of an expert), "block" (of a weight's gradient) or "all"; "count" where
    the reader waits for all tasks of the writers.
    """
    modes, units = {a.rows for a in accesses}, {_write_unit(w, reader) for w in writers}
    if len(units) != 1 or len(modes) != 1:
        return "count"
    (mode,), (written,) = modes, units
    if written in ("copies", "block", "count"):
        return written
    if written == "once":
        return "all"
    reads_slots = mode is row_modes.OWN and reader.domain.is_slots
    if written == "fan":
        return "slot" if reads_slots else "count"
    if mode is row_modes.EXPERT and written == "slot":
        return "expert"
    if mode in (row_modes.OWN, row_modes.ENTRIES) and reader.domain.is_tiles and written in ("tile", "entries"):
        return "tile"
    return "slot" if reads_slots and written == "slot" else "all"


def _write_unit(writer: tf.TileOp, reader: tf.TileOp) -> str:
    """Returns the unit that each task of a writer makes ready for this reader."""
    if writer.primitive.is_blocking:
        return "once"
    ready = writer.operands[0].rows.ready
    if ready is not Ready.UNIT:
        return ready.value
    if writer.domain.sums_rows:
        are_same = reader.domain.is_copies and writer.domain.blocks == reader.domain.blocks
        return "block" if are_same else "count"
    if writer.domain.is_tiles:
        is_other = reader.domain.is_tiles and writer.domain.row_unit() != reader.domain.row_unit()
        return "tile_of_other" if is_other else "tile"
    return "slot" if writer.domain.is_slots else "count"


def part_cols(reader: tf.TileOp, accesses: Sequence[tf.Access], writers: Sequence[tf.TileOp], total: int) -> int | None:
    """Returns the columns of the parts that a reader may wait for one by one; 0 for any, None if it waits for all."""
    parts = min(_written_cols(w, total) for w in writers)
    fits = not parts or ({a.cols for a in accesses} == {col_modes.OWN} and reader.cols and parts < total
                         and not (parts % reader.tile_cols and reader.tile_cols % parts))
    return parts if fits else None


def _written_cols(writer: tf.TileOp, total: int) -> int:
    """Returns the columns of the parts in which rows return; `total` for whole rows, 0 for any tile."""
    if not writer.num_peers:
        return 0 if writer.cols else total
    return writer.tile_cols if writer.primitive.returns_rows and writer.cols and writer.signal == "tile" else total
