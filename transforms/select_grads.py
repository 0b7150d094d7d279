"""select_grads: gradients are taken of some inputs alone, and work for the others is left out."""

from __future__ import annotations

from collections.abc import Sequence

from hpmoe.ir.program import Program, is_differentiable
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import check_argument


def _check(of: Sequence[str]) -> None:
    check_argument(isinstance(of, (tuple, list)) and len(of) > 0 and all(isinstance(name, str) for name in of),
                   "select_grads", "of", repr(of), "a tuple of names of arguments, at least one")


@transform(requires="program", once=True, check=_check)
def select_grads(program: Program, *, of: Sequence[str]) -> Program:
    """Computes the gradients of the named arguments only; MindSpore receives zeros for the other arguments.

    Use it in two cases. `ms.grad(f, 0)` does not tell a kernel that only the first gradient is read. A compiled graph does
    not tell it which parameters are frozen. Elsewhere kernels leave out gradients of tensors with `requires_grad=False` or
    `stop_gradient` by themselves.

    Rewrite:
        d = grouped_weight_grad x dy route
        ->
        nothing, where no gradient is taken of that weight; and without one of tokens no rows are sent back

    Requires: a plain function, or one under transforms of the traced Program.
    Ensures: the same function and bitwise the same gradients of the named arguments; the forward saves what these need.

    Args:
        f: the function.
        of: tuple of names of floating-point arguments, as in the printed program.

    Raises:
        ArgumentError: a name is not an argument of f, or an argument of accumulate_grads is not named.
        TransformError: applied to a function that is staged already, or twice.

    Example:
        >>> import hpmoe
        >>> f = hpmoe.select_grads(lambda x, w: x @ w, of=("w",))
        >>> print(f.lower(hpmoe.ShapeDtypeStruct((8, 4), "float32"), hpmoe.ShapeDtypeStruct((4, 3), "float32"),
        ...               direction="backward"))
        # <lambda>_vjp | select_grads(of=w)
        { lambda x:f32[8,4] d_out:f32[8,3]
          let a:f32[4,3] = weight_grad x d_out
          in (a,) : f32[4,3] }
    """
    of_name = {n: v for n, v in zip(program.input_names, program.inputs, strict=True) if is_differentiable(v)}
    for name in of:
        check_argument(name in of_name, "select_grads", "a name in of", repr(name),
                       f"a floating-point argument of {program.name}: {', '.join(of_name) or 'it has none'}")
    frozen = frozenset(of_name.values()) - {of_name[name] for name in of}
    accumulated = [n for n, v in of_name.items() if v in frozen and v in program.main_grads]
    check_argument(not accumulated, "select_grads", "of", f"without {', '.join(accumulated)}",
                   "a tuple with every argument that accumulate_grads has a main gradient of")
    return program.replace(frozen=frozen, provenance=(*program.provenance, f"select_grads(of={', '.join(of)})"))
