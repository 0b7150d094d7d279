"""How a Cell calls its per-rank function: through a chain of transforms, on one rank or on the virtual ranks of a mesh.

Tokens [..., H] become rows [T, H], or [ep, T / ep, H] where there is a mesh, each rank in turn having the next ones; weights
[E, ...] of experts become [ep, E / ep, ...]. So Parameters and outputs are the same whatever the mesh.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from mindspore import mint, ops

from hpmoe.machines.machine import Mesh
from hpmoe.runtime.spmd import spmd
from hpmoe.runtime.transform import chain
from hpmoe.support.errors import check_argument
from hpmoe.transforms.assign_queues import assign_queues
from hpmoe.transforms.fuse_persistent import fuse_persistent
from hpmoe.transforms.overlap_comm import overlap_comm
from hpmoe.transforms.tile_partition import tile_partition

constexpr: Any = ops.constexpr  # whose annotations know no arguments


def transformed(who: str, f: Callable[..., Any], transforms: Any, mesh: Mesh | None, in_axes: Any) -> Callable[..., Any]:
    """The per-rank function through the transforms, by default to one kernel, on the ranks of the mesh."""
    check_argument(transforms is None or callable(transforms), who, "transforms", repr(transforms),
                   "a transform, such as hpmoe.chain(...), or None for one kernel")
    check_argument(mesh is None or isinstance(mesh, Mesh), who, "mesh", repr(mesh), "an hpmoe.Mesh, or None for one rank")
    staged = (chain(tile_partition, overlap_comm, assign_queues, fuse_persistent) if transforms is None else transforms)(f)
    return staged if mesh is None else spmd(staged, mesh)


def num_ranks(who: str, mesh: Mesh | None, num_moe_experts: int) -> int:
    """0 for one rank without a rank axis."""
    ep_size = 0 if mesh is None else mesh.ep_size
    check_argument(not ep_size or num_moe_experts % ep_size == 0, who, "num_moe_experts", num_moe_experts,
                   f"divisible by the {ep_size} ranks of the mesh")
    return ep_size


@constexpr
def rows_shape(who: str, shape: Sequence[int], size: int, ep_size: int, argument: str = "hidden_states") -> Sequence[int]:
    """Of [..., size] as the per-rank function takes it, on all ranks."""
    check_argument(len(shape) > 1 and shape[-1] == size, who, argument, f"of shape {tuple(shape)}", f"[..., {size}]")
    rows = 1
    for dim in shape[:-1]:
        rows *= dim
    if not ep_size:
        return rows, size
    check_argument(rows % ep_size == 0, who, argument, f"of shape {tuple(shape)}, {rows} tokens",
                   f"of a number of tokens that {ep_size} ranks divide")
    return ep_size, rows // ep_size, size


def by_rank(weight: Any, ep_size: int) -> Any:
    """A weight of all experts, [E, ...], as each rank has its own."""
    return mint.reshape(weight, (ep_size, -1, *weight.shape[1:])) if ep_size else weight


def on_all(weight: Any, ep_size: int) -> Any:
    return mint.broadcast_to(weight, (ep_size, *weight.shape)) if ep_size else weight
