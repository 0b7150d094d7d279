"""vjp: the outputs of a function and its vector-Jacobian product, as jax.vjp returns them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import cast

import mindspore as ms
import optree
from mindspore import Tensor

from hpmoe.support.errors import ArgumentError, check_argument
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function, PyTree


@suggests_keywords
def vjp(f: Function, *args: PyTree) -> tuple[PyTree, Callable[[PyTree], tuple[PyTree, ...]]]:
    """Returns the outputs of f and a function from their cotangents to the gradients of the arguments, as jax.vjp does.

    The function may be plain, at any level of the chain, or under spmd. Use `mindspore.value_and_grad` in a training step:
    `f_vjp` runs the forward pass again, and suits tests that look at gradients for given cotangents.

    Args:
        f: a function of tensors; its outputs are a tensor or a tuple, list or dict of tensors.
        *args: its arguments, each a tensor.

    Returns:
        The outputs, and `f_vjp(cotangents)`: cotangents have the structure and shapes of the outputs; it returns a
        tuple with the gradient of each argument, None for an argument of integers or bools.

    Raises:
        ArgumentError: f is not callable, an argument is not a tensor, or cotangents do not have the shapes of the outputs.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> y, f_vjp = hpmoe.vjp(lambda x, w: x @ w, ms.ops.ones((1, 2)), ms.Tensor([[1.0], [3.0]]))
        >>> y.asnumpy().tolist(), [g.asnumpy().tolist() for g in f_vjp(ms.ops.ones((1, 1)))]
        ([[4.0]], [[[1.0, 3.0]], [[1.0], [1.0]]])
    """
    check_argument(callable(f), "hpmoe.vjp", "f", repr(f), "a function",
                   "Programs are differentiated by hpmoe.rewriting.vjp.")
    for i, arg in enumerate(args):
        check_argument(isinstance(arg, Tensor), "hpmoe.vjp", f"args[{i}]", f"a {type(arg).__name__}", "a MindSpore tensor")
    outputs = f(*args)
    floats = tuple(i for i, arg in enumerate(args) if arg.is_floating_point())

    def f_vjp(cotangents: PyTree) -> tuple[PyTree, ...]:
        seeds = _seeds(outputs, cotangents)

        def weighted(*given: PyTree) -> Tensor:
            outs = optree.tree_leaves(f(*given))
            parts = [(out * seed).astype(ms.float32).sum() for out, seed in zip(outs, seeds, strict=True)
                     if out.is_floating_point()]
            return functools.reduce(operator.add, parts)

        grads = ms.grad(weighted, grad_position=cast(int, floats))(*args) if floats else ()
        found = dict(zip(floats, grads if isinstance(grads, tuple) else (grads,), strict=True))
        return tuple(found.get(i) for i in range(len(args)))

    return outputs, f_vjp


def _seeds(outputs: PyTree, cotangents: PyTree) -> list[Tensor]:
    (leaves, tree), (given, given_tree) = optree.tree_flatten(outputs), optree.tree_flatten(cotangents)
    if tree != given_tree:
        raise ArgumentError(f"hpmoe.vjp: cotangents are of structure {given_tree}; they must be of the structure of the "
                            f"outputs, {tree}")
    for i, (leaf, seed) in enumerate(zip(leaves, given, strict=True)):
        fits = isinstance(seed, Tensor) and tuple(seed.shape) == tuple(leaf.shape)
        check_argument(fits, "hpmoe.vjp", f"cotangents[{i}]", f"of shape {getattr(seed, 'shape', None)}",
                       f"a tensor of shape {tuple(leaf.shape)}, that of the output")
    return given
