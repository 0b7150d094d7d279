"""Calls a Cell's per-rank function through a chain of transforms, on one rank or on the ranks of a mesh.

Tokens [..., H] become rows [T, H], or [ranks, T / ranks, H] on virtual ranks, each in turn having the next ones; weights [E,
...] of experts become [ranks, E / ep, ...], see expert_shards.py. So Parameters and outputs do not depend on the mesh.
Where ranks are processes each has its own tokens, and Parameters of its own experts, or shards of them, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import mindspore as ms
from mindspore import Tensor, mint

from hpmoe.machines.machine import Mesh
from hpmoe.primitives.outside_graphs import constexpr
from hpmoe.ranks.world import World
from hpmoe.runtime.spmd import spmd
from hpmoe.runtime.transform import chain
from hpmoe.support.errors import check_argument
from hpmoe.support.known import known
from hpmoe.support.mindspore_private import Eager
from hpmoe.support.trees import Function, PyTree
from hpmoe.transforms.assign_queues import assign_queues
from hpmoe.transforms.fuse_persistent import fuse_persistent
from hpmoe.transforms.overlap_comm import overlap_comm
from hpmoe.transforms.tile_partition import tile_partition

FLOATS, IDS = (ms.float32, ms.bfloat16, ms.float16), (ms.int32, ms.int64)  # dtypes of hidden states, and of expert ids


def transformed(who: str, f: Function, transforms: Function | None, mesh: Mesh | None, in_axes: Sequence[PyTree],
                frozen: Callable[[], set[str]]) -> Function:
    """Returns a per-rank function under transforms, by default those of one kernel, on the ranks of a mesh."""
    check_argument(transforms is None or callable(transforms), who, "transforms", repr(transforms),
                   "a transform, such as hpmoe.chain(...), or None for one kernel")
    to_kernel = chain(tile_partition, overlap_comm, assign_queues, fuse_persistent) if transforms is None else transforms
    staged: Function = to_kernel(f)
    check_argument(callable(staged), who, "transforms", f"a function that returns a {type(staged).__name__}",
                   "a transform, which returns a function")
    computed = staged if mesh is None else spmd(staged, mesh, tuple(in_axes))
    computed.frozen_arguments = frozen
    return computed


def num_ranks(who: str, mesh: Mesh | None, num_moe_experts: int) -> int:
    """Returns the length of the arrays' rank axis; 0 for one rank without an axis, such as a process."""
    check_argument(mesh is None or isinstance(mesh, Mesh), who, "mesh", repr(mesh), "an hpmoe.Mesh, or None for one rank")
    if mesh is None:
        return 0
    check_argument(num_moe_experts % mesh.ep == 0, who, "num_moe_experts", num_moe_experts,
                   f"divisible by the {mesh.ep} {'ranks' if mesh.tp == 1 else 'groups of ranks'} of the mesh")
    return 0 if isinstance(mesh, World) else mesh.num_ranks


def known_shape(who: str, argument: str, shape: Sequence[int] | None, expected: str) -> Sequence[int]:
    """Returns a shape; raises ArgumentError if it is None, the shape of a value that is no Tensor."""
    check_argument(shape is not None, who, argument, "no tensor", expected,
                   f"Write mindspore.Tensor(numpy.asarray({argument})) for an array.")
    return known(shape)


@constexpr
def rows_shape(who: str, shape: Sequence[int] | None, size: int | None, ep_size: int,
               argument: str = "hidden_states") -> tuple[int, ...]:
    """Returns the shape on all ranks of an array [..., size] as the per-rank function takes it."""
    expected = f"a Tensor [..., {'K' if size is None else size}]"
    shape = known_shape(who, argument, shape, expected)
    check_argument(len(shape) > 1 and size in (None, shape[-1]), who, argument, f"of shape {tuple(shape)}", expected)
    rows = math.prod(shape[:-1])
    check_argument(not ep_size or rows % ep_size == 0, who, argument, f"of shape {tuple(shape)}, {rows} tokens",
                   f"of a number of tokens that {ep_size} ranks divide")
    return (ep_size, rows // ep_size, shape[-1]) if ep_size else (rows, shape[-1])


@constexpr
def check_dtype(who: str, argument: str, dtype: object, known_dtypes: Sequence[object]) -> None:
    """Raises ArgumentError for an argument of another dtype."""
    names = [str(known).lower() for known in known_dtypes]
    check_argument(dtype in known_dtypes, who, argument, f"of dtype {str(dtype).lower()}",
                   f"{', '.join(names[:-1])} or {names[-1]}")


in_graph = Eager("hpmoe_in_graph", lambda: False, in_graph=True)


def shape_of(x: object) -> tuple[int, ...] | None:
    """Returns the shape of a Tensor, and None of any other value, such as an array of another library."""
    return x.shape if isinstance(x, Tensor) else None


def reshaped(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Returns a tensor in another shape; bfloat16 in graphs goes through float32, as graphs for CPUs lack its Reshape."""
    if in_graph() and x.dtype == ms.bfloat16:
        return mint.reshape(x.astype(ms.float32), shape).astype(ms.bfloat16)
    return mint.reshape(x, shape)
