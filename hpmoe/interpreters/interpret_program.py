"""The operator-level interpreter: runs a Program on all ranks with the NumPy reference of each primitive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.ir.avals import RouteAval, Rows
from hpmoe.ir.padding import check_num_tokens, padding_fault, rank_lengths
from hpmoe.ir.program import Atom, Equation, Literal, Program, Var, program_window
from hpmoe.ir.token_rows import token_vars
from hpmoe.routing.routing import Route
from hpmoe.support.dtypes import FLOATS, rounded, widen
from hpmoe.support.errors import ProgramError, check_argument, check_inputs, is_name
from hpmoe.support.known import known

Value = np.ndarray | Route | float  # of one rank


def interpret_program(program: Program, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
                      dtype: str | None = None) -> list[list[np.ndarray]]:
    """Returns the outputs of every rank; the output of each equation is rounded to its dtype. See `hpmoe.interpret`."""
    _check(program, inputs, dtype)
    num_tokens = None if num_tokens is None else _lengths(program, num_tokens)
    ranks = range(program.ep_size)
    env: dict[Var, list[Value]] = {}
    tokens = token_vars(program) if num_tokens is not None else {}

    def define(var: Var, values: Sequence[Value]) -> None:
        if var in tokens:
            values = [_without_padding(np.asarray(v), tokens[var] * n)
                      for v, n in zip(values, known(num_tokens), strict=True)]
        env[var] = list(values)

    for i, var in enumerate(program.inputs):
        define(var, [_stored(inputs[r][i], var.aval.dtype, dtype) for r in ranks])

    def read(atom: Atom) -> list[Value]:
        return [atom.value] * len(ranks) if isinstance(atom, Literal) else env[atom]

    def operand(atom: Atom) -> list[Value]:
        return [widen(v) if isinstance(v, np.ndarray) else v for v in read(atom)]

    for index, eqn in enumerate(program.equations):
        operands, routes = [operand(a) for a in eqn.inputs], _routes(env)
        with np.errstate(all="ignore" if tokens else None):  # padding rows are computed before they are dropped
            outs = _run_equation(eqn, operands, routes, num_tokens)
        for var, values in zip(eqn.outputs, outs, strict=True):
            _check_made(program, index, var, values, routes)
            define(var, [v if isinstance(v, Route) else _stored(v, var.aval.dtype, dtype) for v in values])
    return [[np.asarray(read(a)[r]) for a in program.outputs] for r in ranks]


def _check(program: Program, inputs: Sequence[Sequence[np.ndarray]], dtype: str | None) -> None:
    check_inputs("hpmoe.interpret", inputs, program.ep_size,
                 [(name, v.aval.shape) for name, v in zip(program.input_names, program.inputs, strict=True)])
    check_argument(dtype is None or is_name(dtype, ("float64",)), "hpmoe.interpret", "dtype", repr(dtype),
                   "\"float64\" or None")


def _check_made(program: Program, index: int, var: Var, values: Sequence[Value], routes: dict[Rows, list[Route]]) -> None:
    """Raises ProgramError if a reference rule computed an array of another shape than the shape rule says."""
    if isinstance(var.aval, RouteAval) or any(isinstance(d, Rows) and d not in routes for d in var.aval.shape):
        return
    for rank, value in enumerate(values):
        shape = tuple(routes[d][rank].num_rows if isinstance(d, Rows) else d for d in var.aval.shape)
        found = () if isinstance(value, Route) else np.shape(value)
        if found != shape:
            name = program.equations[index].primitive.name
            raise ProgramError(f"interpret: the reference rule of {name} returned an array of shape {found}; it "
                               f"must be of {shape}, as {var.aval}\n{program_window(program, index)}")


def _lengths(program: Program, num_tokens: Sequence[int]) -> Sequence[int]:
    """Returns the number of tokens of each rank; the program must be able to tell its padding."""
    lengths = rank_lengths("hpmoe.interpret", num_tokens, program.ep_size)
    if program.token_rows is None:
        check_num_tokens("hpmoe.interpret", program, lengths, padding_fault(program))
    return lengths


def _without_padding(array: np.ndarray, num_rows: int) -> np.ndarray:
    """Returns a copy whose rows past the rank's tokens are zero."""
    array = array.copy()
    rows = array if array.ndim == 1 else array.reshape(-1, array.shape[-1])
    rows[num_rows:] = 0
    return array


def _stored(value: np.ndarray | float, declared: str, dtype: str | None) -> np.ndarray:
    return rounded(value, dtype if dtype and declared in FLOATS else declared)


def _routes(env: dict[Var, list[Value]]) -> dict[Rows, list[Route]]:
    return {v.aval.rows: [route for route in values if isinstance(route, Route)]
            for v, values in env.items() if isinstance(v.aval, RouteAval)}


def _run_equation(eqn: Equation, operands: list[list[Value]], routes: dict[Rows, list[Route]],
                  num_tokens: Sequence[int] | None) -> list[list[Value]]:
    reference = eqn.primitive.rule("reference", "evaluate")
    if eqn.primitive.collective:
        extra = {"num_tokens": num_tokens} if eqn.primitive.name == "route" else {}
        return [reference(*operands, **eqn.params, **extra)]
    per_rank = []
    for rank, arrays in enumerate(zip(*operands, strict=True)):
        params = dict(eqn.params)
        if "shape" in params:
            params["shape"] = tuple(routes[d][rank].num_rows if isinstance(d, Rows) else d for d in params["shape"])
        out = reference(*arrays, **params)
        per_rank.append(out if isinstance(out, tuple) else (out,))
    return [list(column) for column in zip(*per_rank, strict=True)]


def _run(program: Program, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
         dtype: str | None = None, **_: object) -> list[list[np.ndarray]]:
    return interpret_program(program, inputs, num_tokens, dtype)


Program.interpreter = _run
