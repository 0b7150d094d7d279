"""The arguments of a call, flat: bound to the parameters of the function, arrays as tensors, and which have a rank axis."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import optree
from mindspore import Tensor

from hpmoe import tracing
from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.runtime.rank_arrays import is_tensor_like
from hpmoe.runtime.staged import signature_of
from hpmoe.support.errors import check_argument, kind_of, tensor_advice
from hpmoe.support.keywords import check_keywords, nearest
from hpmoe.support.trees import Function, PyTree, flatten, unflatten


class Arguments(NamedTuple):
    """Arguments of a call: leaves of (args, kwargs), their tree, and which leaves are arrays, Tensors or Avals, and have a
    rank axis."""

    leaves: list[PyTree]
    tree: optree.PyTreeSpec
    is_array: list[bool]
    is_split: Sequence[bool]

    @property
    def arrays(self) -> list[Tensor | ShapeDtypeStruct]:
        return [x for x, is_array in zip(self.leaves, self.is_array, strict=True) if is_array]

    @property
    def split_arrays(self) -> list[bool]:
        """True for each array with a rank axis."""
        return [split for split, is_array in zip(self.is_split, self.is_array, strict=True) if is_array]

    def array_names(self, function: Function) -> list[str]:
        """Returns the function's parameter of each array."""
        return [name for name, is_array in zip(_names(function, self.tree), self.is_array, strict=True) if is_array]


def _names(function: Function, tree: optree.PyTreeSpec) -> list[str]:
    return tracing.argument_names(function, optree.treespec_paths(tree))


def check_in_axes(in_axes: PyTree) -> None:
    """Raises ArgumentError unless in_axes is 0, None, or a tuple or list of trees (such as dicts) of 0 and None."""
    is_axes = all(axis is None or (type(axis) is int and axis == 0) for axis in _leaves(in_axes))
    is_each = in_axes is None or isinstance(in_axes, (int, tuple, list))
    check_argument(is_axes and is_each, "spmd", "in_axes", repr(in_axes),
                   "0, None, or a tuple with these for the positional arguments, nested as they are")


class RankAxes:
    """The `in_axes` of `spmd`, and whether each rank gives its own arrays (`is_alone`), which have no rank axis."""

    def __init__(self, in_axes: PyTree, is_alone: bool = False):
        self.in_axes, self.is_alone = in_axes, is_alone
        self._of_tree = functools.lru_cache(maxsize=256)(self._found)

    def split(self, tree: optree.PyTreeSpec, is_array: Sequence[bool]) -> Sequence[bool]:
        """Returns True for each leaf of (args, kwargs) that has a rank axis."""
        if self.in_axes is None or type(self.in_axes) is int:
            return [self.in_axes == 0 and not self.is_alone] * len(is_array)
        found = self._of_tree(tree)
        if any(axis < 0 for axis, is_one in zip(found, is_array, strict=True) if is_one):
            number = max(i for i, arg in enumerate(unflatten(tree, is_array)[0]) if any(_leaves(arg))) + 1
            check_argument(False, "spmd", "in_axes", f"{self.in_axes!r}, of {len(self.in_axes)} entries",
                           f"of {number}, one for each positional argument with an array")
        return [axis == 1 and not self.is_alone for axis in found]

    def _found(self, tree: optree.PyTreeSpec) -> tuple[int, ...]:
        """Returns 1 for each leaf with a rank axis, 0 without; -1 for positional arguments that in_axes does not reach."""
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


class Parameters:
    """The parameters of a plain function, and which of its arguments have a rank axis."""

    def __init__(self, function: Function, axes: RankAxes):
        self.function, self.axes = function, axes
        self._signature = signature_of(function)
        self._defaults, self._named_defaults = _defaults(self._signature)

    def flatten(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree]) -> Arguments:
        """Returns the arguments with defaults; raises TypeError or ArgumentError if the function cannot take them."""
        if kwargs or len(args) not in self._defaults:
            args, kwargs = self._bind(args, kwargs)
        else:  # what binding gives, at a fraction of its cost
            args, kwargs = (*args, *self._defaults[len(args)]), self._named_defaults
        leaves, tree = flatten((args, kwargs), none_is_leaf=True)
        if any(map(_is_foreign, map(type, leaves))):
            leaves = [self._as_tensor(x, tree, i) if _is_foreign(type(x)) else x for i, x in enumerate(leaves)]
        is_array = list(map(_is_array, map(type, leaves)))
        return Arguments(leaves, tree, is_array, self.axes.split(tree, is_array))

    def _as_tensor(self, x: PyTree, tree: optree.PyTreeSpec, i: int) -> Tensor:
        """Returns a NumPy array, leaf number `i`, as a tensor; raises ArgumentError for an array of another library."""
        if not isinstance(x, np.ndarray):
            name = _names(self.function, tree)[i]
            check_argument(False, tracing.function_name(self.function), name, kind_of(x), "a mindspore.Tensor",
                           tensor_advice(name, x))
        if not is_tensor_like(x):
            check_argument(False, tracing.function_name(self.function), _names(self.function, tree)[i],
                           f"of type {type(x).__name__} and dtype {x.dtype}",
                           "an array without a mask, of a dtype of MindSpore")
        return Tensor(x)

    def _bind(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree]) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """Returns (args, kwargs) bound to the function's signature, with defaults; raises TypeError if they do not fit."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            if "num_tokens" in kwargs and "num_tokens" not in self._signature.parameters:
                raise TypeError(f"{tracing.function_name(self.function)}: got num_tokens; expected it in a call of a "
                                "function under hpmoe.spmd, hpmoe.spmd(f, mesh)(*args, num_tokens=...).") from None
            known = self._signature.parameters
            if "unexpected keyword" in str(error) or any(k not in known and nearest(k, known) for k in kwargs):
                check_keywords(tracing.function_name(self.function), kwargs, known)
            raise TypeError(f"{tracing.function_name(self.function)}: {error}.") from None
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def check_hashable(self, given: Arguments) -> None:
        """Refuses an argument that is neither an array nor a key of the cache of traces."""
        for name, x in zip(_names(self.function, given.tree), given.leaves, strict=True):
            check_argument(type(x).__hash__ is not None, tracing.function_name(self.function), name,
                           f"of type {type(x).__name__}",
                           "an array, a tuple, list or dict of arguments, or a hashable value")


@functools.lru_cache
def _is_array(kind: type) -> bool:
    """Returns True for a class of Tensors or ShapeDtypeStructs; cached, as the check runs Python code for other classes."""
    return issubclass(kind, (Tensor, ShapeDtypeStruct))


@functools.lru_cache
def _is_foreign(kind: type) -> bool:
    """Returns True if values of a type are arrays of another library than MindSpore."""
    return hasattr(kind, "__array__") and not issubclass(kind, (Tensor, np.generic))


def _defaults(signature: inspect.Signature) -> tuple[dict[int, tuple[PyTree, ...]], dict[str, PyTree]]:
    """Returns the defaults after each sufficient number of positional arguments, and those of keyword-only parameters.

    None of either where some of them may be any number of arguments, or one that is only named has no default.
    """
    parameters, none = signature.parameters.values(), inspect.Parameter.empty
    positional = [p.default for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    if len(positional) + len(named) < len(parameters) or any(default is none for default in named.values()):
        return {}, {}
    least = sum(default is none for default in positional)
    return {n: tuple(positional[n:]) for n in range(least, len(positional) + 1)}, named
