"""Folders of safetensors files with an index of the file of each array, and arrays in memory."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from hpmoe.nn.model_types import MODELS, REFUSED
from hpmoe.nn.safetensors import OTHERS, SAVE_KEY, Stored, open_file, without_repeats, write_file
from hpmoe.support.dtypes import dtype_name, numpy_dtype
from hpmoe.support.errors import check_argument

Array = Any  # of NumPy, MindSpore, or PyTorch, which need not be installed
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
BESIDE = ("shared_mlp.",)  # what some models have beside a block, with the same parent
FP8 = "float8_e4m3fn"
FOLDER = "a folder of safetensors files, one such file, or a mapping of names to arrays"


def open_arrays(who: str, source: str | os.PathLike[str] | Mapping[str, Array], prefix: str) -> dict[str, Stored]:
    """Returns arrays whose names start with a prefix, by what follows it; opens only files that have some.

    Arrays beside the block, of BESIDE, follow "^".
    """
    parent = prefix[:-1].rpartition(".")[0]
    beside = [f"{parent}.{name}" if parent else name for name in BESIDE] if prefix else []

    def short(name: str) -> str | None:
        if name.startswith(prefix):
            return name[len(prefix):]
        return next(("^" + BESIDE[i] + name[len(start):] for i, start in enumerate(beside) if name.startswith(start)), None)

    if isinstance(source, Mapping):
        found: Mapping[str, Array] = {str(name): value for name, value in source.items()}
    else:
        check_argument(isinstance(source, (str, os.PathLike)), who, "folder_or_state", f"a {type(source).__name__}", FOLDER)
        found = _of_path(who, Path(source), lambda name: short(name) is not None)
    named = {key: value for name, value in found.items() if (key := short(name)) is not None}
    some = ", ".join(list(found)[:3])
    check_argument(any(not name.startswith("^") for name in named), who, "prefix", f"{prefix!r}",
                   f"what names of arrays start with, as in {some or 'none'}")
    return {name: _in_memory(who, name, x) for name, x in named.items()} if isinstance(source, Mapping) else named


def _of_path(who: str, path: Path, is_wanted: Callable[[str], bool]) -> dict[str, Stored]:
    """Returns the arrays at a path whose names `is_wanted` accepts; a few others for an error's text if it accepts none."""
    check_argument(path.exists(), who, "folder_or_state", f"{str(path)!r}, which is not there", FOLDER)
    if path.is_file():
        return open_file(who, path)
    if not (path / INDEX).is_file():
        return open_file(who, path / SINGLE)
    places, save = read_index(who, path)
    wanted = {name: file for name, file in places.items() if is_wanted(name)} or dict(list(places.items())[:1])
    files = {file: open_file(who, path / file, save) for file in sorted(set(wanted.values()))}
    lost = [f"{name} in {file}" for name, file in wanted.items() if name not in files[file]]
    check_argument(not lost, who, "folder_or_state", f"one without {', '.join(lost[:8])}", "one with what its index says")
    return {name: files[file][name] for name, file in wanted.items()}


def type_of_folder(source: object) -> str | None:
    """Returns the model_type of the config.json in a folder; None if the source has none, or a type without experts."""
    path = Path(source) / "config.json" if isinstance(source, (str, os.PathLike)) else None
    try:
        fields = json.loads(path.read_text(encoding="utf-8")) if path is not None and path.is_file() else {}
    except (ValueError, RecursionError, OSError):
        return None
    for part in ("thinker_config", "text_config"):
        inner = fields.get(part) if isinstance(fields, dict) else None
        fields = {"model_type": fields.get("model_type"), **inner} if isinstance(inner, dict) else fields
    found = fields.get("model_type") if isinstance(fields, dict) else None
    return found if isinstance(found, str) and found.removesuffix("_text") in {*MODELS, *REFUSED} else None


def names_of_folder(who: str, folder: str | os.PathLike[str]) -> dict[str, str]:
    """Returns the dtypes of all arrays of a folder, by name."""
    return {name: array.dtype for name, array in _of_path(who, Path(folder), lambda name: True).items()}


def read_index(who: str, folder: Path) -> tuple[dict[str, str], str | None]:
    """Returns the file of each array, none if a folder has no index, and the stamp of the save that wrote them."""
    path = folder / INDEX
    if not path.is_file():
        return {}, None
    index, fault = {}, ""
    try:
        index = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=without_repeats)
        places = index["weight_map"]
        bad = [file for file in places.values() if not _is_file_name(file)]
        fault = f"the file name {bad[0]!r}" if bad else ""
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        places, fault = {}, f"{type(error).__name__}: {error}"
    check_argument(not fault, who, "folder_or_state", f"one with {path} of another format ({fault})",
                   'a folder whose index has a "weight_map" of arrays to files beside it')
    metadata = index.get("metadata")
    save = metadata.get(SAVE_KEY) if isinstance(metadata, dict) else None
    return places, save if isinstance(save, str) else None


def _is_file_name(name: object) -> bool:
    return isinstance(name, str) and name not in ("", ".", "..") and not set("/\\\0") & set(name)


def _in_memory(who: str, name: str, value: Array) -> Stored:
    """Returns an array of NumPy, MindSpore or PyTorch as a Stored."""
    kind = str(getattr(value, "dtype", "")).removeprefix("torch.")
    if hasattr(value, "detach"):
        bits = {"bfloat16": "int16", FP8: "uint8"}.get(kind)
        value = value.detach().cpu()
        value = (value if bits is None else value.view(getattr(sys.modules["torch"], bits))).numpy()
    array = value.asnumpy() if hasattr(value, "asnumpy") else value
    check_argument(isinstance(array, np.ndarray), who, "folder_or_state", f"one whose {name} is a {type(value).__name__}",
                   "a mapping of names to arrays of NumPy, MindSpore or PyTorch")
    if kind in ("bfloat16", FP8):  # of PyTorch as bits, of other libraries by the dtype of that name
        array = array.view(np.uint8) if kind == FP8 else array.view(np.uint16).view(numpy_dtype("bfloat16"))
    codes = {name: code for code, name in OTHERS.items() if not code.startswith("F8")}
    dtype = "F8_E4M3" if kind == FP8 else dtype_name(array.dtype)
    return Stored(codes.get(dtype, dtype), array.shape, lambda *ranges: array[_slices(ranges)])


def _slices(ranges: Iterable[range]) -> tuple[slice, ...]:
    return tuple(slice(r.start, r.stop) for r in ranges)


def add_files(who: str, folder: Path, groups: Mapping[str, Mapping[str, Stored]], base: Path | None) -> None:
    """Writes arrays, by prefix, to files of their own in a folder, and then adds them to its index.

    Other arrays and files of the folder `base` are copied. Without a prefix and a base the arrays are the folder's only
    file. Processes that save into a folder wait for each other.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        places, save = read_index(who, folder)
        new = {name for arrays in groups.values() for name in arrays}
        is_empty = not places and not (folder / SINGLE).exists()
        check_argument(base is None or is_empty, who, "folder", "one with a model", "an empty folder beside base")
        is_single = list(groups) == [""] and base is None
        others = [SINGLE] * (not is_single and (folder / SINGLE).exists()) + [INDEX] * (is_single and bool(places))
        if is_single and (folder / SINGLE).is_file():
            others += [SINGLE] * bool(open_file(who, folder / SINGLE).keys() - new)
        kept = places.keys() - new
        if new & places.keys() and kept:
            others += sorted({places[name] for name in new & places.keys()})
        check_argument(not others, who, "folder", f"one with a model in {', '.join(others)}", "another one",
                       "Save all its layers in one call, as a mapping of prefixes to layers." if kept else "")
        if is_single:
            write_file(folder / SINGLE, groups[""])
            return
        stamp = save if kept and save else uuid4().hex[:12]
        _write_all(who, folder, groups, base, {name: places[name] for name in kept}, stamp)
        for file in {places[name] for name in new & places.keys()}:
            (folder / file).unlink(missing_ok=True)


def _write_all(who: str, folder: Path, groups: Mapping[str, Mapping[str, Stored]], base: Path | None, places: dict[str, str],
               save: str) -> None:
    """Writes files under new names, and the index last; removes them if that fails."""
    new = {name for arrays in groups.values() for name in arrays}
    if base is not None:
        rest: dict[str, dict[str, Stored]] = {}
        files = read_index(who, base)[0]
        for name, array in _of_path(who, base, lambda name: True).items():
            if name not in new:
                rest.setdefault(Path(files.get(name, SINGLE)).stem, {})[name] = array
        groups = {**groups, **rest}
        for path in base.iterdir():
            if path.is_file() and path.suffix != ".safetensors" and path.name != INDEX:
                shutil.copyfile(path, folder / path.name)
    written = {prefix: folder / f"{prefix.rstrip('.') or 'model'}.{save}.safetensors" for prefix in groups}
    unfinished = folder / (INDEX + ".part")
    with contextlib.ExitStack() as failing:
        for path in (unfinished, *(path for path in written.values() if not path.exists())):
            failing.callback(path.unlink, missing_ok=True)
        for prefix, arrays in groups.items():
            write_file(written[prefix], arrays, save)
            places |= dict.fromkeys(arrays, written[prefix].name)
        size = sum(_bytes_of_arrays(who, folder / file) for file in set(places.values()))
        metadata = {"total_size": size, SAVE_KEY: save}
        text = json.dumps({"metadata": metadata, "weight_map": dict(sorted(places.items()))}, indent=2)
        with open(unfinished, "w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, folder / INDEX)
        failing.pop_all()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, which another process, or thread, waits for."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _bytes_of_arrays(who: str, path: Path) -> int:
    return sum(math.prod(array.shape) * array.itemsize for array in open_file(who, path).values())
