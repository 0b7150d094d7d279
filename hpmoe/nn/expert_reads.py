"""Reads arrays of a checkpoint into those of Parameters, one expert at a time; a shard reads only its bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpmoe.nn.formats import Entry, expert_shape, pairs
from hpmoe.nn.matching import Block, Place
from hpmoe.nn.safetensors import Stored
from hpmoe.support.dtypes import dtype_name, rounded
from hpmoe.support.errors import check_argument


def read_into(array: np.ndarray, stored: Stored, place: Place, block: Block) -> None:
    """Reads a checkpoint's array, or the held experts of one, into the array of a Parameter."""
    for at, values in pieces(stored, place, block):
        for mine, theirs in pairs(place.entry, array[at], values):
            mine[...] = rounded(theirs, dtype_name(array.dtype))
        del values, theirs  # before the next part is read


def pieces(stored: Stored, place: Place, block: Block) -> Iterator[tuple[int | slice, np.ndarray]]:
    """Yields (index in the Parameter, values) of a checkpoint's array, one of the held experts at a time."""
    entry = place.entry
    if not entry.of_experts:
        yield slice(None), stored.read()
        return
    shape = expert_shape(entry, block.kinds[entry.parameter][1])
    for e in place.experts if entry.is_apart else block.held:
        if entry.parameter == "experts.bias2" and block.shard:
            yield e - block.held.start, np.zeros(shape, np.float32)  # the first shard has the bias
            continue
        axis, parts = _shards(entry, shape, block)
        read = [_read(stored, entry, e, shape, axis, part) for part in parts]
        yield e - block.held.start, read[0] if len(read) == 1 else np.concatenate(read, axis)


def _read(stored: Stored, entry: Entry, e: int, shape: tuple[int, ...], axis: int, part: range) -> np.ndarray:
    """Returns a range of an axis of an expert's array."""
    inner = [range(size) for size in shape]
    inner[axis] = part
    if entry.is_apart:
        return stored.read(*inner)
    if entry.rows == "flat":
        return stored.read(range(e * shape[0] + inner[0].start, e * shape[0] + inner[0].stop), *inner[1:])
    return stored.read(range(e, e + 1), *inner)[0]


def _shards(entry: Entry, shape: tuple[int, ...], block: Block) -> tuple[int, list[range]]:
    """Returns the axis of an expert's array that shards divide, and the ranges of it that this shard has."""
    axis = 0 if (entry.parameter == "experts.weight2") != entry.transposed or len(shape) == 1 else 1
    if entry.parameter == "experts.bias2" or block.num_shards == 1:
        return axis, [range(shape[axis])]
    size = shape[axis] // (2 if entry.part == "both" else 1)
    width = size // block.num_shards
    first = block.shard * width
    return axis, [range(start + first, start + first + width) for start in range(0, shape[axis], size)]


def narrowed(who: str, name: str, values: np.ndarray, dtype: str) -> np.ndarray:
    """Returns values in a dtype; raises ArgumentError if one of them is too large for it."""
    narrow = rounded(values, dtype)
    is_lost = np.isinf(narrow.astype(np.float32)) & np.isfinite(values.astype(np.float64))
    check_argument(not is_lost.any(), who, "dtype", f"{dtype}, in which {name} overflows to infinity",
                   "a dtype that holds all values", "Write mindspore.bfloat16 or mindspore.float32.")
    return narrow
