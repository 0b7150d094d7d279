"""Primitive: an operator of the Program level and its answers to the questions transforms ask."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.support.errors import ArgumentError, ProgramError

Rule = Callable[..., Any]  # of what its question says, see Primitive
R = TypeVar("R", bound=Rule)

REGISTRY: dict[str, Primitive] = {}

QUESTIONS = {
    "infer": "what shape and dtype its outputs have",
    "reference": "what it computes on NumPy arrays",
    "eager": "how it runs on MindSpore tensors outside a trace",
    "vjp": "what its gradient is",
    "tile": "which tile tasks compute it",
}


_signature = functools.cache(inspect.signature)


def _find(name: str) -> Primitive:
    return REGISTRY[name]


def _written_at(source: str) -> str:
    return f"\n  written at {source}" if source else ""


class Primitive:
    """An operator; each rule is a function registered beside it: `@swiglu.infer def _(x): ...`, or, if it is one expression,
    `cumsum.reference(lambda x, *, reverse: ...)`.

    Rules:
        infer(*avals, **params) -> aval or tuple of avals.
        reference(*arrays, **params) -> array or tuple, in NumPy, one rank. A primitive that moves data between ranks
            (`collective=True`) is given and returns lists over ranks instead of arrays.
        eager(*tensors, **params): the same on MindSpore tensors.
        vjp(builder, equation, cotangents) -> one cotangent atom or None for each input.
        tile(tiler, equation): emits tile operations.
    A primitive that is not `differentiable` has a vjp rule from the start, which gives no input a cotangent.
    """

    def __init__(self, name: str, *, collective: bool = False, differentiable: bool = True):
        if name in REGISTRY:
            raise ProgramError(f"primitive {name} is defined twice")
        self.name, self.collective = name, collective
        self.rules: dict[str, Rule] = {}
        if not differentiable:
            self.vjp(lambda builder, eqn, cotangents: [None] * len(eqn.inputs))
        REGISTRY[name] = self

    def __repr__(self) -> str:
        return self.name

    @property
    def signature(self) -> str:
        """Signature of its equations: atoms, then params by name."""
        shown = []
        for p in _signature(self.rules["infer"]).parameters.values():
            if p.kind is not p.KEYWORD_ONLY:
                shown.append(f"*{p.name}" if p.kind is p.VAR_POSITIONAL else p.name)
            else:
                shown.append(f"{p.name}=" + ("" if p.default is p.empty else repr(p.default)))
        return f"{self.name}({', '.join(shown)})"

    def __reduce__(self) -> tuple[Callable[[str], Primitive], tuple[str]]:
        """Pickles by name: rewrites compare primitives by identity, so a copy is the same object."""
        return _find, (self.name,)

    def _register(self, question: str) -> Callable[[R], R]:
        def keep(rule: R) -> R:
            self.rules[question] = rule
            return rule
        return keep

    infer = property(lambda self: self._register("infer"))
    reference = property(lambda self: self._register("reference"))
    eager = property(lambda self: self._register("eager"))
    vjp = property(lambda self: self._register("vjp"))
    tile = property(lambda self: self._register("tile"))

    def rule(self, question: str, asker: str) -> Rule:
        """Returns the rule that answers `question`; without one raises ProgramError with primitive, question and asker."""
        if question not in self.rules:
            raise ProgramError(f"{asker} asked {self.name} {QUESTIONS[question]}, and it has no {question} rule")
        return self.rules[question]

    def infer_avals(self, avals: tuple[ShapeDtypeStruct | RouteAval, ...], params: Mapping[str, object],
                    source: str = "") -> tuple[ShapeDtypeStruct | RouteAval, ...]:
        """Returns the abstract outputs; raises ArgumentError, with the user's line, if the operands do not fit."""
        rule = self.rule("infer", "the program builder")
        try:
            _signature(rule).bind(*avals, **params)
        except TypeError as error:
            raise ArgumentError(f"{self.name}: {error}; it is {self.signature}" + _written_at(source)) from None
        try:
            out = rule(*avals, **params)
        except ArgumentError as error:
            raise ArgumentError(f"{error}" + ("" if source in str(error) else _written_at(source))) from None
        return out if isinstance(out, tuple) else (out,)

    def __call__(self, *args: object, **params: object) -> Any:
        """Records an equation where an argument is being traced, otherwise runs on MindSpore tensors."""
        for arg in args:
            record = getattr(arg, "hpmoe_record", None)
            if record is not None:
                return record(self, args, params)
        return self.rule("eager", "a call outside a trace")(*args, **params)


def transposed_by(primitive: Primitive) -> Rule:
    """Returns the vjp rule of a primitive linear in its first input: `primitive` of the cotangent and the other inputs."""
    def rule(builder: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
        return [builder.add(primitive, cotangents[0], *eqn.inputs[1:]), *[None] * len(eqn.inputs[1:])]
    return rule
