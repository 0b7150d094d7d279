"""Files of the safetensors format: the length of a table, the table in JSON, then the bytes of the arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import ArgumentError, check_argument
from hpmoe.support.kept_files import Fields

DTYPES = {"F64": "float64", "F32": "float32", "BF16": "bfloat16", "F16": "float16"}
CODES = {name: code for code, name in DTYPES.items()}


class Stored(NamedTuple):
    """An array that lies somewhere: `read(start, stop)` brings rows start:stop of its first axis, and no more than these.

    `dtype` is a name as NumPy has it, or the file's own code where it is none of DTYPES.
    """

    dtype: str
    shape: tuple[int, ...]
    read: Callable[[int, int], np.ndarray]


def open_file(who: str, path: Path) -> dict[str, Stored]:
    """The arrays of a file, by name; its table is read, and no values.

    Raises:
        ArgumentError: the file is not there, is of another format, or is shorter than its table says.
    """
    check_argument(path.is_file(), who, "folder_or_state", f"one without the file {path}", "a folder with all its files")
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= size else b""
    try:
        table = json.loads(text)
        table.pop("__metadata__", None)
        return {name: _stored(path, entry, 8 + length, size) for name, entry in table.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"{who}: {path} is cut off, or no safetensors file: {error}") from error


def _stored(path: Path, entry: Fields, start: int, size: int) -> Stored:
    begin, end = entry["data_offsets"]
    shape, code = tuple(entry["shape"]), str(entry["dtype"])
    dtype = DTYPES.get(code, code)
    if start + end > size:
        raise ValueError(f"an array ends at byte {start + end} of {size}")
    row = (end - begin) // max(shape[0], 1) if shape else end - begin
    if dtype in CODES and numpy_dtype(dtype).itemsize * int(np.prod(shape)) != end - begin:
        raise ValueError(f"{dtype}{list(shape)} has {end - begin} bytes")

    def read(first: int, last: int) -> np.ndarray:
        data = np.fromfile(path, np.uint8, (last - first) * row, offset=start + begin + first * row)
        return data.view(numpy_dtype(dtype)).reshape(last - first, *shape[1:])
    return Stored(dtype, shape, read)


def write_file(path: Path, arrays: Mapping[str, Stored]) -> None:
    """Writes arrays one after another, as the safetensors library orders them; the file appears when it is whole."""
    order = sorted(arrays, key=lambda name: (list(CODES).index(arrays[name].dtype), name))
    table: Fields = {"__metadata__": {"format": "pt"}}  # transformers reads no file without
    end = 0
    for name in order:
        dtype, shape, _ = arrays[name]
        begin, end = end, end + numpy_dtype(dtype).itemsize * int(np.prod(shape))
        table[name] = {"dtype": CODES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    unfinished = path.with_name(path.name + ".part")
    with open(unfinished, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(np.ascontiguousarray(arrays[name].read(0, arrays[name].shape[0])).view(np.uint8).data)
    os.replace(unfinished, path)
