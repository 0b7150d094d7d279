"""save_for_backward: chooses the values that the forward pass saves; the backward pass recomputes the rest."""

from __future__ import annotations

from collections.abc import Callable

from hpmoe.ir.avals import RouteAval, Rows
from hpmoe.ir.program import Equation, Program
from hpmoe.primitives.dispatch import dispatch_rows
from hpmoe.primitives.grouped_matmul import grouped
from hpmoe.primitives.matmul import matmul
from hpmoe.primitives.permute import permute_rows
from hpmoe.primitives.swiglu import gated
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import call_user, check_argument, is_name

Policy = Callable[[Equation], bool]


def everything(eqn: Equation) -> bool:
    """Saves all values that the backward pass reads; recomputes only routes."""
    return True


def recompute_swiglu(eqn: Equation) -> bool:
    """Saves all but what SwiGLU, or any other work without a matmul or a collective, makes of received rows."""
    is_received = any(isinstance(d, Rows) for d in eqn.outputs[0].aval.shape)
    is_costly = eqn.primitive.collective or eqn.primitive in (grouped, matmul)
    return is_costly or not (is_received or eqn.primitive is gated)


def dispatched_rows(eqn: Equation) -> bool:
    """Saves the received rows alone; GMM1 and SwiGLU run again."""
    return eqn.primitive in (dispatch_rows, permute_rows)


POLICIES: dict[str, Policy] = {p.__name__: p for p in (everything, recompute_swiglu, dispatched_rows)}


def _check(policy: str | Policy = "everything") -> None:
    check_argument(callable(policy) or is_name(policy, POLICIES), "save_for_backward", "policy", repr(policy),
                   f"one of {', '.join(POLICIES)}, or a function (equation) -> bool")


@transform(requires="program", once=True, check=_check)
def save_for_backward(program: Program, *, policy: str | Policy = "everything") -> Program:
    """Chooses what the forward pass saves for the backward one, which recomputes the rest: `jax.checkpoint` with a policy.

    A policy says which values may be saved; those that the backward pass reads are saved. It computes all other values
    again from these and from the inputs, by the same operations in the same order, so that gradients are bitwise
    those of any other policy. A collective that is not saved runs again too. Computed ids, weights that decide which
    entries are dropped, and random numbers are saved under every policy.

    Rewrite:
        # moe_ffn_vjp                           b = saved_1   c = saved_2
        ->
        # moe_ffn_vjp | save_for_backward(...)  b = grouped_matmul saved_0 gate_up_weight a   c = swiglu b

    Requires: a plain function, or one under transforms of the traced Program. Values that a transform after this one makes
        in the place of saved values are saved.
    Ensures: the same function and bitwise the same gradients; the backward program begins with what it recomputes.

    Args:
        f: the function.
        policy: "everything" saves all values that the backward pass reads; "recompute_swiglu" saves all except activations,
            the results of SwiGLU or other elementwise operations on received rows; "dispatched_rows" saves only received
            rows; a function (equation) -> bool returns True if the equation's outputs may be saved. It is called once for
            each equation of the traced program that makes no route. An equation has `primitive.name`, `inputs` and
            `outputs` (each with an `aval`), `params` and `source`, the user's line.

    Raises:
        ArgumentError: policy is not one of these, or the function does not return a bool.
        TransformError: applied to a function that is staged already.

    Example:
        >>> import hpmoe
        >>> f = hpmoe.save_for_backward(lambda x, w: hpmoe.swiglu(x) @ w, policy=lambda e: e.primitive.name != "swiglu")
        >>> print(f.lower(hpmoe.ShapeDtypeStruct((8, 4), "float32"), hpmoe.ShapeDtypeStruct((2, 3), "float32"),
        ...               direction="backward"))
        # <lambda>_vjp | save_for_backward(policy=<lambda>)
        { lambda x:f32[8,4] w:f32[2,3] d_out:f32[8,3]
          let a:f32[8,2] = swiglu x
              b:f32[8,2] = matmul[transpose=True] d_out w
              c:f32[2,3] = weight_grad a d_out
              d:f32[8,4] = swiglu_grad b x
          in (d, c) : f32[8,4], f32[2,3] }
    """
    chosen = POLICIES[policy] if isinstance(policy, str) else policy
    saves, is_all = [], True
    for eqn in program.equations:
        if isinstance(eqn.outputs[0].aval, RouteAval):
            continue
        answer = call_user("save_for_backward", "policy(equation)", "True or False", chosen, eqn)
        check_argument(isinstance(answer, bool), "save_for_backward", f"policy({eqn.primitive.name})", repr(answer),
                       "True or False", f"Asked of the equation written at {eqn.source}." if eqn.source else "")
        saves += eqn.outputs if answer else ()
        is_all = is_all and answer
    return program.replace(saves=None if is_all else frozenset(saves))
