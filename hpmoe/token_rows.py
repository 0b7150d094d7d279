"""Which variables have one row for each token, so that rows past a rank's number of tokens are padding."""

from __future__ import annotations

import math

from hpmoe.program import Atom, Aval, Equation, Program, Rows, Var


def token_vars(program: Program) -> dict[Var, int]:
    """Variables whose rows are those of tokens, with the rows each token has: one, or g where it is cut into g groups.

    They are what is dispatched and combined, and all that is computed token by token with it. In a program without a
    route, and without `token_rows`, the rows of the first input are tokens.
    """
    tokens = dict(program.token_rows or {}) | {v: 1 for e in program.equations for v in _routed(e) if isinstance(v, Var)}
    if not tokens and program.token_rows is None:
        tokens = {v: 1 for v in program.inputs[:1]}
    counts = ((num_rows(v), m) for v, m in tokens.items())
    num_tokens = max((rows // m for rows, m in counts if rows is not None), default=0)
    links = [linked for e in program.equations if len(linked := _linked(e, num_tokens)) > 1]
    size = -1
    while size != len(tokens):
        size = len(tokens)
        for linked in links:
            if not tokens.keys().isdisjoint(linked):
                tokens.update((v, max(1, num_rows(v) // max(1, num_tokens))) for v in linked)
    return tokens


def _routed(eqn: Equation) -> list[Atom]:
    """Token-side operands and results of a communication equation."""
    if eqn.primitive.name == "route":
        return list(eqn.inputs)
    if eqn.primitive.name in ("dispatch", "dispatch_weights"):
        return [eqn.inputs[0]]
    if eqn.primitive.name in ("combine", "combine_weights"):
        return [*eqn.inputs[2:], *eqn.outputs]
    return []


def _linked(eqn: Equation, num_tokens: int) -> list[Var]:
    """Variables of an equation whose rows belong to the same tokens."""
    name, (x, *_), out = eqn.primitive.name, eqn.inputs, eqn.outputs[0]
    moves_rows = eqn.params.get("axes", (0,))[0] != 0 or (eqn.params.get("axis") == 0 and len(x.aval.shape) > 1)
    if eqn.primitive.collective or moves_rows:
        return []
    if name == "reshape" or (name in ("reduce_sum", "reduce_max") and len(x.aval.shape) > 1):
        both = [v for v in (x, out) if isinstance(v, Var) and num_rows(v) is not None]
        return both if all(num_rows(v) % max(1, num_tokens) == 0 for v in both) else []
    variables = [a for a in _row_sides(eqn) if isinstance(a, Var) and isinstance(a.aval, Aval)]
    counts = [num_rows(v) for v in variables]
    rows = num_rows(out) if name not in ("weight_grad", "scatter") else counts[0]
    full = [v for v, c in zip(variables, counts, strict=True) if c == rows and c is not None]
    return [v for v in full if len(v.aval.shape) > 1 or len(eqn.inputs) == 1 or len(out.aval.shape) == 1
            or name in ("gather", "scatter")]


def _row_sides(eqn: Equation) -> list[Atom]:
    """Operands and results of an equation that are computed row by row."""
    if eqn.primitive.name == "matmul":
        return [eqn.inputs[0], *eqn.outputs]
    if eqn.primitive.name == "gather":
        return [eqn.inputs[1], *eqn.outputs]
    if eqn.primitive.name in ("weight_grad", "scatter"):
        return list(eqn.inputs)
    return [*eqn.inputs, *eqn.outputs]


def num_rows(var: Var) -> int | None:
    """Static rows of a variable: all but its last dimension, or the elements of a vector; None of a scalar."""
    shape = var.aval.shape
    if not shape or any(isinstance(d, Rows) for d in shape):
        return None
    return shape[0] if len(shape) == 1 else math.prod(shape[:-1])
