"""A Program that computes ids is cut at its routes: a stage is all that can run before the next exchange of counts.

A kernel reads the ids of its routes when it starts. So ids that are computed are outputs of one stage and given to the next.
A stage holds just what leads to the ids of later ones, and the last one everything else, which overlaps its exchanges.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

import numpy as np

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.ir.program import Atom, Equation, Program, Var
from hpmoe.ir.token_rows import token_vars
from hpmoe.support.dtypes import HALVES
from hpmoe.support.known import known
from hpmoe.support.notebook import NotebookText
from hpmoe.support.remembered import remembered
from hpmoe.support.trees import PyTree


class IR(Protocol):
    """Lowered form of a program: a Program, a Taskflow, or an Executable."""

    @property
    def level(self) -> str: ...
    @property
    def provenance(self) -> tuple[str, ...]: ...
    def run(self, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
            **options: PyTree) -> list[list[np.ndarray]]:
        """Computes the outputs of every rank. An option that the level does not have is ignored.

        Args:
            inputs: for each rank, one array for each program input.
            num_tokens: tokens of each rank; all by default.
            **options: `seed` of the reference interpreter, which runs a Taskflow, and a kernel if the seed is given;
                `received`, for each route by ids the rows of each rank, if they are counted already; `into`, for some
                outputs the array of each rank that a kernel writes them to.
        """
        ...


AnyIR = Any  # a Program, Taskflow, Executable or Stages: which, only the level says
Lowered = TypeVar("Lowered", bound=IR)
V = TypeVar("V")


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """One of the Programs that a Program is cut into; results of earlier parts are its inputs.

    Attributes:
        program: returns outputs of the whole first, then what later parts read.
        places: indices of the whole program's outputs that its first outputs are.
        makers: the equations of earlier parts that made the ids and weights of its routes.
    """

    program: Program
    places: tuple[int, ...]
    makers: Mapping[Var, Equation]


@dataclasses.dataclass(frozen=True, eq=False)
class Stages(NotebookText, Generic[Lowered]):
    """The IR of several stages, in the order they run in; printing shows one after the other. What IR is asked for beyond
    these attributes is asked of each stage.

    Attributes:
        program: the whole program, before it was cut.
        irs: the lowered IR of each part: Programs, Taskflows or Executables.
    """

    program: Program
    irs: tuple[Lowered, ...]

    @property
    def level(self) -> str:
        return self.irs[0].level

    @property
    def provenance(self) -> tuple[str, ...]:
        return self.irs[0].provenance

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def direction(self) -> str:
        return self.program.direction

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(self.irs[0], name):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise AttributeError(f"{name} is of each stage: {self.name} computes its ids, so lower returns {len(self)} stages, "
                             f"one for each launch, as in [stage.{name} for stage in lowered]")

    def run(self, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
            **options: PyTree) -> list[list[np.ndarray]]:
        """Runs one stage after the other; see IR."""
        values = PartValues(self.program, inputs)
        for part, ir in zip(cut_at_routes(self.program), self.irs, strict=True):
            values.add(part, ir.run(values.inputs_of(part), num_tokens, **options))
        return values.outputs()

    def __len__(self) -> int:
        return len(self.irs)

    def __iter__(self) -> Iterator[Lowered]:
        return iter(self.irs)

    def __getitem__(self, index: int) -> Lowered:
        return self.irs[index]

    def __str__(self) -> str:
        return "\n".join(map(str, self.irs))

    __repr__ = __str__


def views_of_inputs(program: Program) -> dict[Atom, Var]:
    """Returns the variables that are an input, or an input in another shape, each with its input."""
    views: dict[Atom, Var] = {v: v for v in program.inputs}
    for eqn in program.equations:
        if eqn.primitive.name == "reshape" and eqn.inputs[0] in views:
            views[eqn.outputs[0]] = views[eqn.inputs[0]]
    return views


def deciding_vars(eqn: Equation) -> tuple[Atom, ...]:
    """Returns the ids of a route and the weights by which it drops; nothing for an equation that is no route by ids."""
    is_route = isinstance(eqn.outputs[0].aval, RouteAval)
    return tuple(a for a in eqn.inputs if isinstance(a.aval, ShapeDtypeStruct)) if is_route else ()


@remembered
def cut_at_routes(program: Program) -> tuple[Part, ...]:
    """Returns the parts of a program, each of which runs after those before it; one part if all ids are given.

    Example:
        >>> import hpmoe
        >>> def layer(x, ids, w):
        ...     rows, route = hpmoe.dispatch(x, ids[:, :1], num_local_experts=2)
        ...     return hpmoe.combine(hpmoe.grouped_matmul(rows, w, route), route) + x
        >>> avals = [hpmoe.ShapeDtypeStruct((4, 3), "float32"), hpmoe.ShapeDtypeStruct((4, 2), "int32"),
        ...          hpmoe.ShapeDtypeStruct((2, 3, 3), "float32")]
        >>> for part in cut_at_routes(hpmoe.trace(layer, *avals)):
        ...     print(part.program)
        # layer_stage_0
        { lambda ids:i32[4,2]
          let a:i32[4,1] = slice[axis=1 start=0 stop=1] ids
          in (a,) : i32[4,1] }
        # layer_stage_1
        { lambda x:f32[4,3] w:f32[2,3,3] shared_0:i32[4,1]
          let a:route[R] = route[num_local_experts=2 ep_size=1] shared_0
              b:f32[R,3] = dispatch x a
              c:f32[R,3] = grouped_matmul b w a
              d:f32[4,3] = combine c a
              e:f32[4,3] = add d x
          in (e,) : f32[4,3] }
    """
    computed = _computed(program)
    last = _num_stages(program, computed) - 1
    if not last:
        return (Part(program, tuple(range(len(program.outputs))), {}),)
    stage_of = _latest_stages(program, computed, last)
    made_at: dict[Atom, int] = {v: s for e, s in zip(program.equations, stage_of, strict=True) for v in e.outputs}
    drafts, read = [], set()
    for stage in reversed(range(last + 1)):
        places = tuple(i for i, a in enumerate(program.outputs) if made_at.get(a, last) == stage)
        outputs = (*(program.outputs[i] for i in places), *(v for v, at in made_at.items() if at == stage and v in read))
        equations = _equations_at(program, stage_of, stage, outputs, computed)
        drafts.append((equations, places, outputs))
        read.update(_read(equations, outputs))
    names: dict[Atom, str] = dict(zip(program.inputs, program.input_names, strict=True))
    names.update((v, f"shared_{i}") for i, v in enumerate(v for v in made_at if v in read))
    tokens = token_vars(program)
    return tuple(_part(program, stage, equations, places, outputs, names, tokens)
                 for stage, (equations, places, outputs) in enumerate(reversed(drafts)))


def _computed(program: Program) -> set[Atom]:
    """Returns the ids and weights of routes that are computed."""
    views = views_of_inputs(program)
    return {a for e in program.equations for a in deciding_vars(e) if a not in views}


def _num_stages(program: Program, computed: set[Atom]) -> int:
    """Returns the number of launch segments: one before the first exchange, one more for each exchange that waits."""
    first: dict[Atom, int] = {}
    for eqn in program.equations:
        waits = [first.get(a, 0) + (a in computed and a in deciding_vars(eqn)) for a in eqn.inputs]
        first.update((v, max(waits, default=0)) for v in eqn.outputs)
    return 1 + max(first.values(), default=0)


def _latest_stages(program: Program, computed: set[Atom], last: int) -> list[int]:
    """Returns the launch segment of each equation: the last one before which no equation waits for it."""
    latest: dict[Atom, int] = {}
    stages = []
    for eqn in reversed(program.equations):
        at = min(latest.get(v, last) for v in eqn.outputs)
        stages.append(at)
        for a in eqn.inputs:
            latest[a] = min(latest.get(a, last), at - (a in computed and a in deciding_vars(eqn)))
    return stages[::-1]


def _equations_at(program: Program, stage_of: Sequence[int], stage: int, outputs: Iterable[Atom],
                  computed: set[Atom]) -> tuple[Equation, ...]:
    """Returns the equations of a stage, in order; cheap equations of earlier stages are repeated if a stage reads them."""
    found, needed = [], set(outputs)
    for eqn, at in zip(reversed(program.equations), reversed(stage_of), strict=True):
        is_repeated = at < stage and _is_free(eqn) and eqn.outputs[0] in needed and eqn.outputs[0] not in computed
        if at == stage or is_repeated:
            found.append(eqn)
            needed.update(eqn.inputs)
    return tuple(reversed(found))


def _is_free(eqn: Equation) -> bool:
    """Returns True if a kernel does no work for it: a route, computed at its start, a reshape, a widening cast."""
    x, out = eqn.inputs[0].aval if eqn.inputs else None, eqn.outputs[0].aval
    is_widening = eqn.primitive.name == "cast" and known(x).dtype in HALVES and out.dtype == "float32"
    return isinstance(out, RouteAval) or eqn.primitive.name == "reshape" or is_widening


def _read(equations: Iterable[Equation], outputs: Iterable[Atom]) -> set[Var]:
    """Returns the values that equations and outputs read and no equation makes."""
    made = {v for e in equations for v in e.outputs}
    return {a for a in (*(a for e in equations for a in e.inputs), *outputs) if isinstance(a, Var) and a not in made}


def _part(program: Program, stage: int, equations: tuple[Equation, ...], places: tuple[int, ...], outputs: tuple[Atom, ...],
          names: Mapping[Atom, str], tokens: Mapping[Var, int]) -> Part:
    read = _read(equations, outputs)
    inputs = tuple(v for v in names if v in read)
    known = read.union(v for e in equations for v in e.outputs)
    decided = {a for e in equations for a in deciding_vars(e)}
    return Part(program.replace(
        name=f"{program.name}_stage_{stage}", inputs=inputs, input_names=tuple(names[v] for v in inputs),
        equations=equations, outputs=outputs, captures=(), saves=None, main_grads={}, frozen=frozenset(),
        token_rows={v: n for v, n in tokens.items() if v in known}), places,
        {v: _maker(program, v) for v in inputs if v in decided and v not in program.inputs})


def _maker(program: Program, var: Var) -> Equation:
    """Returns the equation that computed a variable, before casts and reshapes."""
    made_by = {v: e for e in program.equations for v in e.outputs}
    eqn = made_by[var]
    while eqn.primitive.name in ("cast", "reshape") and eqn.inputs[0] in made_by:
        eqn = made_by[eqn.inputs[0]]
    return eqn


class PartValues(Generic[V]):
    """The values that the parts of a program pass on, for each rank: each part reads them and adds its outputs.

    Args:
        program: the Program that is cut.
        inputs: for each rank, the values of the inputs of the program.
    """

    def __init__(self, program: Program, inputs: Sequence[Sequence[V]]):
        self._program = program
        self._values: list[dict[Atom, V]] = [dict(zip(program.inputs, mine, strict=True)) for mine in inputs]
        self._results: list[dict[int, V]] = [{} for _ in inputs]

    def inputs_of(self, part: Part) -> list[list[V]]:
        """Returns the values of the inputs of a part, for each rank."""
        return [[mine[v] for v in part.program.inputs] for mine in self._values]

    def add(self, part: Part, outputs: Sequence[Sequence[V]]) -> None:
        """Keeps the outputs of a part, for each rank."""
        for mine, result, found in zip(self._values, self._results, outputs, strict=True):
            result.update(zip(part.places, found, strict=False))
            mine.update(zip(part.program.outputs, found, strict=True))

    def outputs(self) -> list[list[V]]:
        """Returns the outputs of the program after its last part, for each rank."""
        return [[result[place] for place in range(len(self._program.outputs))] for result in self._results]
