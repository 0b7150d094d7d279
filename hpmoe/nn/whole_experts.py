"""Whole experts of a layer, one at a time, gathered from the processes that hold them; and files that one process writes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import numpy as np
from mindspore import Parameter, nn

from hpmoe.balance.places import experts_at
from hpmoe.machines.machine import Mesh
from hpmoe.nn.expert_shards import unshard_experts
from hpmoe.nn.safetensors import Stored, in_file_order
from hpmoe.nn.shard_files import Place
from hpmoe.ranks.world import World
from hpmoe.support.errors import check_argument


class WholeExperts:
    """Reads the Parameters of a layer's experts, in order of experts; `shapes` are those of all experts, [E, ...].

    All processes of a world read the same experts in the same order; each read sends one expert to every process.
    """

    def __init__(self, who: str, layer: nn.Cell, parameters: Mapping[str, Parameter], num_experts: int):
        mesh, experts = getattr(layer, "mesh", None), getattr(layer, "experts", None)
        self.world = mesh if isinstance(mesh, World) and mesh.everyone is not None else None
        self.place = Place.of(mesh if isinstance(mesh, World) else None)
        self.splits: Mapping[str, str] = getattr(experts, "splits", {})
        names = [name for name in parameters if name.startswith("experts.") and name != "experts.places"]
        self.arrays = {name: parameters[name].asnumpy() for name in names}
        own = parameters["experts.weight1"].shape[0] * self.place.mesh.ep
        check_argument(own == num_experts, who, "layer", f"one of {own} of {num_experts} experts", "one that holds all")
        places = getattr(experts, "places", None)
        at = np.arange(num_experts) if places is None else experts_at(who, places)
        self.index = np.argsort(at)
        self.shapes = {name: (num_experts, *self._joined(name, np.broadcast_to(np.float32(0), (1, *array.shape[1:]))).shape)
                       for name, array in self.arrays.items()}
        self.last: tuple[str, int, np.ndarray] | None = None

    def read(self, name: str, e: int) -> np.ndarray:
        """Returns expert e of a Parameter."""
        if self.world is None or self.world.everyone is None or self.place.mesh.num_ranks == 1:
            return self.arrays[name][self.index[e]]
        if self.last is None or self.last[:2] != (name, e):
            array, tp_size = self.arrays[name], self.place.mesh.tp
            group, at = divmod(e, len(array))
            first = group * tp_size
            is_holder = first <= self.world.rank < first + tp_size
            told = self.world.everyone.meet(f"{name} of expert {e}", array[at].tobytes() if is_holder else b"")
            shards = [np.frombuffer(data, array.dtype).reshape(1, *array.shape[1:]) for data in told[first:first + tp_size]]
            self.last = name, e, self._joined(name, np.concatenate(shards))
        return self.last[2]

    def all(self, name: str) -> np.ndarray:
        """Returns all experts of a Parameter."""
        return np.stack([self.read(name, e) for e in range(len(self.index))])

    def _joined(self, name: str, shards: np.ndarray) -> np.ndarray:
        """Joins the arrays of an expert's shards."""
        tp_size = self.place.mesh.tp
        if tp_size == 1:
            return shards[0]
        shards = np.broadcast_to(shards, (tp_size, *shards.shape[1:]))
        return unshard_experts(np.ascontiguousarray(shards)[:, None], Mesh(1, tp=tp_size),
                               self.splits[name.removeprefix("experts.")])[0]


def write_once(who: str, worlds: Iterable[World | None], groups: Iterable[Mapping[str, Stored]],
               write: Callable[[], None]) -> None:
    """Calls `write` on rank 0, which reads the arrays of the groups; the other processes read them with it."""
    everyone, rank = next(((w.everyone, w.rank) for w in worlds if w is not None), (None, 0))
    if everyone is None:
        write()
        return
    with everyone.calling(who):
        if rank == 0:
            write()
        else:
            for arrays in groups:
                for name in in_file_order(arrays):
                    arrays[name].read()
        everyone.meet("files are written", b"")
