"""Terms printed as C++ have the values of the same rules on numbers."""

import operator

import numpy as np
import pytest

from hpmoe.kernels.schema.expressions import Variables
from hpmoe.tile_ops.terms import Term, implies, not_, where

ARITHMETIC = [operator.add, operator.sub, operator.mul]
COMPARISONS = [operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge]


def some_number(rng, names, depth):
    if depth == 0 or rng.random() < 0.2:
        return names[rng.integers(len(names))] if rng.random() < 0.7 else int(rng.integers(1, 9))
    if rng.random() < 0.2:
        return where(some_condition(rng, names, depth - 1), *(some_number(rng, names, depth - 1) for _ in range(2)))
    if rng.random() < 0.2:
        return (some_number(rng, names, depth - 1) + 0) // int(rng.integers(1, 5)) % int(rng.integers(1, 5))
    return ARITHMETIC[rng.integers(3)](some_number(rng, names, depth - 1) + 0, some_number(rng, names, depth - 1))


def some_condition(rng, names, depth):
    kind = rng.integers(4) if depth > 0 else 0
    if kind == 0:
        return COMPARISONS[rng.integers(6)](some_number(rng, names, depth) + names[0], some_number(rng, names, depth))
    parts = [some_condition(rng, names, depth - 1) for _ in range(2)]
    return [lambda a, b: a & b, lambda a, b: a | b, implies][kind - 1](*parts) if rng.random() < 0.7 else not_(parts[0])


def evaluate(text, values):
    """Evaluates a C++ expression by operator precedence."""
    depth, splits = 0, {}
    tokens = text.replace("(", " ( ").replace(")", " ) ").replace("!", " ! ").replace(" !  =", " !=").split()
    for i, token in enumerate(tokens):
        depth += (token == "(") - (token == ")")
        if depth == 0:
            splits.setdefault(token, []).append(i)
    join = " ".join
    if "?" in splits:
        first, last = splits["?"][0], splits[":"][-1]
        chosen = tokens[first + 1:last] if evaluate(join(tokens[:first]), values) else tokens[last + 1:]
        return evaluate(join(chosen), values)
    levels = [("||",), ("&&",), ("==", "!="), ("<", "<=", ">", ">="), ("+", "-"), ("*", "/", "%")]
    functions = {"||": lambda a, b: bool(a or b), "&&": lambda a, b: bool(a and b), "==": operator.eq, "!=": operator.ne,
                 "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge, "+": operator.add,
                 "-": operator.sub, "*": operator.mul, "/": operator.floordiv, "%": operator.mod}
    for level in levels:
        places = [i for token in level for i in splits.get(token, []) if i > 0]
        if places:
            i = max(places)
            return functions[tokens[i]](evaluate(join(tokens[:i]), values), evaluate(join(tokens[i + 1:]), values))
    if tokens[0] == "!":
        return not evaluate(join(tokens[1:]), values)
    if tokens[0] == "(":
        return evaluate(join(tokens[1:-1]), values)
    return values[tokens[0]] if tokens[0] in values else int(tokens[0])


@pytest.mark.parametrize("seed", range(40))
def test_terms_mean_in_cpp_what_numbers_mean_in_python(seed):
    values = {"a": 3, "b": 7, "c": 12}
    number = some_condition(np.random.default_rng(seed), list(values.values()), 4)
    term = some_condition(np.random.default_rng(seed), list(map(Term, values)), 4)
    variables = Variables([term])
    known = dict(values)
    for line in variables.define(term):
        name, value = line.removeprefix("const int64_t ").removesuffix(";").split(" = ", 1)
        known[name] = evaluate(value, known)
    assert bool(evaluate(variables.text(term), known)) is bool(number)


def test_a_rule_that_branches_is_told_how_to_choose():
    with pytest.raises(TypeError, match="has no truth value; a rule uses implies, where"):
        bool(Term("s.width(0)") > 4)
