"""Which variables have one row for each token, so that rows past a rank's number of tokens are padding."""

from __future__ import annotations

import math

from hpmoe.program import Atom, Aval, Equation, Program, Rows, Var


def token_vars(program: Program) -> set[Var]:
    """Variables whose rows are tokens: what is dispatched and combined, and all that is computed row by row with it.

    In a program without a route the rows of the first input are tokens.
    """
    routed = {v for e in program.equations for v in _routed(e)}
    tokens = routed or set(program.inputs[:1])
    links = [linked for e in program.equations if len(linked := _linked(e)) > 1]
    size = -1
    while size != len(tokens):
        size = len(tokens)
        for linked in links:
            if not tokens.isdisjoint(linked):
                tokens.update(linked)
    return tokens


def _routed(eqn: Equation) -> list[Atom]:
    """Token-side operands and results of a communication equation."""
    if eqn.primitive.name in ("route", "dispatch", "dispatch_weights"):
        return [eqn.inputs[0]]
    if eqn.primitive.name in ("combine", "combine_weights"):
        return [*eqn.inputs[2:], *eqn.outputs]
    return []


def _linked(eqn: Equation) -> list[Var]:
    """Variables of an equation whose rows correspond one to one."""
    if eqn.primitive.collective:
        return []
    if eqn.primitive.name == "matmul":
        candidates = [eqn.inputs[0], *eqn.outputs]
    elif eqn.primitive.name == "weight_grad":
        candidates = list(eqn.inputs)
    elif eqn.params.get("axis") == 0 and len(eqn.inputs[0].aval.shape) > 1:
        return []
    else:
        candidates = [*eqn.inputs, *eqn.outputs]
    variables = [a for a in candidates if isinstance(a, Var) and isinstance(a.aval, Aval)]
    counts = [_num_rows(v) for v in variables]
    rows = _num_rows(eqn.outputs[0]) if eqn.primitive.name != "weight_grad" else counts[0]
    full = [v for v, c in zip(variables, counts, strict=True) if c == rows and c is not None]
    return [v for v in full if len(v.aval.shape) > 1 or len(eqn.inputs) == 1 or len(eqn.outputs[0].aval.shape) == 1]


def _num_rows(var: Var) -> int | None:
    """Static rows of a variable: all but its last dimension, or the elements of a vector."""
    shape = var.aval.shape
    if any(isinstance(d, Rows) for d in shape):
        return None
    return shape[0] if len(shape) == 1 else math.prod(shape[:-1])
