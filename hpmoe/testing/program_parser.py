"""The Program of a text, as `print` shows it: what a test of a rewrite writes down."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
from collections.abc import Iterator

from hpmoe.ir.avals import SHORT_DTYPE, RouteAval, Rows, ShapeDtypeStruct
from hpmoe.ir.program import Atom, Equation, Literal, Program, Var
from hpmoe.primitives.primitive import REGISTRY, Primitive
from hpmoe.support.errors import ArgumentError
from hpmoe.support.trees import PyTree

DTYPES = {short: name for name, short in SHORT_DTYPE.items()}
TYPED = re.compile(r"([^\s:]+):(\w+)\[([^\]]*)\]")
PARAM = re.compile(r"(\w+)=(\([^)]*\)|\S+)")
TEXT = re.compile(r"(?:#(?P<heads>.*)\n)?\s*\{ lambda(?P<inputs>.*?)\n\s*(?:let(?P<equations>.*?)\n\s*)?"
                  r"in \((?P<outputs>.*?),?\) : .*\}\s*", re.DOTALL)


def parse_program(text: str, direction: str = "forward") -> Program:
    """Returns the Program that prints as `text`; its first line, with name and provenance, may be left out.

    Raises:
        ArgumentError: a line is no equation, or of no primitive; a copy of an expert's placement has no text to read.
        ProgramError: it is no program.

    Example:
        >>> import hpmoe
        >>> text = str(hpmoe.trace(lambda x: x * 2.0, hpmoe.ShapeDtypeStruct((3,), "float32")))
        >>> str(parse_program(text)) == text
        True
    """
    found = TEXT.fullmatch(text.strip())
    if found is None:
        raise ArgumentError("hpmoe.testing: the text of a program begins with \"{ lambda\", or a line with # before that, "
                            f"and ends with \"in (...) : ... }}\"; it is {text.strip()[:60]!r}")
    return _Parser().program(found, direction)


class _Parser:
    """Reads equations one after the other, with the variables that earlier lines define."""

    def __init__(self) -> None:
        self.values: dict[str, Var] = {}
        self.rows: dict[str, Rows] = {}
        self.ep_size = 1

    def program(self, found: re.Match[str], direction: str) -> Program:
        inputs = [self._input(typed) for typed in TYPED.findall(found["inputs"])]
        names = tuple(name for name, _, _ in TYPED.findall(found["inputs"]))
        equations = tuple(self._equations((found["equations"] or "").splitlines()))
        outputs = tuple(self._atom(word.strip()) for word in found["outputs"].split(",") if word.strip())
        name, *provenance = (part.strip() for part in (found["heads"] or "program").split(" | "))
        return Program(name=name, inputs=tuple(inputs), input_names=names, equations=equations, outputs=outputs,
                       ep_size=self.ep_size, provenance=tuple(provenance), direction=direction)

    def _input(self, typed: tuple[str, str, str]) -> Var:
        name, dtype, shape = typed
        self.values[name] = var = Var(ShapeDtypeStruct(self._shape(shape), DTYPES.get(dtype, dtype)))
        return var

    def _shape(self, shape: str) -> tuple[int | Rows, ...]:
        dims = shape.replace(" ", "").split(",")
        return tuple(int(d) if d.isdigit() else self.rows.setdefault(d, Rows()) for d in dims if d)

    def _atom(self, word: str) -> Atom:
        if word in self.values:
            return self.values[word]
        try:
            return Literal(ast.literal_eval(word) if word.lstrip("-") not in ("inf", "nan") else float(word))
        except (SyntaxError, ValueError):
            raise ArgumentError(f"hpmoe.testing: {word!r} is no variable of the lines before it, and no number") from None

    def _equations(self, lines: list[str]) -> Iterator[Equation]:
        for line in filter(str.strip, lines):
            left, _, right = line.partition(" = ")
            found = re.fullmatch(r"\s*(\w+)(?:\[(.*)\])?((?: [^\[\]]+)?)\s*", right)
            if found is None or found[1] not in REGISTRY or not TYPED.search(left):
                raise ArgumentError(f"hpmoe.testing: {line.strip()!r} is no equation such as \"b:f32[4] = add a 1.0\"; "
                                    "help(hpmoe.rewriting.primitives) lists the primitives")
            yield self._equation(REGISTRY[found[1]], TYPED.findall(left), found[2] or "", found[3].split())

    def _equation(self, primitive: Primitive, results: list[tuple[str, str, str]], params: str,
                  words: list[str]) -> Equation:
        atoms = tuple(self._atom(word) for word in words)
        given = {name: _value(value) for name, value in PARAM.findall(params)}
        if "shape" in given:  # rows of several routes have equal texts there
            given["shape"] = self._shape(results[0][2])
        for p in inspect.signature(primitive.rules["infer"]).parameters.values():
            if p.kind is p.KEYWORD_ONLY and p.default is p.empty:
                given.setdefault(p.name, False)  # which is left out where it is printed
        self.ep_size = max(self.ep_size, given.get("ep_size", 1))
        avals = primitive.infer_avals(tuple(a.aval for a in atoms), given)
        outputs = tuple(self._result(*result, aval) for result, aval in zip(results, avals, strict=True))
        return Equation(primitive, atoms, given, outputs)

    def _result(self, name: str, dtype: str, shape: str, aval: ShapeDtypeStruct | RouteAval) -> Var:
        """Returns the variable that an equation defines, with its written type; a route has its written rows."""
        if isinstance(aval, RouteAval):
            aval = dataclasses.replace(aval, rows=self.rows.setdefault(shape, Rows()))
        else:
            aval = ShapeDtypeStruct(self._shape(shape), DTYPES.get(dtype, dtype))
        self.values[name] = var = Var(aval)
        return var


def _value(text: str) -> PyTree:
    """Returns a param's value: a number, True, a tuple of numbers, or a name."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text
