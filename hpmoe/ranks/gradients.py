"""Sums gradients of Parameters that several ranks hold, bitwise equal on all ranks and from run to run."""

from __future__ import annotations

import contextlib

import numpy as np
import optree
from mindspore import Tensor

from hpmoe.machines.machine import Mesh
from hpmoe.ranks.world import World
from hpmoe.support.errors import check_argument, is_name
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.mindspore_private import wait_for_calls
from hpmoe.support.trees import PyTree

OVER = ("world", "data_parallel", "tensor_parallel")


@suggests_keywords
def all_reduce_gradients(grads: PyTree, mesh: Mesh, over: str = "world") -> PyTree:
    """Sums gradients over the processes of a world, in float32 and in the order of ranks; all ranks get the same bits.

    A process computes the gradient of its own tokens. For Parameters that all ranks hold, a router or a shared expert, the
    whole gradient is the sum. On the virtual ranks of a Mesh gradients are returned unchanged.

    Args:
        grads: a tensor, or a tuple, list or dict of them, with the same shapes on all ranks.
        mesh: the mesh on which the gradients were computed.
        over: "world" for Parameters that all ranks hold; "data_parallel" for experts, which one rank of each group of
            ep_size ranks holds; "tensor_parallel" for values that the shards of an expert hold: `experts.lora_a1` and
            `experts.lora_b2` of `hpmoe.nn.add_lora`.

    Returns:
        The sums, nested as `grads`.

    Raises:
        ArgumentError: grads has a leaf that is no tensor, mesh is no mesh, or over is none of the three names.
        LaunchError: another rank has ended, or sums gradients of other shapes.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> hpmoe.all_reduce_gradients((ms.Tensor([1.0, 2.0]),), hpmoe.world())[0].asnumpy().tolist()
        [1.0, 2.0]
    """
    who = "hpmoe.all_reduce_gradients"
    check_argument(isinstance(mesh, Mesh), who, "mesh", repr(mesh), "an hpmoe.Mesh or hpmoe.world()")
    check_argument(is_name(over, OVER), who, "over", repr(over), f"one of {', '.join(OVER)}")
    links = (mesh.everyone, mesh.same_experts, mesh.shards) if isinstance(mesh, World) else (None,) * len(OVER)
    link = links[OVER.index(over)]
    if link is not None:
        wait_for_calls()  # a compiled graph runs on when its call returns: it comes first on every rank
    with contextlib.nullcontext() if link is None else link.calling(who):
        leaves, tree = optree.tree_flatten(grads)
        for i, leaf in enumerate(leaves):
            check_argument(isinstance(leaf, Tensor), who, f"gradient {i}", f"a {type(leaf).__name__}", "a Tensor")
        if link is None:
            return grads
        sums = link.sum([np.ascontiguousarray(leaf.asnumpy()) for leaf in leaves])
    return optree.tree_unflatten(tree, [Tensor.from_numpy(s) for s in sums])
