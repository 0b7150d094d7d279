"""core/generated/shapes.h: the size rules of every operation, as a function that returns an error text or NULL."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import get_type_hints

from hpmoe.kernels.protocol import PRIMITIVES
from hpmoe.kernels.schema.cpp import WIDTH, header
from hpmoe.kernels.schema.expressions import Variables
from hpmoe.tile_ops.col_modes import ColMode
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.named import Named
from hpmoe.tile_ops.params import Params
from hpmoe.tile_ops.row_modes import RowMode
from hpmoe.tile_ops.shapes import Rules
from hpmoe.tile_ops.terms import Number, Term, not_
from hpmoe.tile_ops.tile_primitive import Result, TilePrimitive


class Recorder:
    """Shapes with symbolic answers: calls of the functions of the same names in core/shapes.h."""

    def __init__(self, primitive: TilePrimitive):
        self._primitive = primitive
        self.params = params_of(primitive.params)

    def name(self, i: int) -> str:
        return f"operand {i}"

    def cols_are(self, i: int, mode: ColMode) -> Term | bool:
        """Returns True for an operand that the tile body cuts, since an image does not store its column mode."""
        return self._is_cut(i) or Term(f"s.cols_are({i}, {_argument(mode)})")

    def same_cols(self, i: int, j: int) -> Term | bool:
        return self._is_cut(i) or self._is_cut(j) or Term(f"s.same_cols({i}, {j})")

    def _is_cut(self, i: int) -> bool:
        return self._primitive.operand(i).is_cut_by_body

    def __getattr__(self, name: str) -> Callable[..., Term]:
        return lambda *arguments: Term(f"s.{name}({', '.join(map(_argument, arguments))})")


def params_of(params: type[Params]) -> Params:
    """Returns params whose attributes are terms, the words of an image."""
    names = params.names_in_image()
    return params(**{f.name: Term(f"s.param({names.index(f.name)})") if f.name in names else None
                     for f in dataclasses.fields(params)})  # type: ignore[arg-type]


@dataclasses.dataclass(frozen=True)
class Rule:
    """A size rule: the fault that breaks it, the fault as text, and the words of its error after the operation's name."""

    fault: Number = dataclasses.field(compare=False)
    key: str
    said: str


def text() -> str:
    """Returns the header."""
    runs = itertools.groupby(_merged(), key=lambda each: each[0])
    body = "\n".join(line for names, run in runs for line in _lines(names, [rule for _, rule in run]))
    return header("Size rules of tile operations, from their definitions in hpmoe/tile_ops.", ['"core/shapes.h"'],
                  "// Returns the first size rule that an operation breaks, as words after the operation's name, or NULL.\n"
                  f"inline const char* shapes_fault(Opcode opcode, const Shapes& s) {{\n{body}\n  return nullptr;\n}}")


def _merged() -> Iterator[tuple[tuple[str, ...], Rule]]:
    """Yields each rule once, with the names of its operations; the rules of an operation keep their order."""
    lists = {primitive.name: _rules(primitive) for primitive in PRIMITIVES.values()}
    names: tuple[str, ...] = ()
    while any(lists.values()):
        free = {rules[0]: tuple(name for name, others in lists.items() if rules[0] in others)
                for rules in lists.values() if rules and all(rules[0] not in others[1:] for others in lists.values())}
        rule, names = next(((rule, held) for rule, held in free.items() if held == names), next(iter(free.items())))
        yield names, rule
        for name in names:
            del lists[name][0]


def _rules(primitive: TilePrimitive) -> list[Rule]:
    """Returns the rules of an operation that some size breaks."""
    rules = [*_general_rules(primitive), *primitive.rules(Recorder(primitive))]
    faults = [(not_(holds), text.format(*numbers)) for holds, text, *numbers in rules if holds is not True]
    return [Rule(fault, repr(fault), said) for fault, said in faults]


def _lines(names: Sequence[str], rules: Sequence[Rule]) -> Iterator[str]:
    """Yields the lines of a run of rules that hold for the operations of these names."""
    opcodes = [f"Opcode::{name}" for name in names]
    holds = Term(f"opcode == {opcodes[0]}" if len(names) == 1 else f"is_one_of(opcode, {', '.join(opcodes)})")
    variables = Variables(rule.fault for rule in rules)
    definitions = [variables.define(rule.fault) for rule in rules]
    if len(rules) == 1 and not definitions[0]:
        yield from _check(variables.text(holds & rules[0].fault), rules[0].said, "  ")
        return
    yield f"  if ({variables.text(holds)}) {{"
    for rule, lines in zip(rules, definitions, strict=True):
        yield from (f"    {line}" for line in lines)
        yield from _check(variables.text(rule.fault), rule.said, "    ")
    yield "  }"


def _check(fault: str, said: str, indent: str) -> list[str]:
    """Returns a return statement under a condition, on one line if it fits."""
    line = f'{indent}if ({fault}) return "{said}";'
    return [line] if len(line) <= WIDTH else [f"{indent}if ({fault})", f'{indent}  return "{said}";']


def _general_rules(primitive: TilePrimitive) -> Rules:
    """Checks that words of enums and bools hold their members, and that moved elements keep their dtype."""
    if primitive.result is Result.MOVED:
        yield Recorder(primitive).same_dtype(0, 1), "moves elements to another dtype"
    types = get_type_hints(primitive.params)
    for i, name in enumerate(primitive.params.names_in_image()):
        word: Number = Term(f"s.param({i})")
        if types[name] is bool:
            yield (word == 0) | (word == 1), f"has a word for {name} that is neither 0 nor 1"
        elif issubclass(types[name], IntEnum):
            yield (word >= 0) & (word < len(types[name])), f"has an unknown kind of {name}"
        elif issubclass(types[name], Function):
            inputs: Number = Term(f"num_map_inputs(s.param({i}))")
            yield inputs > 0, f"has an unknown {name}"


def _argument(value: Number) -> str:
    if isinstance(value, Named):
        return f"{'Rows' if isinstance(value, RowMode) else 'Cols'}::{value.name.upper()}"
    return Variables(()).text(value)
