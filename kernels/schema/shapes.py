"""core/generated/shapes.h: the size rules of every operation, as a function that returns an error text or NULL."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import IntEnum
from typing import get_type_hints

from hpmoe.kernels.protocol import PRIMITIVES
from hpmoe.kernels.schema.cpp import header
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


def text() -> str:
    """Returns the header."""
    cases = "\n".join(case for p in PRIMITIVES.values() if (case := _case(p)))
    return header("Size rules of tile operations, from their definitions in hpmoe/tile_ops.", ['"core/shapes.h"'],
                  "// Returns the first size rule that an operation breaks, or NULL.\n"
                  "inline const char* shapes_fault(Opcode opcode, const Shapes& s) {\n"
                  f"  switch (opcode) {{\n{cases}\n    default: break;\n  }}\n  return nullptr;\n}}")


def _case(primitive: TilePrimitive) -> str:
    """Returns the case that checks an operation, or "" if every size is accepted."""
    rules = [*_general_rules(primitive), *primitive.rules(Recorder(primitive))]
    faults = [(not_(holds), text.format(*numbers)) for holds, text, *numbers in rules if holds is not True]
    article = "an" if primitive.name[0] in "AEIOU" else "a"
    variables, lines = Variables(fault for fault, _ in faults), []
    for fault, said in faults:
        lines += [f"      {line}" for line in variables.define(fault)]
        lines.append(f'      if ({variables.text(fault)})\n        return "{article} {primitive.name} {said}";')
    return "\n".join([f"    case Opcode::{primitive.name}: {{", *lines, "    } break;"]) if lines else ""


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
