"""Prints terms as C++ with minimal parentheses; a variable holds each long term that is used twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from hpmoe.tile_ops.terms import Number, Term

PRECEDENCE = {"?": 0, "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 4, "<=": 4, ">": 4, ">=": 4, "+": 5, "-": 5, "*": 6, "/": 6,
              "%": 6, "!": 7}
LONG = 24  # characters; a shorter term is repeated


class Variables:
    """Variables for the terms that several expressions share."""

    def __init__(self, numbers: Iterable[Number]):
        counts: Counter[str] = Counter()
        for number in numbers:
            _count(number, counts)
        self._shared = [text for text, count in counts.items() if count > 1 and len(text) > LONG]
        self._names: dict[str, str] = {}

    def define(self, number: Number) -> list[str]:
        """Returns the definitions of the variables that `number` uses first."""
        if not isinstance(number, Term):
            return []
        lines = [line for part in number.parts for line in self.define(part)]
        text = repr(number)
        if text in self._shared and text not in self._names:
            value = self.text(number)
            self._names[text] = f"v{len(self._names) + 1}"
            lines.append(f"const int64_t {self._names[text]} = {value};")
        return lines

    def text(self, number: Number) -> str:
        """Returns a number as C++."""
        if not isinstance(number, Term):
            return str(number).lower() if isinstance(number, bool) else str(int(number))
        if repr(number) in self._names:
            return self._names[repr(number)]
        operator, parts = number.operator, number.parts
        if not parts:
            return operator
        if operator == "!":
            return f"!{self._part(parts[0], 7)}"
        level = PRECEDENCE[operator]
        if operator == "?":
            condition, then, otherwise = (self._part(part, level + 1) for part in parts)
            return f"{condition} ? {then} : {otherwise}"
        left = self._part(parts[0], level)
        right = self._part(parts[1], level if operator in ("&&", "||", "+") else level + 1)
        return f"{left} {operator} {right}"

    def _part(self, number: Number, level: int) -> str:
        """Prints a part, in parentheses if the part binds less than `level`; compilers warn of && inside || without them."""
        text = self.text(number)
        named = not isinstance(number, Term) or not number.parts or repr(number) in self._names
        if named or (PRECEDENCE[number.operator] >= level and not (number.operator == "&&" and level == 1)):
            return text
        return f"({text})"


def _count(number: Number, counts: Counter[str]) -> None:
    """Counts terms with parts; the parts of a repeated term count once."""
    if isinstance(number, Term) and number.parts:
        text = repr(number)
        counts[text] += 1
        if counts[text] == 1:
            for part in number.parts:
                _count(part, counts)
