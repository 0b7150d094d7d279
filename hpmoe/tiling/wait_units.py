"""How much a reader of a storage waits for at once: the finest unit of rows, and parts of columns, that it and all writers
are made of."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe import taskflow as tf


def read_unit(reader: tf.TileOp, accesses: Sequence[tf.Access], writers: Sequence[tf.TileOp]) -> str:
    """The finest unit that both the reader's rows and every writer's rows are made of.

    "slot", "tile" (of tokens), "expert", "copies" (of an expert), "block" (of a weight's gradient) or "all"; "count" where
    all tasks of the writers are waited for, whatever rows they have.
    """
    modes, units = {a.rows for a in accesses}, {_write_unit(w, reader) for w in writers}
    if len(units) != 1 or len(modes) != 1:
        return "count"
    (mode,), (written,) = modes, units
    if written in ("copies", "block", "count"):
        return written
    if written == "once":
        return "all"
    if written == "fan":
        return "slot" if mode == "own" and reader.domain.kind == "slots" else "count"
    if mode == "expert" and written == "slot":
        return "expert"
    if mode in ("own", "entries") and reader.domain.kind == "tiles" and written in ("tile", "entries"):
        return "tile"
    if mode == "own" and reader.domain.kind == "slots" and written == "slot":
        return "slot"
    return "all"


def _write_unit(writer: tf.TileOp, reader: tf.TileOp) -> str:
    """What the tasks of a writer make ready one after another, as far as this reader can tell them apart."""
    if writer.is_collective:
        return "once"
    if writer.moves_copies:
        return "copies"
    if writer.opcode in ("PUT_BACK", "FAN_OUT"):
        return {"PUT_BACK": "entries", "FAN_OUT": "fan"}[writer.opcode]
    if writer.domain.kind == "experts":
        are_same = reader.domain.kind == "copies" and writer.domain.blocks == reader.domain.blocks
        return "block" if are_same else "count"
    if writer.domain.kind == "tiles":
        return "tile" if reader.domain.kind != "tiles" or _same_tiles(writer.domain, reader.domain) else "tile_of_other"
    return "slot" if writer.domain.kind == "slots" else "count"


def _same_tiles(a: tf.Domain, b: tf.Domain) -> bool:
    return (a.num_rows, a.clipped) == (b.num_rows, b.clipped)


def part_cols(reader: tf.TileOp, accesses: Sequence[tf.Access], writers: Sequence[tf.TileOp], total: int) -> int | None:
    """Columns of the parts, of `total`, that a reader may wait for one by one; 0 for any, None where it waits for all."""
    parts = min(_written_cols(w, total) for w in writers)
    fits = not parts or ({a.cols for a in accesses} == {"own"} and reader.cols and parts < total
                         and not (parts % reader.tile_cols and reader.tile_cols % parts))
    return parts if fits else None


def _written_cols(writer: tf.TileOp, total: int) -> int:
    """The parts in which rows come back; all of a whole row; 0 for any tile."""
    if not writer.num_peers:
        return 0 if writer.cols else total
    return writer.tile_cols if writer.opcode == "PUT_BACK" and writer.cols and writer.signal == "tile" else total
