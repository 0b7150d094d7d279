"""Rank axes: which arguments of a call on all ranks have a leading axis of ranks, and which all ranks are given whole."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import optree

from hpmoe.support.errors import check_argument
from hpmoe.support.trees import PyTree, unflatten


def check_in_axes(in_axes: PyTree) -> None:
    """ArgumentError unless it is 0, None, or a tuple or list of trees of these."""
    is_axes = all(axis is None or (type(axis) is int and axis == 0) for axis in _leaves(in_axes))
    is_each = in_axes is None or isinstance(in_axes, (int, tuple, list))
    check_argument(is_axes and is_each, "spmd", "in_axes", repr(in_axes),
                   "0, None, or a tuple with these for the positional arguments, nested as they are")


class RankAxes:
    """What `spmd` is told of rank axes.

    Attributes:
        in_axes: 0 or None for all arguments; or a tuple or list of these for each, which may be a tree of them.
        is_alone: whether each rank gives its own arrays, so that none has an axis; `in_axes` fits all the same.
    """

    def __init__(self, in_axes: PyTree, is_alone: bool = False):
        self.in_axes, self.is_alone = in_axes, is_alone
        self._of_tree = functools.lru_cache(maxsize=256)(self._found)

    def split(self, tree: optree.PyTreeSpec, is_array: Sequence[bool]) -> Sequence[bool]:
        """For each leaf of (args, kwargs), whether it has a rank axis."""
        if self.in_axes is None or type(self.in_axes) is int:
            return [self.in_axes == 0 and not self.is_alone] * len(is_array)
        found = self._of_tree(tree)
        if any(axis < 0 for axis, is_one in zip(found, is_array, strict=True) if is_one):
            number = max(i for i, arg in enumerate(unflatten(tree, is_array)[0]) if any(_leaves(arg))) + 1
            check_argument(False, "spmd", "in_axes", f"{self.in_axes!r}, of {len(self.in_axes)} entries",
                           f"of {number}, one for each positional argument with an array")
        return [axis == 1 and not self.is_alone for axis in found]

    def _found(self, tree: optree.PyTreeSpec) -> tuple[int, ...]:
        """1 for each leaf with a rank axis, 0 without; -1 of positional arguments that in_axes does not reach."""
        args, kwargs = unflatten(tree, range(tree.num_leaves))
        check_argument(len(self.in_axes) <= len(args), "spmd", "in_axes",
                       f"{self.in_axes!r}, of {len(self.in_axes)} entries",
                       f"of at most {len(args)}, one for each positional argument")
        axes = []
        for i, arg in enumerate(args):
            axes += self._of_argument(i, arg) if i < len(self.in_axes) else [-1] * len(_leaves(arg))
        return (*axes, *[1] * len(_leaves(kwargs)))

    def _of_argument(self, i: int, arg: PyTree) -> list[int]:
        try:
            axes = optree.broadcast_prefix(self.in_axes[i], arg, none_is_leaf=True)
        except ValueError as error:
            check_argument(False, "spmd", f"in_axes[{i}]", repr(self.in_axes[i]), "nested as the argument is", str(error))
        return [int(axis is not None) for axis in axes]


def _leaves(x: PyTree) -> list[PyTree]:
    return optree.tree_leaves(x, none_is_leaf=True)
