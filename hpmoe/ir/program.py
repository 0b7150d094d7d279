"""Program: the operator-level IR. Inputs, equations in order, outputs; immutable, checked where it is built, printable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn, Protocol

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.ir.level import Level
from hpmoe.support.dtypes import REALS
from hpmoe.support.errors import ArgumentError, ProgramError, is_name
from hpmoe.support.keywords import suggests_keywords

DIRECTIONS = ("forward", "backward")
AROUND = 2  # equations on either side of the one that an error is about


class Var:
    """A variable of a Program. `aval` is its shape and dtype. A Var has no name: printing assigns names."""

    __slots__ = ("aval",)

    def __init__(self, aval: ShapeDtypeStruct | RouteAval):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var({self.aval!r})"


@dataclasses.dataclass(frozen=True)
class Literal:
    """A constant scalar, an input of an Equation that is printed as its value."""

    value: float | int | bool

    @property
    def aval(self) -> ShapeDtypeStruct:
        return ShapeDtypeStruct((), "float32")

    def __repr__(self) -> str:
        return repr(self.value)


Atom = Var | Literal
Report = Callable[[np.ndarray, bool], Exception | None]
Params = Mapping[str, Any]  # by name, what the rules of a primitive, which may be a user's, are told beside atoms


def is_differentiable(atom: Atom) -> bool:
    """Returns True for a variable that is an array of floating point numbers."""
    return isinstance(atom, Var) and isinstance(atom.aval, ShapeDtypeStruct) and atom.aval.dtype in REALS


class Operator(Protocol):
    """Operator of an equation; see `hpmoe.primitives.primitive.Primitive`."""

    name: str
    collective: bool
    rules: dict[str, Callable[..., Any]]

    def infer_avals(self, avals: tuple[ShapeDtypeStruct | RouteAval, ...], params: Params,
                    source: str = "") -> tuple[ShapeDtypeStruct | RouteAval, ...]: ...
    def rule(self, question: str, asker: str) -> Callable[..., Any]: ...


@suggests_keywords
@dataclasses.dataclass(frozen=True, eq=False)
class Equation:
    """An application of a primitive, `outputs = primitive[params] inputs`; `source` is the line of the user's function."""

    primitive: Operator
    inputs: tuple[Atom, ...]
    params: Params
    outputs: tuple[Var, ...]
    source: str = ""

    def replace(self, **changes: object) -> Equation:
        return dataclasses.replace(self, **changes)


@suggests_keywords
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Program(Level):
    """A pure function of arrays: `outputs` computed from `inputs` by `equations`.

    Attributes:
        name, ep_size, provenance: see Level.
        direction: "forward"; "backward" for a Program that `hpmoe.rewriting.vjp` returns.
        inputs: Vars, explicit arguments first, then one for each capture.
        input_names: printed names of the inputs.
        equations: Equations, in an order in which they can run.
        outputs: returned Vars and Literals.
        captures: MindSpore tensors that the traced function closed over, the values of the last inputs.
        token_rows: for Vars whose rows belong to tokens, the number of rows of each token. A backward Program, which may
            lack the routes, has this from its forward Program; None if the equations are enough.
        saves: Vars that the forward pass may save for the backward pass, which recomputes all other values; None allows all.
        main_grads: float32 tensors to which the backward pass adds the gradients of some inputs, in place.
        cotangents: inputs of a backward Program that are gradients of the forward Program's outputs.
        frozen: inputs whose gradients are not computed.
        reports: functions of the last outputs, which are not returned to the caller. A function takes (array, True if the
            first dimension is that of ranks) and returns the error that the call raises, or None.

    Raises:
        ProgramError: the Program breaks a rule of check_program.

    Example:
        >>> import hpmoe
        >>> program = hpmoe.trace(lambda x: x * x, hpmoe.ShapeDtypeStruct((3,), "float32"))
        >>> [eqn.primitive.name for eqn in program.equations], program.outputs[0].aval
        (['mul'], f32[3])
    """

    inputs: tuple[Var, ...]
    input_names: tuple[str, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    captures: tuple[Tensor, ...] = ()
    token_rows: Mapping[Var, int] | None = None
    saves: frozenset[Var] | None = None
    main_grads: Mapping[Var, Tensor] = dataclasses.field(default_factory=dict)
    cotangents: frozenset[Var] = frozenset()
    frozen: frozenset[Var] = frozenset()
    reports: tuple[Report, ...] = ()

    level = "program"

    def __post_init__(self) -> None:
        check_program(self)

    @property
    def num_results(self) -> int:
        """Number of outputs for the caller; these come first."""
        return len(self.outputs) - len(self.reports)


def check_program(program: Program) -> None:
    """Raises ProgramError unless every variable is defined once, before use, with the shape its primitive gives."""
    if len(program.input_names) != len(program.inputs):
        raise ProgramError(f"program {program.name} has {len(program.inputs)} inputs and {len(program.input_names)} names")
    if not is_name(program.direction, DIRECTIONS):
        raise ProgramError(f"program {program.name} is of direction {program.direction!r}; it must be one of "
                           f"{', '.join(DIRECTIONS)}")
    defined: set[Var] = set()
    for var in program.inputs:
        _define(program, defined, var, "the inputs")
    for index, eqn in enumerate(program.equations):
        for atom in eqn.inputs:
            if isinstance(atom, Var) and atom not in defined:
                _fail(program, index, "reads a variable that is not defined before it")
        expected = eqn.primitive.infer_avals(tuple(a.aval for a in eqn.inputs), eqn.params, eqn.source)
        got = tuple(v.aval for v in eqn.outputs)
        if not _same_avals(expected, got):
            _fail(program, index, f"has outputs {got}, its shape rule gives {expected}")
        for var in eqn.outputs:
            _define(program, defined, var, _place(program, index))
    for atom in program.outputs:
        if isinstance(atom, Var) and atom not in defined:
            raise ProgramError(f"an output of {program.name} is not defined by any equation")


def _place(program: Program, index: int) -> str:
    return f"equation {index} ({program.equations[index].primitive.name})"


def _fail(program: Program, index: int, what: str) -> NoReturn:
    raise ProgramError(f"{_place(program, index)} of {program.name} {what}\n" + program_window(program, index))


def program_window(program: Program, index: int) -> str:
    """Returns the lines of a program's text around equation number `index`, which is marked, as errors show them.

    `>` stands before that one, the user's line after it.
    """
    lines = str(program).splitlines()[-1 - len(program.equations):-1]
    window = []
    for i in range(max(0, index - AROUND), min(len(lines), index + AROUND + 1)):
        window.append(("  > " if i == index else "    ") + lines[i][len("  let "):])
        if i == index and program.equations[i].source:
            window.append(f"      written at {program.equations[i].source}")
    return "\n".join(window)


def _define(program: Program, defined: set[Var], var: Var, where: str) -> None:
    if var in defined:
        raise ProgramError(f"{where} of {program.name} defines a variable twice")
    defined.add(var)


def _same_avals(expected: Sequence[ShapeDtypeStruct | RouteAval], got: Sequence[ShapeDtypeStruct | RouteAval]) -> bool:
    """Returns True if avals agree; a route's fresh Rows differs each time, so that routes compare by their numbers."""
    def key(aval: ShapeDtypeStruct | RouteAval) -> object:
        if isinstance(aval, RouteAval):
            return dataclasses.replace(aval, rows=None)
        return aval
    return [key(a) for a in expected] == [key(a) for a in got]


class Builder:
    """Adds equations to a Program under construction, and computes the shapes and dtypes of their outputs.

    Attributes:
        equations: the added Equations, in order.
        replaces: the program and the index of the equation that a rule of map_equations replaces.
        source: line of the user's function for equations that are added without one.
    """

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.replaces: tuple[Program, int] | None = None
        self.source = ""

    def add(self, primitive: Operator, *inputs: Atom | float | int, source: str = "", **params: Any) -> Any:
        """Appends an equation; returns its output variable, or a tuple of them."""
        try:
            outputs = self._add(primitive, inputs, source or self.source, params)
            return outputs[0] if len(outputs) == 1 else outputs
        except (ArgumentError, ProgramError) as error:
            if self.replaces is None:
                raise
            program, index = self.replaces
            raise type(error)(f"{error}\n  in the rule for {_place(program, index)} of {program.name}\n"
                              + program_window(program, index)) from error.__cause__

    def _add(self, primitive: Operator, inputs: Sequence[Atom | float | int], source: str,
             params: Params) -> tuple[Var, ...]:
        for i, a in enumerate(inputs):
            if not isinstance(a, (Var, Literal, bool, int, float, np.generic)):
                raise ProgramError(f"{primitive.name}: operand {i} is of type {type(a).__name__}; it must be a Var, a "
                                   "Literal or a number")
        atoms = tuple(a if isinstance(a, (Var, Literal)) else Literal(a) for a in inputs)
        avals = primitive.infer_avals(tuple(a.aval for a in atoms), params, source)
        outputs = tuple(Var(aval) for aval in avals)
        self.equations.append(Equation(primitive, atoms, dict(params), outputs, source))
        return outputs

    def keep(self, eqn: Equation) -> Any:
        """Appends an equation as it is; returns its output variable, or a tuple of them."""
        self.equations.append(eqn)
        return eqn.outputs[0] if len(eqn.outputs) == 1 else eqn.outputs


def substitute(equations: Iterable[Equation], mapping: Mapping[Var, Atom]) -> tuple[Equation, ...]:
    """Returns the equations with each input `v` replaced by `mapping[v]`."""
    return tuple(e.replace(inputs=tuple(mapping.get(a, a) if isinstance(a, Var) else a for a in e.inputs))
                 for e in equations)


def live_equations(equations: Sequence[Equation], outputs: Iterable[Atom]) -> tuple[Equation, ...]:
    """Returns the equations that `outputs` depend on, in order."""
    needed = {a for a in outputs if isinstance(a, Var)}
    kept = []
    for eqn in reversed(equations):
        if any(v in needed for v in eqn.outputs):
            kept.append(eqn)
            needed.update(a for a in eqn.inputs if isinstance(a, Var))
    return tuple(reversed(kept))


def _stand_ins(program: Program, index: int, eqn: Equation, atoms: Sequence[Atom]) -> dict[Var, Atom]:
    count = len(eqn.outputs)
    if not isinstance(atoms, (list, tuple)) or len(atoms) != count or not all(isinstance(a, (Var, Literal)) for a in atoms):
        raise ProgramError(f"map_equations: the rule returned {atoms!r} for {eqn.primitive.name} of {program.name}; it must "
                           f"return None or a list of {count}, a Var or Literal for each output")
    for var, atom in zip(eqn.outputs, atoms, strict=True):
        if not _is_alike(var.aval, atom):
            raise ProgramError(f"map_equations: the rule returned {atom.aval} for {_place(program, index)} of "
                               f"{program.name}; it must return {var.aval}, the shape and dtype of that output\n"
                               + program_window(program, index))
    return dict(zip(eqn.outputs, atoms, strict=True))


def _is_alike(aval: ShapeDtypeStruct | RouteAval, atom: Atom) -> bool:
    """Returns True if an atom can replace a value: equal shape and dtype, a number for a scalar, a route of the same rows.
    """
    if isinstance(aval, RouteAval) or isinstance(atom.aval, RouteAval):
        return isinstance(aval, RouteAval) and isinstance(atom.aval, RouteAval) and aval.rows is atom.aval.rows
    return aval.shape == atom.aval.shape and (isinstance(atom, Literal) or aval.dtype == atom.aval.dtype)


@suggests_keywords
def map_equations(program: Program, rule: Callable[[Builder, Equation], Sequence[Atom] | None]) -> Program:
    """Returns a copy of a Program in which `rule(builder, equation)` may replace each equation.

    `rule` returns None to keep the equation, or the atoms (Vars or Literals) that replace its outputs. `builder` adds new
    equations; `builder.keep(equation)` adds the old one and returns its outputs. The result has no equations whose
    outputs are unused. An atom that replaces a value in `program.saves` is saved too.

    Raises:
        ProgramError: a rule returns something else, or an atom of another shape or dtype than the replaced output.
    """
    builder, mapping = Builder(), {}
    for index, eqn in enumerate(program.equations):
        (eqn,) = substitute([eqn], mapping)
        builder.replaces = program, index
        replaced = rule(builder, eqn)
        if replaced is None:
            builder.keep(eqn)
        else:
            mapping.update(_stand_ins(program, index, eqn, replaced))
    outputs = tuple(mapping.get(a, a) if isinstance(a, Var) else a for a in program.outputs)
    saves = program.saves
    if saves is not None:
        saves = saves.union(a for v, a in mapping.items() if v in saves and isinstance(a, Var))
    return program.replace(equations=live_equations(builder.equations, outputs), outputs=outputs, saves=saves)
