"""Folders of safetensors files, whose index says which array lies in which file; and arrays in memory in their place."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from hpmoe.nn.safetensors import Stored, open_file, without_repeats, write_file
from hpmoe.support.dtypes import dtype_name, numpy_dtype
from hpmoe.support.errors import check_argument

Array = Any  # of NumPy, MindSpore, or PyTorch, which need not be installed
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
FOLDER = "a folder of safetensors files, one such file, or a mapping of names to arrays"


def open_arrays(who: str, source: str | os.PathLike[str] | Mapping[str, Array], prefix: str) -> dict[str, Stored]:
    """Arrays whose names start with a prefix, by what follows it; only files that have some are opened.

    Raises:
        ArgumentError: the source is of another kind, files are missing or broken, or no name starts with the prefix.
    """
    if isinstance(source, Mapping):
        found: Mapping[str, Array] = {str(name): value for name, value in source.items()}
    else:
        check_argument(isinstance(source, (str, os.PathLike)), who, "folder_or_state", f"a {type(source).__name__}", FOLDER)
        found = _of_path(who, Path(source), prefix)
    some = ", ".join(list(found)[:3])
    named = {name[len(prefix):]: value for name, value in found.items() if name.startswith(prefix)}
    check_argument(bool(named), who, "prefix", f"{prefix!r}", f"what names of arrays start with, as in {some or 'none'}")
    return {name: _in_memory(who, name, x) for name, x in named.items()} if isinstance(source, Mapping) else named


def _of_path(who: str, path: Path, prefix: str) -> dict[str, Stored]:
    check_argument(path.exists(), who, "folder_or_state", f"{str(path)!r}, which is not there", FOLDER)
    if path.is_file():
        return open_file(who, path)
    if not (path / INDEX).is_file():
        return open_file(who, path / SINGLE)
    places = read_index(who, path)
    wanted = {name: file for name, file in places.items() if name.startswith(prefix)} or dict(list(places.items())[:1])
    files = {file: open_file(who, path / file) for file in sorted(set(wanted.values()))}
    lost = [f"{name} in {file}" for name, file in wanted.items() if name not in files[file]]
    check_argument(not lost, who, "folder_or_state", f"one without {', '.join(lost[:8])}", "one with what its index says")
    return {name: files[file][name] for name, file in wanted.items()}


def read_index(who: str, folder: Path) -> dict[str, str]:
    """Returns the file of each array; nothing if a folder has no index.

    Raises:
        ArgumentError: the index is malformed, names an array twice, or names a file outside of the folder.
    """
    path = folder / INDEX
    if not path.is_file():
        return {}
    try:
        places = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_repeats)["weight_map"]
        fault = "" if isinstance(places, dict) else "no weight_map"
        bad = [file for file in (places if not fault else {}).values() if not _is_file_name(file)]
        fault = f"the file name {bad[0]!r}" if bad else fault
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        places, fault = {}, f"{type(error).__name__}: {error}"
    check_argument(not fault, who, "folder_or_state", f"one with {path} of another format ({fault})",
                   'a folder whose index has a "weight_map" of arrays to files beside it')
    return places


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not set("/\\\0") & set(name)


def _in_memory(who: str, name: str, value: Array) -> Stored:
    """An array of NumPy, MindSpore or PyTorch."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.view(sys.modules["torch"].int16).numpy().view(numpy_dtype("bfloat16")) if "bfloat16" in str(
            value.dtype) else value.numpy()
    array = value.asnumpy() if hasattr(value, "asnumpy") else value
    check_argument(isinstance(array, np.ndarray), who, "folder_or_state", f"one whose {name} is a {type(value).__name__}",
                   "a mapping of names to arrays of NumPy, MindSpore or PyTorch")
    if str(array.dtype) == "bfloat16":
        array = array.view(np.uint16).view(numpy_dtype("bfloat16"))  # another library's dtype of that name
    return Stored(dtype_name(array.dtype), array.shape, lambda *ranges: array[tuple(slice(r.start, r.stop) for r in ranges)])


def add_file(who: str, folder: Path, prefix: str, arrays: Mapping[str, Stored]) -> None:
    """Writes arrays to a file of their own in a folder, and adds them to its index; without a prefix they are all it has.

    Raises:
        ArgumentError: the folder has some of them in another file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    places = read_index(who, folder)
    file = f"{prefix.rstrip('.')}.safetensors" if prefix else SINGLE
    elsewhere = sorted({places[name] for name in arrays if places.get(name, file) != file})
    elsewhere += [INDEX] * bool(places and not prefix) + [SINGLE] * bool(prefix and (folder / SINGLE).exists())
    check_argument(not elsewhere, who, "folder", f"one with a model in {', '.join(elsewhere)}", "another one")
    write_file(folder / file, arrays)
    if prefix:
        places = {name: other for name, other in places.items() if other != file} | dict.fromkeys(arrays, file)
        size = sum(_bytes_of_arrays(who, folder / other) for other in set(places.values()))
        text = json.dumps({"metadata": {"total_size": size}, "weight_map": dict(sorted(places.items()))}, indent=2)
        unfinished = folder / (INDEX + ".part")
        unfinished.write_text(text + "\n", encoding="utf-8")
        os.replace(unfinished, folder / INDEX)


def _bytes_of_arrays(who: str, path: Path) -> int:
    arrays = open_file(who, path).values()
    return sum(math.prod(array.shape) * numpy_dtype(array.dtype).itemsize for array in arrays)
