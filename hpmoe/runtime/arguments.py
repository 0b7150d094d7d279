"""The arguments of a call, flat: bound to the parameters of the function that is called, with arrays as tensors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import optree
from mindspore import Tensor

from hpmoe import tracing
from hpmoe.ir.avals import Aval
from hpmoe.runtime.rank_arrays import is_tensor_like
from hpmoe.runtime.rank_axes import RankAxes
from hpmoe.runtime.staged import signature_of
from hpmoe.support.errors import check_argument, kind_of, tensor_advice
from hpmoe.support.keywords import check_keywords, nearest
from hpmoe.support.trees import Function, PyTree, flatten


class Arguments(NamedTuple):
    """What a call is given: leaves of (args, kwargs), their tree, which of them are arrays, Tensors or Avals, and which of
    them have a rank axis."""

    leaves: list[PyTree]
    tree: optree.PyTreeSpec
    is_array: list[bool]
    is_split: Sequence[bool]

    @property
    def arrays(self) -> list[Tensor | Aval]:
        return [x for x, is_array in zip(self.leaves, self.is_array, strict=True) if is_array]

    @property
    def split_arrays(self) -> list[bool]:
        """Of each array whether it has a rank axis."""
        return [split for split, is_array in zip(self.is_split, self.is_array, strict=True) if is_array]

    def array_names(self, function: Function) -> list[str]:
        """Of each array the parameter of a function that it is for."""
        return [name for name, is_array in zip(_names(function, self.tree), self.is_array, strict=True) if is_array]


def _names(function: Function, tree: optree.PyTreeSpec) -> list[str]:
    return tracing.argument_names(function, optree.treespec_paths(tree))


class Parameters:
    """Those of a plain function.

    Attributes:
        function: plain.
        axes: which arguments have a rank axis.
    """

    def __init__(self, function: Function, axes: RankAxes):
        self.function, self.axes = function, axes
        self._signature = signature_of(function)
        self._defaults, self._named_defaults = _defaults(self._signature)

    def flatten(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree]) -> Arguments:
        """The arguments with defaults filled in. Raises TypeError and ArgumentError for what the function cannot take."""
        if kwargs or len(args) not in self._defaults:
            args, kwargs = self._bind(args, kwargs)
        else:  # what binding gives, at a fraction of its cost
            args, kwargs = (*args, *self._defaults[len(args)]), self._named_defaults
        leaves, tree = flatten((args, kwargs), none_is_leaf=True)
        for i, x in enumerate(leaves):
            if isinstance(x, np.ndarray):
                if not is_tensor_like(x):
                    check_argument(False, tracing.function_name(self.function), _names(self.function, tree)[i],
                                   f"of type {type(x).__name__} and dtype {x.dtype}",
                                   "an array without a mask, of a dtype of MindSpore")
                leaves[i] = Tensor(x)
            elif _is_foreign(type(x)):
                name = _names(self.function, tree)[i]
                check_argument(False, tracing.function_name(self.function), name, kind_of(x), "a mindspore.Tensor",
                               tensor_advice(name, x))
        is_array = [_is_array(type(x)) for x in leaves]
        return Arguments(leaves, tree, is_array, self.axes.split(tree, is_array))

    def _bind(self, args: Sequence[PyTree], kwargs: Mapping[str, PyTree]) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """The arguments as the signature has them, with defaults."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            if "num_tokens" in kwargs and "num_tokens" not in self._signature.parameters:
                raise TypeError(f"{tracing.function_name(self.function)}: got num_tokens; expected it in a call of a "
                                "function under hpmoe.spmd, hpmoe.spmd(f, mesh)(*args, num_tokens=...)") from None
            known = self._signature.parameters
            if "unexpected keyword" in str(error) or any(k not in known and nearest(k, known) for k in kwargs):
                check_keywords(tracing.function_name(self.function), kwargs, known)
            raise TypeError(f"{tracing.function_name(self.function)}: {error}") from None
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
    """Kept, as the type of tensors asks Python code about every type that is none."""
    return issubclass(kind, (Tensor, Aval))


@functools.lru_cache
def _is_foreign(kind: type) -> bool:
    """Returns True if values of a type are arrays of another library."""
    return hasattr(kind, "__array__") and not issubclass(kind, (Tensor, np.ndarray, np.generic))


def _defaults(signature: inspect.Signature) -> tuple[dict[int, tuple[PyTree, ...]], dict[str, PyTree]]:
    """What follows each number of positional arguments that needs no others, and the defaults of what is only named.

    None of either where some of them may be any number of arguments, or one that is only named has no default.
    """
    parameters, none = signature.parameters.values(), inspect.Parameter.empty
    positional = [p.default for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    named = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    if len(positional) + len(named) < len(parameters) or any(default is none for default in named.values()):
        return {}, {}
    least = sum(default is none for default in positional)
    return {n: tuple(positional[n:]) for n in range(least, len(positional) + 1)}, named
