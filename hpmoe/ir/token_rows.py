"""Finds variables that have one row for each token, so that rows past a rank's number of tokens are padding.

Tokens follow one another in an array: where a token has g rows, those of token t are g * t .. g * t + g - 1. A row is all of
the last dimension, or an element of a vector.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpmoe.ir.avals import Rows, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Equation, Program, Var
from hpmoe.support.known import known

MOVING = ("slice", "pad", "concat", "transpose", "reduce_sum", "reduce_max")  # along any axis
MIXING = ("sort_indices", "permute", "unpermute", "expert_places", "expert_counts")


def token_vars(program: Program) -> dict[Var, int]:
    """Returns the variables whose rows are those of tokens, with the rows of a token: one, or g if cut into g groups.

    They are what is dispatched and combined, and all that is computed token by token with it. In a program without a
    route, and without `token_rows`, the rows of the first input are tokens.
    """
    tokens = token_sources(program)
    num_tokens = count_tokens(tokens)
    links = [linked for e in program.equations if len(linked := linked_vars(e, num_tokens)) > 1]
    size = -1
    while size != len(tokens):
        size = len(tokens)
        for linked in links:
            if not tokens.keys().isdisjoint(linked):
                tokens.update((v, _rows_of_token(v, num_tokens)) for v in linked)
    return tokens


def _rows_of_token(var: Var, num_tokens: int) -> int:
    """Returns the rows of one token; without tokens, the product of the axes between the first and the last."""
    shape = known(row_shape(var))
    return max(1, math.prod(shape) // num_tokens) if num_tokens else max(1, math.prod(shape[1:]))


def token_sources(program: Program) -> dict[Var, int]:
    """Returns the variables known to have rows of tokens before any follow from them, each with the rows of a token."""
    tokens = dict(program.token_rows or {}) | {v: 1 for e in program.equations for v in routed(e) if isinstance(v, Var)}
    if not tokens and program.token_rows is None:
        tokens = {v: 1 for v in program.inputs[:1]}
    return tokens


def count_tokens(tokens: dict[Var, int]) -> int:
    """Returns the static number of tokens of a rank."""
    counts = ((num_rows(v), g) for v, g in tokens.items())
    return max((rows // g for rows, g in counts if rows is not None), default=0)


def routed(eqn: Equation) -> list[Atom]:
    """Returns the token-side operands and results of a communication equation."""
    if eqn.primitive.name == "route":
        return list(eqn.inputs)
    if eqn.primitive.name in ("dispatch", "dispatch_weights"):
        return [eqn.inputs[0]]
    if eqn.primitive.name in ("combine", "combine_quantized", "combine_weights"):
        return [*eqn.inputs[2:], *eqn.outputs]
    return []


def num_rows(var: Var) -> int | None:
    """Returns the number of rows of a variable: the product of all dimensions but the last, or the length of a vector.

    Returns None for a scalar and for received rows, whose number is dynamic.
    """
    shape = row_shape(var)
    return None if shape is None else math.prod(shape)


def row_shape(var: Var) -> tuple[int, ...] | None:
    """Returns the dimensions that count rows; None for a scalar and for received rows."""
    shape = var.aval.shape
    if not shape or any(isinstance(d, Rows) for d in shape):
        return None
    return fixed(shape if len(shape) == 1 else shape[:-1])


# Which variables of an equation have rows of the same tokens: if one of them has rows of tokens, all of them have.

def linked_vars(eqn: Equation, num_tokens: int) -> list[Var]:
    """Returns the variables of an equation whose rows belong to the same tokens."""
    name, out = eqn.primitive.name, eqn.outputs[0]
    if eqn.primitive.collective or name in MIXING:
        return []
    if name in ("weight_grad", "scatter"):
        return _with_whole_tokens(eqn.inputs[:2], num_tokens)
    if name == "gather":
        return _with_whole_tokens([eqn.inputs[1], out], num_tokens)
    variables = _with_whole_tokens([*eqn.inputs, *eqn.outputs], num_tokens)
    if out not in variables:
        return []
    if name == "reshape":
        return variables
    if name == "matmul":
        variables = [v for v in variables if v in (eqn.inputs[0], out)]
    if name in MOVING:
        return variables if len(variables) > 1 and _stays_with_tokens(eqn, num_tokens) else []
    return [v for v in variables if v is out or _same_tokens(v, out, num_tokens)]


def _with_whole_tokens(atoms: Sequence[Atom], num_tokens: int) -> list[Var]:
    """Returns the static variables among the atoms whose number of rows is a multiple of that of tokens."""
    variables = [a for a in atoms if isinstance(a, Var) and isinstance(a.aval, ShapeDtypeStruct)]
    return [v for v in variables if (rows := num_rows(v)) is not None and rows % max(1, num_tokens) == 0]


def _same_tokens(x: Var, out: Var, num_tokens: int) -> bool:
    """Returns True if broadcasting computes each row of `out` from a row of x of the same token."""
    mine, whole = known(row_shape(x)), known(row_shape(out))
    if (len(x.aval.shape) == 1) != (len(out.aval.shape) == 1):
        return False
    if mine == whole or num_tokens <= 1:
        return math.prod(mine) == math.prod(whole)
    fits = len(mine) <= len(whole) and all(a in (1, b) for a, b in zip(mine[::-1], whole[::-1], strict=False))
    return fits and np.array_equal(np.broadcast_to(_token_of_row(mine, num_tokens), whole), _token_of_row(whole, num_tokens))


def _token_of_row(shape: tuple[int, ...], num_tokens: int) -> np.ndarray:
    """Returns the token of each row of an array; its rows are a multiple of the tokens."""
    rows = math.prod(shape)
    return (np.arange(rows) // max(1, rows // max(1, num_tokens))).reshape(shape)


def _stays_with_tokens(eqn: Equation, num_tokens: int) -> bool:
    """Returns True if an equation moves or sums rows only within tokens."""
    out, axis, shapes = eqn.outputs[0], eqn.params.get("axis"), [a.aval.shape for a in eqn.inputs]
    if axis is not None and len(shapes[0]) > 1 and axis == len(shapes[0]) - 1:
        return True
    if axis == 0 and num_tokens <= 1:  # of one token there is no telling whether an axis of one row is that of tokens
        return False
    moved = _moved([token_of_element(fixed(a.aval.shape), num_tokens) for a in eqn.inputs], eqn)
    return moved is not None and _equal_views(moved, token_of_element(fixed(out.aval.shape), num_tokens))


def token_of_element(shape: tuple[int, ...], num_tokens: int) -> np.ndarray:
    """Returns the token of each element of an array, as a view of the token of each row."""
    if len(shape) == 1:
        return _token_of_row(shape, num_tokens)
    return np.broadcast_to(_token_of_row(shape[:-1], num_tokens)[..., None], shape)


def _moved(tokens: list[np.ndarray], eqn: Equation) -> np.ndarray | None:
    """Returns the source token of each element of the result; None if an element comes from several tokens."""
    name, (x, *_), p = eqn.primitive.name, tokens, eqn.params
    if name == "transpose":
        return x.transpose(p["axes"])
    if name == "slice":
        return x[(slice(None),) * p["axis"] + (slice(p["start"], p["stop"], p.get("step")),)]
    if name == "pad":  # a zero is of the token of an element beside it
        place = (np.arange(eqn.outputs[0].aval.shape[p["axis"]]) - p["before"]) // p.get("step", 1)
        return np.take(x, place.clip(0, x.shape[p["axis"]] - 1), p["axis"]) if x.size else None
    if name == "concat":
        return np.concatenate(tokens, axis=p["axis"])
    first = x[(slice(None),) * p["axis"] + (slice(0, 1),)]
    if not x.shape[p["axis"]] or not _equal_views(np.broadcast_to(first, x.shape), x):
        return None
    return first if p["keepdims"] else first.squeeze(p["axis"])


def _equal_views(a: np.ndarray, b: np.ndarray) -> bool:
    """Returns True if two arrays are equal; an axis along which both repeat is compared once."""
    if a.shape != b.shape:
        return False
    once = tuple(slice(0, 1) if s == t == 0 else slice(None) for s, t in zip(a.strides, b.strides, strict=True))
    return np.array_equal(a[once], b[once])
