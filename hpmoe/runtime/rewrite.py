"""A checked rewrite of IR: what a transform does to a Program or a Taskflow, and where in a chain it may stand."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import cast

from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR, Stages
from hpmoe.ir.taskflow import Taskflow
from hpmoe.support.errors import TransformError, check_argument, check_flags, is_name
from hpmoe.support.trees import Function
from hpmoe.verification.verify import verify

LEVELS = {
    "program": "a plain function or a Program transform",
    "tiles": "the tile tasks that tile_partition makes",
    "queues": "the queues that assign_queues makes",
    "kernel": "the persistent kernel that fuse_persistent binds",
}

SHOWN = 80  # characters of an option


class Rewrite:
    """A function from IR to IR with what it asks for and promises.

    Attributes:
        rewrite: function (ir, **options) -> ir.
        requires, makes, once, check, before_vjp: see `hpmoe.transform`.
    """

    def __init__(self, rewrite: Function, requires: str | None, makes: str | None, once: bool,
                 check: Callable[..., None] | None, before_vjp: bool):
        for name, level in (("requires", requires), ("makes", makes)):
            if level is not None and not is_name(level, LEVELS):
                raise TransformError(f"transform: {name} is {level!r}; it must be one of {', '.join(LEVELS)}, or None")
        check_flags("hpmoe.transform", once=once, before_vjp=before_vjp)
        check_argument(check is None or callable(check), "hpmoe.transform", "check", f"a {type(check).__name__}",
                       "a function of the options, or None")
        if not callable(rewrite):
            raise TransformError(f"transform: rewrite is {type(rewrite).__name__}; it must be a function of an IR")
        self.rewrite, self.requires, self.makes, self.once, self.check = rewrite, requires, makes, once, check
        self.before_vjp = before_vjp
        self.__name__ = name_of(rewrite)  # that a functools.partial has none of
        functools.update_wrapper(cast("Function", self), rewrite)

    def apply_to(self, ir: AnyIR, **options: object) -> AnyIR:
        """The checked rewrite: IR of the required level in, verified IR with this transform in its provenance out; of Stages
        that of each."""
        if isinstance(ir, Stages):
            return Stages(ir.program, tuple(self.apply_to(stage, **options) for stage in ir))
        self.check_level(ir.level, ir.name)
        out = self.rewrite(ir, **options)
        if getattr(out, "level", None) is None:
            raise TransformError(f"{self.__name__}: the rewrite returned {type(out).__name__}; it must return IR")
        if isinstance(out, (Program, Taskflow)) and _num_outputs(out, ir) != _num_outputs(ir, out):
            raise TransformError(f"{self.__name__}: the rewrite returned {len(out.outputs)} outputs; it must return as many "
                                 f"as {ir.name} has, {len(ir.outputs)}")
        if out.provenance == ir.provenance:
            out = out.replace(provenance=(*ir.provenance, self.label(options)))
        if isinstance(out, Taskflow):
            verify(out)
        return out

    def check_level(self, level: str, what: object) -> None:
        """TransformError unless `what`, which is of a level, is of the one that the rewrite requires."""
        if self.requires is None or self.requires == level:
            return
        missing = {"tiles": "tile_partition", "queues": "assign_queues"}.get(self.requires)
        later = list(LEVELS).index(level) > list(LEVELS).index(self.requires)
        advice = "it comes earlier in the chain" if later or missing is None else f"apply {missing} first"
        raise TransformError(f"{self.__name__}: it needs {LEVELS[self.requires]}, and {what!r} is {LEVELS[level]}; "
                             f"{advice}\n"
                             "  the order is fuse_persistent(assign_queues(overlap_comm(tile_partition(f))))")

    def label(self, options: Mapping[str, object]) -> str:
        """The rewrite as printed: its name and the options it runs with, those that are None or False left out."""
        bound = inspect.signature(self.rewrite).bind(None, **options)
        bound.apply_defaults()
        given = shown_options({name: value for name, value in list(bound.arguments.items())[1:] if value is not False})
        return f"{self.__name__}({given})" if given else self.__name__

    def __reduce__(self) -> str:
        """By its name: it stands where its function is defined."""
        return vars(self)["__qualname__"]

    def __repr__(self) -> str:
        return self.__name__


def _num_outputs(ir: Program | Taskflow, beside: AnyIR) -> int:
    """The outputs of IR that stay from it to what is made of it: all, but a Program may get others than results."""
    return ir.num_results if isinstance(ir, Program) and isinstance(beside, Program) else len(ir.outputs)


def name_of(f: Function) -> str:
    """A plain function as messages show it: by its name and without an address."""
    return getattr(f, "__name__", type(f).__name__)


def shown_options(options: Mapping[str, object]) -> str:
    """Options as printed, those that are None left out."""
    return ", ".join(f"{name}={_shown(value)}" for name, value in options.items() if value is not None)


def _shown(option: object) -> str:
    """An option as printed: named things by their name, a dict by its keys, the beginning of what is long, such as ids."""
    if isinstance(option, Mapping):
        return ", ".join(map(str, option))
    return getattr(option, "__name__", None) or getattr(option, "name", None) or textwrap.shorten(
        str(option), SHOWN, placeholder=" ...")
