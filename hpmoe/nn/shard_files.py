"""Files of ranks: MindSpore checkpoints of a rank's arrays, with a header that says whose they are."""

from __future__ import annotations

import contextlib
import dataclasses
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor

from hpmoe.machines.machine import Mesh
from hpmoe.ranks.world import World
from hpmoe.support.errors import ArgumentError, check_argument
from hpmoe.support.keywords import suggests_keywords

HEADER = ("hpmoe_save", "hpmoe_ep_size", "hpmoe_tp_size", "hpmoe_rank", "hpmoe_is_copy")


@dataclasses.dataclass(frozen=True)
class ShardFile:
    """A file of `save_shards` with the values of rank `rank` of a mesh of ep_size * tp_size ranks.

    `save` is the id of the save that wrote the file. `is_copy` is True if another rank wrote it, as a copy.
    """

    path: Path
    save: str
    ep_size: int
    tp_size: int
    rank: int
    is_copy: bool

    @property
    def num_ranks(self) -> int:
        return self.ep_size * self.tp_size

    def arrays(self, who: str, wanted: Callable[[str], bool]) -> dict[str, np.ndarray]:
        """Returns the arrays with wanted names; raises ArgumentError if another save has replaced the file."""
        found = _loaded(self.path, lambda name: name in HEADER or wanted(name), crc_check=False)
        check_argument(str(found.get(HEADER[0])) == self.save, who, "folder",
                       f"{self.path.parent}, where {self.path.name} was replaced or removed while it was read",
                       "a folder that no other process writes to during the call")
        return {name: parameter.asnumpy() for name, parameter in found.items() if name not in HEADER}


@dataclasses.dataclass(frozen=True)
class Place:
    """Part of the experts that this process holds: those of its rank, or all without ranks."""

    mesh: Mesh
    rank: int

    @staticmethod
    def of(mesh: Mesh | None) -> Place:
        if isinstance(mesh, World):
            return Place(Mesh(mesh.ep, tp=mesh.tp), mesh.rank % mesh.num_ranks)
        return Place(Mesh(1), 0)

    def experts(self, num_local: int) -> range:
        """Returns the experts held, of which there are `num_local`."""
        group = self.rank // self.mesh.tp
        return range(group * num_local, (group + 1) * num_local)


def new_save() -> str:
    """Returns the name of a save; later ones are greater."""
    return f"{time.time_ns():020}.{uuid.uuid4().hex}"


def write_file(who: str, folder: Path, place: Place, save: str, rank: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes a file under another name first, so that no file is ever half of one, and removes what earlier writes left."""
    is_copy = rank != place.rank
    on = f".copy_on_{place.rank:05}" if is_copy else ""
    path = folder / f"rank_{rank:05}_of_{place.mesh.num_ranks:05}{on}.ckpt"
    unfinished = folder / f".{path.stem}.{save}.unfinished.ckpt"
    header = (save, place.mesh.ep, place.mesh.tp, rank, is_copy)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_unfinished(path)  # of a process that was killed
        ms.save_checkpoint([{"name": name, "data": Tensor(array)} for name, array in arrays.items()], str(unfinished),
                           append_dict=dict(zip(HEADER, header, strict=True)), crc_check=True)
        unfinished.replace(path)
    except OSError as error:
        check_argument(False, who, "folder", f"{folder}, where {path.name} cannot be written ({error.strerror or error})",
                       "a folder that can be written to, with room for it")
    finally:
        _remove_unfinished(path)


def _remove_unfinished(path: Path) -> None:
    for left in path.parent.glob(f".{path.stem}.*.unfinished.*"):
        left.unlink(missing_ok=True)


def find_files(who: str, folder: Path) -> dict[int, ShardFile]:
    """Returns the file of each rank of the save in a folder; a copy if its own is missing."""
    paths = sorted(p for p in folder.glob("*.ckpt") if not p.name.startswith("."))
    check_argument(bool(paths), who, "folder", str(folder), "a folder with the files of save_shards")
    files: dict[int, ShardFile] = {}
    first = _header(who, paths[0])
    for file in (_header(who, path) for path in paths):
        is_alike = (file.save, file.ep_size, file.tp_size) == (first.save, first.ep_size, first.tp_size)
        check_argument(is_alike, who, "folder",
                       f"{folder}, and {file.path.name} in it is of another save than {first.path.name}",
                       "a folder whose files one save wrote", "Save each step to a folder of its own.")
        other = files.get(file.rank)
        check_argument(other is None or other.is_copy or file.is_copy, who, "folder",
                       f"{folder}, where {file.path.name} and {getattr(other, 'path', file.path).name} are both of rank "
                       f"{file.rank}", "a folder with one file of each rank")
        if other is None or other.is_copy:
            files[file.rank] = file
    return files


@suggests_keywords
def latest_shards(folder: str | Path) -> Path | None:
    """Returns the subfolder of `folder` with the latest whole save of `save_shards`, None if there is none.

    A save is whole if it has an unbroken file, or a copy, of each rank. Call it before training, on every rank, with a
    folder that all hosts share.

    Raises:
        ArgumentError: `folder` is not a path.

    Example:
        >>> import tempfile, hpmoe
        >>> experts = hpmoe.nn.GroupedMLP(hidden_size=8, moe_ffn_hidden_size=4, num_moe_experts=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     for step in (5, 10):
        ...         hpmoe.nn.save_shards(f"{folder}/step_{step}", experts)
        ...     print(hpmoe.nn.latest_shards(folder).name)
        step_10
    """
    who = "hpmoe.nn.latest_shards"
    check_argument(isinstance(folder, str | Path), who, "folder", f"a {type(folder).__name__}", "a str or a Path")
    saves = []
    for each in {path.parent for path in Path(folder).glob("*/rank_*.ckpt")}:
        with contextlib.suppress(ArgumentError):
            first = _header(who, min(each.glob("rank_*.ckpt")), crc_check=False)
            saves.append((first.save if "." in first.save else "", each))  # names of earlier versions have no time
    return next((each for _, each in sorted(saves, reverse=True) if _is_whole(who, each)), None)


def _is_whole(who: str, folder: Path) -> bool:
    try:
        files = find_files(who, folder)
    except ArgumentError:
        return False
    return len(files) == next(iter(files.values())).num_ranks and not all(file.is_copy for file in files.values())


def _header(who: str, path: Path, crc_check: bool = True) -> ShardFile:
    found = _loaded(path, lambda name: name in HEADER, crc_check)
    check_argument(set(HEADER) <= set(found), who, "folder",
                   f"{path.parent}, and {path.name} in it is cut off, or no file of save_shards",
                   "a folder that only save_shards writes to", f"Remove {path.name}, or copy it again.")
    save, *numbers = (found[name] for name in HEADER)
    ep_size, tp_size, rank, is_copy = (int(n.asnumpy()) if isinstance(n, Tensor) else int(n) for n in numbers)
    return ShardFile(path, str(save), ep_size, tp_size, rank, bool(is_copy))


def _loaded(path: Path, wanted: Callable[[str], bool], crc_check: bool) -> dict[str, Parameter]:
    """Returns the arrays of a file with wanted names; none if the file is broken, or gone."""
    try:
        return ms.load_checkpoint(str(path), choice_func=wanted, crc_check=crc_check)
    except ValueError:
        return {}
