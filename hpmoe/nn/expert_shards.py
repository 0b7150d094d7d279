"""Experts' weights as the ranks of a mesh hold them: each rank some experts, or a shard of each of its group's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar, cast

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, ops

from hpmoe.machines.machine import Mesh
from hpmoe.nn.on_ranks import in_graph, reshaped
from hpmoe.primitives.outside_graphs import constexpr
from hpmoe.ranks.world import World
from hpmoe.support.errors import check_argument, is_name
from hpmoe.support.keywords import suggests_keywords

Array = TypeVar("Array", np.ndarray, Tensor)
SPLITS = ("gate_up", "columns", "rows", "first", "all")


@suggests_keywords
def shard_experts(weight: Array, mesh: Mesh, split: str) -> Array:
    """Cuts a weight of all experts into the parts of each rank of a mesh; differentiable.

    Args:
        weight: [E, ...], a Tensor or an array of NumPy, with experts in the order of their places, see `GroupedMLP`.
        mesh: the ranks; ep_size divides E.
        split: what tp_size divides. "gate_up": the last dimension, whose halves are cut equally, so that a shard has the
            columns of gate and up that belong together; "columns": the last dimension; "rows": the second one, those of
            down; "first": nothing, the first shard has all and the others zeros, as of a bias that is added after down;
            "all": nothing, every shard has all, as of the factors of an adapter that no shard divides.

    Returns:
        [num_ranks, E / ep_size, ...], rank by rank.

    Raises:
        ArgumentError: ep_size or tp_size does not divide the weight, or an argument has a wrong type or value.

    Example:
        >>> import numpy as np, hpmoe
        >>> weight = np.arange(8).reshape(2, 1, 4)                # of two experts, columns g0 g1 u0 u1
        >>> hpmoe.nn.shard_experts(weight, hpmoe.Mesh(1, tp=2), "gate_up").tolist()
        [[[[0, 2]], [[4, 6]]], [[[1, 3]], [[5, 7]]]]
    """
    shape = _checked("hpmoe.nn.shard_experts", weight, mesh, split, first=0)
    if isinstance(weight, Tensor):
        return by_rank(weight, mesh.ep, mesh.tp, split)
    cut, order, of_ranks = steps_to_ranks(shape, mesh.ep, mesh.tp, split)
    if split in ("first", "all"):
        mine = weight.reshape(cut)
        other = mine if split == "all" else np.zeros_like(mine)
        return np.concatenate([mine, *[other] * (mesh.tp - 1)], axis=1).reshape(of_ranks)
    return weight.reshape(cut).transpose(order).reshape(of_ranks)


@suggests_keywords
def unshard_experts(weights: Array, mesh: Mesh, split: str) -> Array:
    """Joins the parts of each rank of a mesh to the weight of all experts; the inverse of `shard_experts`.

    Args:
        weights: [num_ranks, E / ep_size, ...], a Tensor or an array of NumPy.
        mesh, split: the arguments of `shard_experts`.

    Returns:
        [E, ...].

    Raises:
        ArgumentError: weights have another number of ranks, or an argument has a wrong type or value.

    Example:
        >>> import numpy as np, hpmoe
        >>> weight, mesh = np.arange(8).reshape(2, 1, 4), hpmoe.Mesh(2, tp=2)
        >>> shards = hpmoe.nn.shard_experts(weight, mesh, "gate_up")
        >>> shards.shape, bool((hpmoe.nn.unshard_experts(shards, mesh, "gate_up") == weight).all())
        ((4, 1, 1, 2), True)
    """
    who, shape = "hpmoe.nn.unshard_experts", _checked("hpmoe.nn.unshard_experts", weights, mesh, split, first=1)
    check_argument(shape[0] == mesh.num_ranks, who, "weights", f"of {shape[0]} ranks", f"of the mesh's {mesh.num_ranks}")
    ep, tp, (local, *rest) = mesh.ep, mesh.tp, shape[1:]
    if split in ("first", "all"):
        return cast(Array, weights.reshape((ep, tp, local, *rest))[:, 0].reshape((ep * local, *rest)))
    axis, parts = _axis_and_parts(len(shape) - 1, split)
    check_argument(rest[axis - 1] % parts == 0, who, "weights", f"of shape {shape}",
                   f"of a multiple of {parts} in dimension {axis + 1}")
    cut = (ep, tp, local, *rest[:axis - 1], parts, rest[axis - 1] // parts, *rest[axis:])
    others = [i for i in range(len(cut)) if i != 1]
    order = (*others[:axis + 2], 1, *others[axis + 2:])
    experts = (ep * local, *rest[:axis - 1], rest[axis - 1] * tp, *rest[axis:])
    if isinstance(weights, Tensor):
        return _moved(weights, cut, order, experts)
    return weights.reshape(cut).transpose(order).reshape(experts)


def _checked(who: str, weight: object, mesh: object, split: object, first: int) -> tuple[int, ...]:
    """Checks the arguments; returns the shape of a weight with experts in dimension `first`."""
    check_argument(isinstance(mesh, Mesh), who, "mesh", repr(mesh), "an hpmoe.Mesh")
    check_argument(is_name(split, SPLITS), who, "split", repr(split), f"one of {', '.join(SPLITS)}")
    is_weight = isinstance(weight, (Tensor, np.ndarray)) and len(weight.shape) > first + (2 if split == "rows" else 1)
    check_argument(is_weight, who, "weights" if first else "weight", getattr(weight, "shape", f"a {type(weight).__name__}"),
                   "a Tensor or an array of NumPy, "
                   f"[{'num_ranks, E / ep_size' if first else 'E'}, {'I, ' if split == 'rows' else ''}...]")
    return tuple(weight.shape) if isinstance(weight, (Tensor, np.ndarray)) else ()


def _axis_and_parts(num_dims: int, split: str) -> tuple[int, int]:
    """Returns the dimension of a weight that shards divide, and the number of its equal parts that each are divided."""
    return (1 if split == "rows" else num_dims - 1), 2 if split == "gate_up" else 1


def _steps(shape: Sequence[int], ep_size: int, tp_size: int, split: str) -> tuple[tuple[int, ...], ...]:
    """Returns (reshape, permutation, reshape) that cut a weight [E, ...] into the parts of its ranks.

    If split is "first" or "all", the second dimension has one shard.
    """
    who, experts = "hpmoe.nn.shard_experts", shape[0]
    check_argument(experts % ep_size == 0, who, "weight", f"of {experts} experts",
                   f"of a multiple of the mesh's ep_size, {ep_size}")
    local, rest = experts // ep_size, tuple(shape[1:])
    if split in ("first", "all"):
        return (ep_size, 1, local, *rest), tuple(range(len(shape) + 2)), (ep_size * tp_size, local, *rest)
    axis, parts = _axis_and_parts(len(shape), split)
    check_argument(shape[axis] % (parts * tp_size) == 0, who, "weight", f"of shape {tuple(shape)}",
                   f"of a multiple of {parts * tp_size} in dimension {axis}, for tp_size {tp_size}")
    cut = (ep_size, local, *shape[1:axis], parts, tp_size, shape[axis] // parts // tp_size, *shape[axis + 1:])
    order = (0, axis + 2, *(i for i in range(1, len(cut)) if i != axis + 2))
    return cut, order, (ep_size * tp_size, local, *shape[1:axis], shape[axis] // tp_size, *shape[axis + 1:])


steps_to_ranks = constexpr(_steps)


def by_rank(weight: Tensor, ep_size: int, tp_size: int, split: str) -> Tensor:
    """Runs `shard_experts` on a Tensor, also in graphs."""
    cut, order, of_ranks = steps_to_ranks(weight.shape, ep_size, tp_size, split)
    if tp_size == 1:
        return reshaped(weight, of_ranks)
    if split in ("first", "all"):
        mine = reshaped(weight, cut)
        other = mine if split == "all" else ops.zeros_like(mine)
        return reshaped(mint.cat((mine,) + (other,) * (tp_size - 1), 1), of_ranks)
    return _moved(weight, cut, order, of_ranks)


def _moved(x: Tensor, cut: Sequence[int], order: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Reshapes, permutes and reshapes x; bfloat16 in graphs as float32, since graphs for CPUs lack the operations."""
    if in_graph() and x.dtype == ms.bfloat16:
        return mint.reshape(mint.permute(mint.reshape(x.astype(ms.float32), cut), order), shape).astype(ms.bfloat16)
    return mint.reshape(mint.permute(mint.reshape(x, cut), order), shape)


def own_experts(weight: Parameter, mesh: Mesh | None, split: str) -> Parameter:
    """Returns a Parameter of all experts, [E, ...]; on processes one of only the experts of this rank."""
    if not isinstance(mesh, World) or mesh.num_ranks == 1:
        return weight
    mine = shard_experts(weight, mesh, split)[mesh.rank % mesh.num_ranks].copy()
    return Parameter(mine, name=weight.name, requires_grad=weight.requires_grad)
