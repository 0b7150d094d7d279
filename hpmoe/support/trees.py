"""Functions and trees of containers around tensors that users pass in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import optree

PyTree = Any  # containers of any kind that optree knows, user's own ones too, around tensors and whatever else
Function = Callable[..., PyTree]


def flatten(tree: PyTree, none_is_leaf: bool = False) -> tuple[list[PyTree], optree.PyTreeSpec]:
    """The leaves of a tree, in order, and what it is without them."""
    return optree.tree_flatten(tree, none_is_leaf=none_is_leaf)


def unflatten(structure: optree.PyTreeSpec, leaves: Sequence[object]) -> PyTree:
    """The tree of some leaves; `flatten` the other way."""
    return optree.tree_unflatten(structure, leaves)


def is_traced(tree: PyTree) -> bool:
    """Returns True if a leaf belongs to a running trace."""
    return any(getattr(x, "hpmoe_record", None) for x in optree.tree_leaves(tree))
