"""Program: the operator-level IR. Inputs, equations in order, outputs; immutable, checked where it is built, printable."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from hpmoe.capacity import MANY_MORE, Capacity, most_rows
from hpmoe.errors import ProgramError, check_argument, is_int
from hpmoe.placement import Placement

SHORT_DTYPE = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64", "int32": "i32", "int64": "i64",
               "bool": "bool"}


class Rows:
    """The number of rows a rank receives through one route: a dimension known only when the routing is."""

    def __repr__(self) -> str:
        return "R"


@dataclasses.dataclass(frozen=True)
class Aval:
    """Shape and dtype of an array; a dimension is an int or a `Rows`.

    Raises:
        ArgumentError: shape is not of such dimensions, or dtype no string.

    Example:
        >>> Aval((4, 8), "float32")
        f32[4,8]
    """

    shape: tuple[int | Rows, ...]
    dtype: str

    def __post_init__(self) -> None:
        is_listed = isinstance(self.shape, (tuple, list))
        is_shape = is_listed and all(isinstance(d, Rows) or is_int(d, 0, 2**63) for d in self.shape)
        check_argument(is_shape, "hpmoe.Aval", "shape", repr(self.shape), "a tuple of ints that are not negative")
        check_argument(isinstance(self.dtype, str), "hpmoe.Aval", "dtype", repr(self.dtype), "a name such as \"float32\"")
        object.__setattr__(self, "shape", tuple(d if isinstance(d, Rows) else int(d) for d in self.shape))

    def __repr__(self) -> str:
        return f"{SHORT_DTYPE.get(self.dtype, self.dtype)}[{','.join(map(repr, self.shape))}]"


@dataclasses.dataclass(frozen=True)
class RouteAval:
    """The abstract value of a route: where every (token, choice) entry goes.

    Attributes:
        rows: the symbolic number of received rows.
        num_tokens: tokens of a rank, an upper bound where ranks differ.
        top_k: experts per token.
        num_experts: experts of all ranks together.
        ep_size: expert-parallel ranks.
        capacity: what each expert takes of each rank at most, or None for everything.
        placement: which ranks hold copies of experts, or None for no copies.
        once: whether it is a route to ranks, each of which counts as one expert and gets a token once at most.
    """

    rows: Rows
    num_tokens: int
    top_k: int
    num_experts: int
    ep_size: int
    capacity: Capacity | None = None
    placement: Placement | None = None
    once: bool = False

    @property
    def num_own_experts(self) -> int:
        """Experts that each rank owns."""
        return self.num_experts // self.ep_size

    @property
    def num_replicas(self) -> int:
        """Copies of other ranks' experts that each rank has room for."""
        return self.placement.num_replicas if self.placement else 0

    @property
    def num_local_experts(self) -> int:
        return self.num_own_experts + self.num_replicas

    @property
    def max_rows(self) -> int:
        """The most rows a rank can receive, whatever the routing."""
        return most_rows(self.num_tokens, self.top_k, self.num_experts, self.num_local_experts, self.ep_size, self.capacity)

    @property
    def likely_rows(self) -> int:
        """The rows that a rank is likely to receive where nothing is known of the routing: as many as it sends, where
        experts have a capacity or many more could come; else as many as could."""
        sent = self.num_tokens * self.top_k
        return min(self.max_rows, sent) if self.capacity or self.max_rows > MANY_MORE * sent else self.max_rows

    @property
    def drops(self) -> bool:
        """Whether there may be entries without a row."""
        return self.once or (self.capacity is not None and self.capacity.drops)

    def __repr__(self) -> str:
        return "route"


class Var:
    """A value of a Program. It has an abstract value and no name: printing invents names."""

    __slots__ = ("aval",)

    def __init__(self, aval: Aval | RouteAval):
        self.aval = aval

    def __repr__(self) -> str:
        return f"Var({self.aval!r})"


@dataclasses.dataclass(frozen=True)
class Literal:
    """A scalar written in the program text."""

    value: float | int | bool

    @property
    def aval(self) -> Aval:
        return Aval((), "float32")

    def __repr__(self) -> str:
        return repr(self.value)


Atom = Var | Literal


@dataclasses.dataclass(frozen=True, eq=False)
class Equation:
    """`outputs = primitive[params] inputs`, with the user's line it came from."""

    primitive: Any
    inputs: tuple[Atom, ...]
    params: Mapping[str, Any]
    outputs: tuple[Var, ...]
    source: str = ""

    def replace(self, **changes: Any) -> Equation:
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A pure function of arrays: `outputs` computed from `inputs` by `equations`.

    Attributes:
        name: of the function it came from; the first word of the text.
        inputs: variables, explicit arguments first, then one for each capture.
        input_names: printed names of the inputs.
        equations: in an order in which they can be run.
        outputs: atoms returned.
        ep_size: number of expert-parallel ranks that run it together.
        captures: MindSpore tensors the traced function closed over, the values of the last inputs.
        provenance: transforms applied so far, as printed.
        token_rows: variables known to have rows that belong to tokens, with the rows of each token. A backward Program
            has them from its forward one, whose routes it may not need; None where the equations say it all.
        saves: variables that the forward pass may save for the backward one, which computes again whatever else it needs;
            all of them where None.
        main_grads: float32 tensors that the gradients of some inputs are added to, in place.

    Raises:
        ProgramError: it breaks a rule, see check_program.

    Example:
        >>> import hpmoe
        >>> program = hpmoe.trace(lambda x: x * x, hpmoe.Aval((3,), "float32"))
        >>> [eqn.primitive.name for eqn in program.equations], program.outputs[0].aval
        (['mul'], f32[3])
    """

    name: str
    inputs: tuple[Var, ...]
    input_names: tuple[str, ...]
    equations: tuple[Equation, ...]
    outputs: tuple[Atom, ...]
    ep_size: int = 1
    captures: tuple[Any, ...] = ()
    provenance: tuple[str, ...] = ()
    token_rows: Mapping[Var, int] | None = None
    saves: frozenset[Var] | None = None
    main_grads: Mapping[Var, Any] = dataclasses.field(default_factory=dict)

    level = "program"

    def __post_init__(self) -> None:
        check_program(self)

    def replace(self, **changes: Any) -> Program:
        return dataclasses.replace(self, **changes)

    def __str__(self) -> str:
        from hpmoe.program_text import program_text
        return program_text(self)

    __repr__ = __str__


def check_program(program: Program) -> None:
    """Raises ProgramError unless every variable is defined once, before use, with the shape its primitive gives."""
    if len(program.input_names) != len(program.inputs):
        raise ProgramError(f"program {program.name} has {len(program.inputs)} inputs and {len(program.input_names)} names")
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
    from hpmoe.program_text import program_window
    raise ProgramError(f"{_place(program, index)} of {program.name} {what}\n" + program_window(program, index))


def _define(program: Program, defined: set[Var], var: Var, where: str) -> None:
    if var in defined:
        raise ProgramError(f"{where} of {program.name} defines a variable twice")
    defined.add(var)


def _same_avals(expected: Sequence[Any], got: Sequence[Any]) -> bool:
    """Avals agree; a route's fresh Rows differs each time a shape rule runs, so routes compare by their numbers."""
    def key(aval: Any) -> Any:
        if isinstance(aval, RouteAval):
            return dataclasses.replace(aval, rows=None)
        return aval
    return [key(a) for a in expected] == [key(a) for a in got]


class Builder:
    """Collects equations into a Program; the one place shape rules are applied."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []

    def add(self, primitive: Any, *inputs: Atom | float | int, source: str = "", **params: Any) -> Any:
        """Appends an equation; returns its output variable, or a tuple of them."""
        atoms = tuple(a if isinstance(a, (Var, Literal)) else Literal(a) for a in inputs)
        avals = primitive.infer_avals(tuple(a.aval for a in atoms), params, source)
        outputs = tuple(Var(aval) for aval in avals)
        self.equations.append(Equation(primitive, atoms, dict(params), outputs, source))
        return outputs[0] if len(outputs) == 1 else outputs


def substitute(equations: Iterable[Equation], mapping: Mapping[Var, Atom]) -> tuple[Equation, ...]:
    """The same equations reading `mapping[v]` wherever they read `v`."""
    return tuple(e.replace(inputs=tuple(mapping.get(a, a) if isinstance(a, Var) else a for a in e.inputs))
                 for e in equations)


def live_equations(equations: Sequence[Equation], outputs: Iterable[Atom]) -> tuple[Equation, ...]:
    """The equations that `outputs` depend on, in order."""
    needed = {a for a in outputs if isinstance(a, Var)}
    kept = []
    for eqn in reversed(equations):
        if any(v in needed for v in eqn.outputs):
            kept.append(eqn)
            needed.update(a for a in eqn.inputs if isinstance(a, Var))
    return tuple(reversed(kept))


def map_equations(program: Program, rule: Callable[[Builder, Equation], Sequence[Atom] | None]) -> Program:
    """Rebuilds a program, letting `rule(builder, equation)` replace any equation by other atoms.

    `rule` returns the atoms that stand for the equation's outputs, or None to keep it; equations whose results nobody
    reads afterwards are dropped. This is all a Program -> Program transform needs.
    """
    builder, mapping = Builder(), {}
    for eqn in program.equations:
        (eqn,) = substitute([eqn], mapping)
        replaced = rule(builder, eqn)
        if replaced is None:
            builder.equations.append(eqn)
        else:
            mapping.update(zip(eqn.outputs, replaced, strict=True))
    outputs = tuple(mapping.get(a, a) if isinstance(a, Var) else a for a in program.outputs)
    return program.replace(equations=live_equations(builder.equations, outputs), outputs=outputs)
