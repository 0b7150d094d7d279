"""Checkpoints of ranks that hold some of the experts each: a file for each rank, read again on any number of ranks.

Experts are read from the files of the groups that held them, values that all ranks hold from any file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from mindspore import Parameter, Tensor, nn

from hpmoe.balance.optimizer_states import states_of
from hpmoe.balance.places import experts_at
from hpmoe.machines.machine import Mesh
from hpmoe.nn.expert_shards import shard_experts, unshard_experts
from hpmoe.nn.grouped_mlp import GroupedMLP
from hpmoe.nn.moe_layer import MoELayer
from hpmoe.nn.shard_files import Place, ShardFile, find_files, new_save, write_file
from hpmoe.nn.top_k_router import TopKRouter
from hpmoe.ranks.world import World
from hpmoe.support.dtypes import name_of_dtype
from hpmoe.support.errors import check_argument, is_int
from hpmoe.support.keywords import suggests_keywords


class States:
    """The arrays of a Cell and its optimizer that are saved.

    Attributes:
        parameters: the arrays, by name.
        splits: `split` of `shard_experts` for each array of experts, by name.
        zeros: arrays that files of earlier versions lack, as they are there: no expert is masked, no call has counted.
        at: the expert at each place, for arrays of moved experts, by name; files have experts in order, and no places.
    """

    def __init__(self, who: str, cell: nn.Cell, optimizer: nn.Cell | None, mesh: Mesh | None = None):
        wanted = "a Cell with experts of hpmoe.nn"
        check_argument(isinstance(cell, nn.Cell), who, "cell", f"a {type(cell).__name__}", wanted)
        check_argument(optimizer is None or isinstance(optimizer, nn.Cell), who, "optimizer",
                       f"a {type(optimizer).__name__}", "an optimizer of MindSpore, or None")
        of_cell = {p.name: p for p in cell.get_parameters()}
        self.splits: dict[str, str] = {}
        self.at: dict[str, np.ndarray] = {}
        parts = [part for _, part in cell.cells_and_names()]
        added = [part.masked for part in parts if isinstance(part, TopKRouter)]
        added += [part.counted_tokens for part in parts if isinstance(part, MoELayer)]
        self.zeros = {p.name: np.zeros_like(p.asnumpy()) for p in added}
        for part in parts:
            if isinstance(part, GroupedMLP):
                given = ((getattr(part, name, None), split) for name, split in part.splits.items())
                splits = {p.name: split for p, split in given if isinstance(p, Parameter)}
                self.splits.update(splits)
                at = experts_at(who, of_cell.pop(part.places.name))
                self.at.update(dict.fromkeys(splits, at) if (at != np.arange(len(at))).any() else {})
        check_argument(bool(self.splits), who, "cell", f"a {type(cell).__name__} without them", wanted)
        of_optimizer = {} if optimizer is None else {p.name: p for p in optimizer.get_parameters() if p.name not in of_cell}
        trained = set() if optimizer is None else {p.name for p in optimizer.get_parameters()}
        for weight in [of_cell[name] for name in self.splits if name in trained]:
            for state in states_of(optimizer, [weight]):
                self.at.update({state.name: self.at[weight.name]} if weight.name in self.at else {})
                is_whole = state.shape == weight.shape
                check_argument(is_whole or not isinstance(mesh, World) or mesh.num_ranks == 1, who, "optimizer",
                               f"one whose {state.name} is {state.shape} for {weight.name} {weight.shape}",
                               "one whose states have the shape of their weight, if ranks are processes")
                if is_whole:
                    self.splits[state.name] = self.splits[weight.name]
        self.parameters: Mapping[str, Parameter] = {**of_cell, **of_optimizer}

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the arrays to save, with experts in logical order."""
        return {name: p.asnumpy() if name not in self.at else p.asnumpy()[np.argsort(self.at[name])]
                for name, p in self.parameters.items()}

    def put(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Sets what was saved, each expert at its place, in place, so that compiled graphs follow."""
        for name, array in arrays.items():
            array = array if name not in self.at else array[self.at[name]]
            self.parameters[name].copy_(Tensor(array, self.parameters[name].dtype))


@suggests_keywords
def save_shards(folder: str | Path, cell: nn.Cell, mesh: Mesh | None = None, optimizer: nn.Cell | None = None, *,
                copies: int = 0) -> None:
    """Writes a rank's part of a Cell with experts, and of its optimizer, to a file of its own.

    All ranks call it, and the files of all are there when it returns. Of ranks that hold the same experts those of the first
    group write. `load_shards` reads them on any number of ranks. A folder has the files of one save: give each its own.
    Where ranks are processes, tokens that a MoELayer has counted are those of the rank whose file is read. On another number
    of ranks these are not the tokens of all: save after `update_expert_bias`, not between the calls of a step.

    Args:
        folder: path of the folder, created if it does not exist.
        cell: a Cell that contains an `hpmoe.nn.MoELayer` or `GroupedMLP`.
        mesh: `hpmoe.world()` if the cell has it. A Mesh, whose ranks are virtual, or None writes one file with all experts.
        optimizer: optimizer whose state is saved, too; None for none.
        copies: number of following ranks whose experts this rank also writes, in case the files of these ranks are lost.

    Raises:
        ArgumentError: an argument has a wrong type or value, or the folder cannot be written to.
        LaunchError: another rank has failed or ended.

    Example:
        >>> import tempfile, hpmoe
        >>> experts = hpmoe.nn.GroupedMLP(hidden_size=8, moe_ffn_hidden_size=4, num_moe_experts=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     hpmoe.nn.save_shards(folder, experts)
        ...     print(hpmoe.nn.load_shards(folder, experts))
        []
    """
    who = "hpmoe.nn.save_shards"
    check_argument(mesh is None or isinstance(mesh, Mesh), who, "mesh", repr(mesh), "an hpmoe.Mesh, hpmoe.world(), or None")
    place, states = Place.of(mesh), States(who, cell, optimizer, mesh)
    others = place.mesh.num_ranks - 1
    check_argument(is_int(copies, 0, others), who, "copies", repr(copies), f"an int in 0..{others}, of the other ranks")
    folder = Path(folder)
    if not isinstance(mesh, World) or mesh.everyone is None or mesh.link is None:
        write_file(who, folder, place, new_save(), place.rank, states.arrays())
        return
    writes = mesh.rank < mesh.num_ranks
    with mesh.everyone.calling(who):
        save = mesh.everyone.meet("the name of the save", new_save().encode())[0].decode()
        if writes:
            write_file(who, folder, place, save, place.rank, states.arrays())
        mesh.everyone.meet("files are written", b"")
    if copies:
        _write_copies(who, folder, mesh, place, save, states, copies)


def _write_copies(who: str, folder: Path, mesh: World, place: Place, save: str, states: States, copies: int) -> None:
    """Writes the experts of the ranks after this one; one array of all ranks is in memory at a time."""
    link, ranks = mesh.link, place.mesh.num_ranks
    assert link is not None and mesh.everyone is not None
    held = [(place.rank + i) % ranks for i in range(1, copies + 1)]
    of_ranks: dict[int, dict[str, np.ndarray]] = {rank: {} for rank in held}
    with link.calling(who):
        for name in states.splits:
            mine = states.parameters[name].asnumpy()
            told = link.meet(f"{name}:{list(mine.shape)}", np.ascontiguousarray(mine).tobytes())
            for rank in held:
                of_ranks[rank][name] = np.frombuffer(told[rank], mine.dtype).reshape(mine.shape)
    with mesh.everyone.calling(who):
        for rank, arrays in of_ranks.items() if mesh.rank < mesh.num_ranks else ():
            write_file(who, folder, place, save, rank, arrays)
        mesh.everyone.meet("copies are written", b"")


@suggests_keywords
def load_shards(folder: str | Path, cell: nn.Cell, mesh: Mesh | None = None, optimizer: nn.Cell | None = None, *,
                missing: str = "error") -> list[int]:
    """Reads a rank's part from the files that `save_shards` wrote on any number of ranks.

    Experts go from the groups that held them to those that do now, whole or in shards, with the optimizer's state of each;
    values that all ranks hold come from one file. Nothing is set before all of it is found. Training then goes on with the
    numbers that it had: bit for bit on as many ranks, else up to the order in which gradients of what all hold are summed.

    Args:
        folder: path of the folder of one save.
        cell, mesh, optimizer: as for `save_shards`; names, shapes of whole weights and dtypes must be those of the save.
        missing: what to do if the file of a rank and its copies are missing: "error" raises; "zeros" sets the weights of its
            experts to zero and returns their ids. Pass these to `MoELayer.mask_experts`, so that no token chooses them.

    Returns:
        List of the ids of experts that have no weights, the same on all ranks; empty if no file is missing.

    Raises:
        ArgumentError: a file is missing, duplicated, broken, of another save, or not written by save_shards; names, shapes,
            dtypes or numbers of experts differ from the cell's; or another save replaces files during the call.
    """
    who = "hpmoe.nn.load_shards"
    check_argument(mesh is None or isinstance(mesh, Mesh), who, "mesh", repr(mesh), "an hpmoe.Mesh, hpmoe.world(), or None")
    check_argument(missing in ("error", "zeros"), who, "missing", repr(missing), "\"error\" or \"zeros\"")
    place, states, files = Place.of(mesh), States(who, cell, optimizer, mesh), find_files(who, Path(folder))
    lost = [rank for rank in range(next(iter(files.values())).num_ranks) if rank not in files]
    check_argument(not lost or missing == "zeros", who, "folder", f"{folder}, without files of ranks {_listed(lost)}",
                   "a folder with a file, or a copy, of each rank",
                   "missing=\"zeros\" loads the others, and says which experts are lost.")
    own_first = sorted(files.items(), key=lambda item: item[0] != place.rank)  # which has the tokens that this rank counted
    first = next((f for _, f in own_first if not f.is_copy), None)
    check_argument(first is not None, who, "folder", f"{folder}, which has only copies",
                   "a folder with at least one rank's own file")
    assert first is not None
    is_whole = optimizer is not None  # else the optimizer's state may be in the files, and is left there
    arrays = first.arrays(who, lambda name: name not in states.splits and (is_whole or name in states.parameters))
    reader = _Experts(who, states, files, place)
    arrays.update(reader.arrays())
    arrays = {**states.zeros, **arrays}
    _check_arrays(who, first.path, arrays, states)
    states.put(arrays)
    return reader.lost(lost)


class _Experts:
    """Reads the experts that are held here from the files of the groups that held them."""

    def __init__(self, who: str, states: States, files: Mapping[int, ShardFile], place: Place):
        self.who, self.states, self.files, self.place = who, states, files, place
        self.saved = next(iter(files.values()))
        self.seen: dict[str, tuple[str, str]] = {}  # of each array the first file's name, and what it is there
        weight = next(iter(states.splits))
        self.num_local = states.parameters[weight].shape[0]
        num_experts = self.num_local * place.mesh.ep
        self.per_group, rest = divmod(num_experts, self.saved.ep_size)
        check_argument(rest == 0, who, "cell", f"of {num_experts} experts",
                       f"of a multiple of {self.saved.ep_size}, the groups that saved them")

    def arrays(self) -> dict[str, np.ndarray]:
        """Returns the part of each of the experts' states that is held here."""
        mine, parts = self.place.experts(self.num_local), {name: [] for name in self.states.splits}
        for group in range(mine.start // self.per_group, -(-mine.stop // self.per_group)):
            first = group * self.per_group
            held = slice(max(mine.start - first, 0), min(mine.stop - first, self.per_group))
            for name, array in self._of_group(group).items():
                parts[name].append(array[held])
        shard, mesh = self.place.rank % self.place.mesh.tp, Mesh(1, tp=self.place.mesh.tp)
        return {name: np.ascontiguousarray(shard_experts(np.concatenate(found), mesh, self.states.splits[name])[shard])
                for name, found in parts.items()}

    def _of_group(self, group: int) -> dict[str, np.ndarray]:
        """Returns the whole experts of a group, zeros if a shard is lost."""
        tp_size = self.saved.tp_size
        files = [self.files.get(group * tp_size + s) for s in range(tp_size)]
        whole = Mesh(1, tp=self.place.mesh.tp)
        if None in files:
            return {name: np.zeros_like(unshard_experts(np.stack([self._like(name)] * whole.tp), whole, split))
                    for name, split in self.states.splits.items()}
        shards = [self._of_file(file) for file in files if file is not None]
        return {name: unshard_experts(np.stack([s[name] for s in shards]), Mesh(1, tp=tp_size), split)
                for name, split in self.states.splits.items()}

    def _of_file(self, file: ShardFile) -> dict[str, np.ndarray]:
        """Returns the experts' arrays of a file; checks that they are like those of the files before."""
        arrays = file.arrays(self.who, lambda name: name in self.states.splits)
        for name in self.states.splits:
            array = arrays.get(name)
            found = "missing" if array is None else _described(array)
            check_argument(array is not None and array.shape[:1] == (self.per_group,), self.who, "cell",
                           f"a layer with {self.per_group} experts of {name} in each of {self.saved.ep_size} groups",
                           f"the layer that {file.path} was saved from, where {name} is {found}")
            first, like = self.seen.setdefault(name, (file.path.name, found))
            check_argument(found == like, self.who, "folder",
                           f"{file.path.parent}, where {name} is {found} in {file.path.name} and {like} in {first}",
                           "a folder with files of one layer")
        return arrays

    def _like(self, name: str) -> np.ndarray:
        """Returns zeros for the experts of a group, in the shape that experts have here."""
        parameter = self.states.parameters[name]
        return np.zeros((self.per_group, *parameter.shape[1:]), parameter.asnumpy().dtype)

    def lost(self, ranks: Sequence[int]) -> list[int]:
        groups = sorted({rank // self.saved.tp_size for rank in ranks})
        return [e for group in groups for e in range(group * self.per_group, (group + 1) * self.per_group)]


def _check_arrays(who: str, path: Path, arrays: Mapping[str, np.ndarray], states: States) -> None:
    """Raises ArgumentError unless the arrays are those of the parameters, by name, shape and dtype."""
    wanted = {name: _described(p) for name, p in states.parameters.items()}
    found = {name: _described(a) for name, a in arrays.items()}
    wrong = [f"{name} is {found.get(name, 'missing')} there and {wanted.get(name, 'missing')} here"
             for name in sorted({*wanted, *found}) if wanted.get(name) != found.get(name)]
    check_argument(not wrong, who, "cell", f"unlike the layer saved in {path.name}",
                   "a layer with the saved names, shapes and dtypes", f"What differs: {'; '.join(wrong[:8])}.")


def _described(array: np.ndarray | Parameter) -> str:
    return f"{tuple(array.shape)} of {name_of_dtype(array.dtype)}"


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
