"""accumulate_grads: weight gradients are added to float32 main gradients inside the backward kernel."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from mindspore import Tensor

from hpmoe.ir.program import Program, is_differentiable
from hpmoe.ir.token_rows import token_vars
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import check_argument


def _check(into: Mapping[str, Tensor]) -> None:
    check_argument(isinstance(into, Mapping) and len(into) > 0, "accumulate_grads", "into", repr(into),
                   "a dict from the names of arguments to float32 tensors")
    for name, main in into.items():
        check_argument(isinstance(main, Tensor) and str(main.dtype) == "Float32", "accumulate_grads", f"into[{name!r}]",
                       f"{main.dtype} of shape {main.shape}" if isinstance(main, Tensor) else f"a {type(main).__name__}",
                       "a float32 tensor of the shape of that argument")


@transform(requires="program", once=True, check=_check)
def accumulate_grads(program: Program, *, into: Mapping[str, Tensor]) -> Program:
    """Adds the gradients of some arguments to float32 main gradients, in place, instead of returning them.

    A step of several micro-batches then needs no gradient array per micro-batch and no pass that adds them: the tile
    task that sums a weight's gradient adds it to the main gradient, in float32 for any dtype of the weight (gradient
    accumulation fusion, as in Megatron-LM). MindSpore receives a zero gradient for such an argument, so that other
    uses of it in the loss still add their own part. Zero the main gradients yourself at the start of a step.

    Rewrite:
        d = grouped_weight_grad x dy route
        ->
        d = grouped_weight_grad x dy route main_weight      in the memory of main_weight

    Requires: a plain function, or one under transforms of the traced Program.
    Ensures: the same function; a backward pass adds the gradient of each named argument to its main gradient.

    Args:
        f: the function.
        into: dict from names of arguments, as in the printed program, to main gradients. A main gradient is a contiguous
            float32 tensor, or a view of a buffer, of the argument's shape; under spmd the rank axis is its first axis.

    Raises:
        ArgumentError: a name is not one of the function's floating-point weights, or a tensor does not fit.
        TransformError: applied to a function that is staged already, or twice.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> main = ms.Tensor(np.full((2, 1), 10.0), ms.float32)
        >>> f = hpmoe.accumulate_grads(lambda x, w: x @ w, into={"w": main})
        >>> x, w = ms.Tensor(np.ones((3, 2)), ms.float32), ms.Tensor(np.ones((2, 1)), ms.float32)
        >>> dx, dw = ms.grad(lambda x, w: f(x, w).sum(), (0, 1))(x, w)
        >>> main.asnumpy().tolist(), dw.asnumpy().tolist()
        ([[13.0], [13.0]], [[0.0], [0.0]])
    """
    of_name = dict(zip(program.input_names, program.inputs, strict=True))
    tokens = token_vars(program)
    weights = [n for n, v in of_name.items() if is_differentiable(v) and v not in tokens and v not in program.frozen]
    mains = {}
    for name, main in into.items():
        check_argument(name in weights, "accumulate_grads", "a key of into", repr(name),
                       f"the name of a weight of {program.name}: {', '.join(weights) or 'it has none'}")
        var = of_name[name]
        is_shared = program.ep_size > 1 and var in program.inputs[len(program.inputs) - len(program.captures):]
        check_argument(not is_shared, "accumulate_grads", f"into[{name!r}]", "of a tensor the function closes over",
                       f"of an argument on {program.ep_size} ranks", "Ranks share what a function closes over.")
        check_argument(main.is_contiguous(), "accumulate_grads", f"into[{name!r}]", "not contiguous",
                       "contiguous, it is written in place")
        mains[var] = main
    _check_apart(into)
    return program.replace(main_grads=mains)


def _check_apart(into: Mapping[str, Tensor]) -> None:
    """Raises ArgumentError if main gradients share memory, since tile tasks add to them side by side."""
    placed = sorted((main.data_ptr(), main.nbytes, name) for name, main in into.items())
    for (start, size, other), (first, _, name) in itertools.pairwise(placed):
        check_argument(start + size <= first, "accumulate_grads", f"into[{name!r}]", f"in the memory of into[{other!r}]",
                       "memory of its own", "Give a weight that is used twice as one argument.")
