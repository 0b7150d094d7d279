"""Staged: a function and the steps of its chain, as data; nothing here runs it."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
from collections.abc import Iterable, Mapping

from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.ir.taskflow import Taskflow
from hpmoe.runtime.rewrite import Rewrite, name_of, shown
from hpmoe.runtime.targets import Target
from hpmoe.support.errors import TransformError
from hpmoe.support.trees import Function, PyTree


@dataclasses.dataclass(frozen=True, eq=False)
class Step:
    """One rewrite of a chain and the options that it runs with."""

    rewrite: Rewrite  # the rewrite
    options: Mapping[str, PyTree]  # by name
    target: Target | None = None  # what runs the kernels that it makes; None if it makes no kernels
    keeps_plans: bool = False  # True if plans of these kernels are kept from one process to the next

    def apply_to(self, ir: AnyIR) -> AnyIR:
        return self.rewrite.apply_to(ir, **self.options)

    def __str__(self) -> str:
        return self.rewrite.label(self.options)

    @property
    def written(self) -> str:
        """Text of the step as a chain takes it."""
        given = ", ".join(f"{name}={repr(x) if isinstance(x, (str, tuple)) else shown(x)}"
                          for name, x in self.options.items() if x is not None)
        return f"{self.rewrite.__name__}({given})" if given else self.rewrite.__name__


def applied(steps: Iterable[Step], ir: AnyIR) -> AnyIR:
    """Returns `ir` rewritten by the steps, one after another."""
    for step in steps:
        ir = step.apply_to(ir)
    return ir


@dataclasses.dataclass(frozen=True, eq=False)
class Staged:
    """A plain function and the steps of the chain that its IR goes through."""

    function: Function  # plain
    steps: tuple[Step, ...] = ()  # innermost first; none of a plain function

    def then(self, step: Step) -> Staged:
        return Staged(self.function, (*self.steps, step))

    @property
    def level(self) -> str:
        """Level of the last step's result: "program", "tiles", "queues" or "kernel"."""
        return next((s.rewrite.makes for s in reversed(self.steps) if s.rewrite.makes), "program")

    @property
    def differentiated(self) -> tuple[Step, ...]:
        """The first steps, which rewrite the traced Program; gradients are taken of their result."""
        return tuple(itertools.takewhile(lambda s: s.rewrite.is_differentiated, self.steps))

    @property
    def of_passes(self) -> tuple[Step, ...]:
        """The steps after `differentiated`, which rewrite the forward pass and the backward pass separately."""
        return self.steps[len(self.differentiated):]

    @property
    def of_programs(self) -> tuple[Step, ...]:
        """The first steps of passes, which leave each pass a Program."""
        return tuple(itertools.takewhile(lambda s: s.rewrite.makes in (None, "program"), self.of_passes))

    @property
    def target(self) -> Target | None:
        """Target that runs its kernels; None if the last step makes no kernels."""
        return self.steps[-1].target if self.steps else None

    @property
    def is_on_device(self) -> bool:
        """True if its kernels run on a device of their own."""
        return self.target is not None and self.target.on_device

    @property
    def signature(self) -> inspect.Signature:
        """The parameters of the function; TransformError where Python knows none, as of np.add."""
        return signature_of(self.function)

    def apply_before_gradient(self, program: Program) -> Program:
        """Applies the differentiated steps to the traced Program."""
        return applied(self.differentiated, program)

    def apply_to_program(self, program: Program) -> tuple[Program, tuple[Step, ...]]:
        """Rewrites the Program of one pass by the steps `of_programs`; returns the new Program and the later steps."""
        return applied(self.of_programs, program), self.of_passes[len(self.of_programs):]

    def apply(self, program: Program) -> AnyIR:
        """Rewrites the Program of the forward or backward pass by the steps `of_passes`; returns the last IR."""
        return applied(self.of_passes, program)

    def __str__(self) -> str:
        return " of ".join([*map(str, reversed(self.steps)), name_of(self.function)])


IR_FIELDS = {f.name for ir in (Program, Taskflow) for f in dataclasses.fields(ir)} | {"flow", "image", "tasks"}


def attribute_error(f: Function, name: str) -> AttributeError:
    """Returns the AttributeError of a staged callable; it says how to get an attribute of the IR."""
    text = f"{type(f).__name__!r} object has no attribute {name!r}"
    advice = f"; it is of the IR that lower returns, as in f.lower(*args).{name}"
    return AttributeError(text + (advice if name in IR_FIELDS else ""))


def signature_of(f: Function) -> inspect.Signature:
    """Returns the parameters of a plain function; raises TransformError if Python knows none, as of np.add."""
    try:
        return inspect.signature(f)
    except (TypeError, ValueError) as error:
        raise TransformError(f"{name_of(f)}: Python knows no parameters of it; wrap it in a function that has them, such "
                             "as lambda x, y: ...") from error
