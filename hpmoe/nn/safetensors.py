"""Files of the safetensors format: the length of a table, the table in JSON, then the bytes of the arrays."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import safetensors

from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import ArgumentError, check_argument

DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
# Others are read and written as they are, by their code: as integers, or as bytes.
OTHERS = {"I64": "int64", "U64": "uint64", "C64": "complex64", "I32": "int32", "U32": "uint32", "I16": "int16",
          "U16": "uint16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
          "F8_E4M3": "uint8", "F8_E5M2": "uint8", "F8_E8M0": "uint8"}
CODES = {name: code for code, name in DTYPES.items()} | {code: code for code in OTHERS}
SAVE_KEY = "hpmoe_save"  # in the metadata of files and of their index: which save wrote them


class Stored(NamedTuple):
    """An array of a file or in memory.

    `read(*ranges)` returns the part within a range of each leading axis, and reads no other bytes. `dtype` is a name of
    NumPy, or the code of the file if it is not one of DTYPES.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[..., np.ndarray]

    @property
    def itemsize(self) -> int:
        return element_dtype(self.dtype).itemsize


def element_dtype(name: str) -> np.dtype:
    """Returns the dtype of NumPy in which elements of a Stored's dtype are read; of elements below a byte, bytes."""
    return numpy_dtype(OTHERS.get(name, name) if name in OTHERS or name in CODES else "uint8")


def open_file(who: str, path: Path, save: str | None = None) -> dict[str, Stored]:
    """Returns the arrays of a file, by name; reads the table of the file, and no values.

    The safetensors library validates the table: offsets, sizes, dtypes, and that the arrays fill the file. `save` is the
    id of the save in the index of the folder, which the file must have, too; None accepts any. Errors begin with `who`.
    """
    check_argument(path.is_file(), who, "folder_or_state", f"one without the file {path}", "a folder with all its files")
    try:
        with safetensors.safe_open(path, "np"):
            pass
        with open(path, "rb") as file:
            length = int.from_bytes(file.read(8), "little")
            table = json.loads(file.read(length), object_pairs_hook=without_repeats)
    except (safetensors.SafetensorError, OSError, ValueError) as error:
        raise ArgumentError(f"{who}: the file {path} is cut off, or no safetensors file ({error}); copy it again") from error
    found = table.get("__metadata__", {}).get(SAVE_KEY)
    check_argument(save is None or found == save, who, "folder_or_state",
                   f"a folder whose {path.name} has {f'save id {found}' if found else 'no save id'}, and its index of "
                   f"save id {save}", "a folder whose files one save wrote",
                   f"Save the model again into an empty folder, or copy the whole save to {path.parent} again.")
    return {name: _stored(who, path, entry, 8 + length) for name, entry in table.items() if name != "__metadata__"}


def without_repeats(pairs: list[tuple[str, object]]) -> Fields:
    """Returns a JSON object, for `json.loads`; raises ValueError if it has a name twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"{next(name for i, (name, _) in enumerate(pairs) if name in dict(pairs[:i]))!r} is there twice")
    return found


def _stored(who: str, path: Path, entry: Fields, start: int) -> Stored:
    begin, end = entry["data_offsets"]
    shape, code = tuple(entry["shape"]), str(entry["dtype"])
    dtype: str = DTYPES.get(code, code)
    size = (end - begin) // max(math.prod(shape), 1)

    def read(*ranges: range) -> np.ndarray:
        found, parts = [], runs(shape, ranges)
        for first, count in parts:
            data = np.fromfile(path, np.uint8, count * size, offset=start + begin + first * size)
            check_argument(len(data) == count * size, who, "folder_or_state",
                           f"one whose {path.name} was cut off while it was read",
                           "a folder that nothing writes to meanwhile")
            found.append(data)
        data = found[0] if len(found) == 1 else np.concatenate([np.empty(0, np.uint8), *found])
        return data.view(element_dtype(dtype)).reshape((*map(len, ranges), *shape[len(ranges):]))
    return Stored(dtype, shape, read)


def runs(shape: Sequence[int], ranges: Sequence[range]) -> list[tuple[int, int]]:
    """Returns (first element, number of elements) of each contiguous run of the part of an array within ranges.

    Example:
        >>> runs((4, 6), (range(1, 3),)), runs((4, 6), (range(1, 3), range(0, 2)))
        ([(6, 12)], [(6, 2), (12, 2)])
    """
    partial = [axis for axis, held in enumerate(ranges) if len(held) < shape[axis]]
    axis = partial[-1] if partial else 0
    strides = [math.prod(shape[i + 1:]) for i in range(len(shape))]
    held = ranges[axis] if ranges else range(shape[0] if shape else 1)
    count = len(held) * (strides[axis] if shape else 1)
    outer = itertools.product(*ranges[:axis])
    return [(sum(i * stride for i, stride in zip(at, strides, strict=False)) + held.start * (strides[axis] if shape else 1),
             count) for at in outer]


def in_file_order(arrays: Mapping[str, Stored]) -> list[str]:
    """Returns names in the order in which a file has their arrays, that of the safetensors library."""
    return sorted(arrays, key=lambda name: (list(CODES).index(arrays[name].dtype), name))


def write_file(path: Path, arrays: Mapping[str, Stored], save: str | None = None) -> None:
    """Writes arrays one after another, each read once; the file appears when it is whole."""
    order = in_file_order(arrays)
    stamp = {} if save is None else {SAVE_KEY: save}
    table: Fields = {"__metadata__": {"format": "pt", **stamp}}  # transformers reads no file without the format
    end = 0
    for name in order:
        dtype, shape, _ = arrays[name]
        begin, end = end, end + element_dtype(dtype).itemsize * math.prod(shape)
        table[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(path.name + ".part")
    try:
        with open(unfinished, "wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for name in order:
                file.write(np.ascontiguousarray(arrays[name].read()).view(np.uint8).data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
