"""Functions and trees of containers around tensors that users pass in."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree
from mindspore import Tensor

PyTree = Any  # containers that optree knows, also registered ones, around tensors and other values
Function = Callable[..., PyTree]


def flatten(tree: PyTree, none_is_leaf: bool = False) -> tuple[list[PyTree], optree.PyTreeSpec]:
    """Returns the leaves of a tree, in order, and its structure."""
    return optree.tree_flatten(tree, none_is_leaf=none_is_leaf)


def unflatten(structure: optree.PyTreeSpec, leaves: Sequence[object]) -> PyTree:
    """Returns the tree of some leaves, the inverse of `flatten`."""
    return optree.tree_unflatten(structure, leaves)


def is_traced(*trees: PyTree) -> bool:
    """Returns True if a leaf of one of the trees belongs to a running trace."""
    return not all(map(_is_plain, map(type, trees))) and any(map(_is_tracer, map(type, flatten(trees)[0])))


@functools.lru_cache(maxsize=1024)
def _is_tracer(kind: type) -> bool:
    return hasattr(kind, "hpmoe_record")


@functools.lru_cache(maxsize=1024)
def _is_plain(kind: type) -> bool:
    """Returns True for the types of values that are neither tracers nor containers."""
    return issubclass(kind, (Tensor, np.ndarray, int, float)) and not _is_tracer(kind)
