"""Checks that ranks may hold fewer tokens than their arrays have rows for, padding after them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hpmoe.ir.avals import RouteAval, fixed
from hpmoe.ir.program import Equation, Program, Var, program_window
from hpmoe.ir.token_rows import count_tokens, linked_vars, num_rows, routed, token_of_element, token_sources, token_vars
from hpmoe.support.errors import ArgumentError, check_argument, has_bools, is_int
from hpmoe.support.known import known
from hpmoe.support.trees import PyTree

Fault = tuple[int, str]


def rank_lengths(who: str, num_tokens: Sequence[int], ep_size: int) -> tuple[int, ...]:
    """Returns the number of tokens of each rank; raises ArgumentError unless they are an int of at least 0 for each rank."""
    try:
        given = np.asarray(num_tokens)
    except (TypeError, ValueError):  # of different lengths inside
        given = np.zeros(0)
    are_ints = given.dtype.kind in "iu" and not has_bools(num_tokens)
    check_argument(are_ints and given.shape == (ep_size,), who, "num_tokens", repr(num_tokens),
                   f"{ep_size} ints, one for each rank")
    lengths = tuple(given.tolist())
    check_argument(min(lengths) >= 0, who, "num_tokens", list(lengths), "a list of ints of at least 0")
    return lengths


def own_length(num_tokens: PyTree) -> tuple[int, ...]:
    """Returns the number of tokens of this process's rank, as a tuple of one; raises ArgumentError unless it is an int >= 0.
    """
    check_argument(is_int(num_tokens, least=0), "spmd", "num_tokens", num_tokens,
                   "an int of at least 0, the number of this rank's tokens")
    return (int(num_tokens),)


def check_num_tokens(who: str, program: Program, num_tokens: Sequence[int], fault: Fault | None) -> None:
    """Raises ArgumentError unless each rank may hold `num_tokens` tokens; `fault` is the program's `padding_fault`."""
    given, sources = list(num_tokens), token_sources(program)
    first = dict(zip(program.inputs, program.input_names, strict=True))
    name = "topk_ids" if any(isinstance(e.outputs[0].aval, RouteAval) for e in program.equations) else next(
        (first[v] for v in sources), "its arguments")
    is_counted = any(num_rows(v) is not None for v in sources)
    check_argument(is_counted, who, "num_tokens", given,
                   f"left out, as {program.name} has no rows of tokens: {name} has none")
    check_argument(max(given, default=0) <= count_tokens(sources), who, "num_tokens", given,
                   f"at most {count_tokens(sources)}, the rows of {name}")
    if fault is not None:
        index, why = fault
        raise ArgumentError(f"{who}: num_tokens is {given}; it must be left out: equation {index} "
                            f"({program.equations[index].primitive.name}) of {program.name} {why}\n"
                            + program_window(program, index))


def padding_fault(program: Program) -> Fault | None:
    """Returns the first equation whose result would include padding, and what it does; None if there is none.

    What is computed token by token does not, nor what is dispatched, nor a sum over all tokens, to which padding adds
    nothing. Numbers that the function made of the shapes it saw are those of the arrays, padding included.
    """
    tokens = token_vars(program)
    num_tokens = count_tokens(token_sources(program))
    for i, eqn in enumerate(program.equations):
        sides = routed(eqn)
        counts = [num_rows(a) for a in sides if isinstance(a, Var)]
        if any(n != num_tokens for n in counts):
            return i, f"has {counts[0]} tokens, and other equations have {num_tokens}"
        linked = [] if eqn.outputs[0] not in tokens else linked_vars(eqn, num_tokens)
        for position, x in enumerate(eqn.inputs):
            is_weight = (eqn.primitive.name, position) in (("matmul", 1), ("gather", 0))
            if x in tokens and x not in sides and (is_weight or x not in linked):
                why = _mixes(eqn, x, num_tokens)
                if why:
                    return i, why
    return None


def _mixes(eqn: Equation, x: Var, num_tokens: int) -> str:
    """Describes an equation that mixes rows of tokens; "" for a sum over all tokens."""
    name, axis = eqn.primitive.name, eqn.params.get("axis")
    mixed = f"mixes the rows of several tokens of {x.aval}"
    if name == "reduce_max":
        return "takes a maximum over tokens"
    if name == "gather":
        return f"picks rows of {x.aval}, which are tokens, by an index"
    if name == "weight_grad":  # sums products of rows over all tokens
        return ""
    if name != "reduce_sum" or (known(axis) > 0 and axis == len(x.aval.shape) - 1):
        return mixed
    tokens = token_of_element(fixed(x.aval.shape), num_tokens)
    tokens = tokens[..., :1] if tokens.ndim > 1 else tokens
    if np.any(np.count_nonzero(np.diff(tokens, axis=known(axis)), axis=axis) != max(0, num_tokens - 1)):
        return mixed
    return "takes a mean over tokens, and would divide by the rows of padding too" if eqn.params.get("mean") else ""
