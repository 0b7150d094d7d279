"""Symbolic arithmetic: a rule computes with numbers, or with terms that another module prints in another language.

    >>> rule = lambda width: implies(width > 4, ceil_div(width, 4) <= 8)
    >>> rule(40), rule(Term("width"))
    (False, ||(<=(width, 4), <=(/(+(width, 3), 4), 8)))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Number = Any  # an int or a bool, or a Term
NEGATED = {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


class Term:
    """Expression tree: a C++ operator and its operands, numbers and terms, or the name of a number."""

    def __init__(self, operator: str, *parts: Number):
        self.operator, self.parts = operator, parts

    def __repr__(self) -> str:
        return f"{self.operator}({', '.join(map(repr, self.parts))})" if self.parts else self.operator

    def __format__(self, spec: str) -> str:
        return "?"  # known when the rule runs

    def __bool__(self) -> bool:
        raise TypeError(f"{self} has no truth value; a rule uses implies, where, & and |")

    def __and__(self, other: Number) -> Number:
        return other and self if isinstance(other, bool) else Term("&&", self, other)

    def __or__(self, other: Number) -> Number:
        return other or self if isinstance(other, bool) else Term("||", self, other)

    __rand__, __ror__ = __and__, __or__
    __hash__ = None  # type: ignore[assignment]


def _method(operator: str, is_reversed: bool = False) -> Callable[[Term, Number], Term]:
    return lambda self, other: Term(operator, *((other, self) if is_reversed else (self, other)))


for _name, _operator in {"add": "+", "sub": "-", "mul": "*", "floordiv": "/", "mod": "%", "lt": "<", "le": "<=", "gt": ">",
                         "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(Term, f"__{_name}__", _method(_operator))
    if _operator in ("+", "-", "*"):
        setattr(Term, f"__r{_name}__", _method(_operator, is_reversed=True))


def not_(condition: Number) -> Number:
    if not isinstance(condition, Term):
        return not condition
    operator, parts = condition.operator, condition.parts
    if operator == "!":
        return parts[0]
    if operator in ("&&", "||"):
        return Term("||" if operator == "&&" else "&&", *map(not_, parts))
    return Term(NEGATED[operator], *parts) if operator in NEGATED else Term("!", condition)


def implies(condition: Number, then: Number) -> Number:
    """Returns `then` where the condition holds; otherwise True."""
    return not_(condition) | then


def where(condition: Number, then: Number, otherwise: Number) -> Number:
    """Returns one of two numbers."""
    if not isinstance(condition, Term):
        return then if condition else otherwise
    return Term("?", condition, then, otherwise)


def ceil_div(a: Number, b: Number) -> Number:
    """Returns a / b, rounded up."""
    return (a + (b - 1)) // b
