"""A checked rewrite of IR: what a transform does to a Program or a Taskflow, and where in a chain it may stand."""

from __future__ import annotations

import functools
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import cast

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.ir.program import DIRECTIONS, Program, program_window
from hpmoe.ir.stages import AnyIR, Stages
from hpmoe.ir.taskflow import Taskflow
from hpmoe.support.errors import ArgumentError, ProgramError, TransformError, check_argument, check_flags, is_name, kind_of
from hpmoe.support.trees import Function
from hpmoe.verification.verify import verify

LEVELS = {
    "program": "a plain function or one under Program transforms",
    "tiles": "the tile tasks that tile_partition makes",
    "queues": "the queues that assign_queues makes",
    "kernel": "the persistent kernel that fuse_persistent binds",
}

PASSES = (*DIRECTIONS, "both")
SHOWN = 80  # characters of an option


class Rewrite:
    """A function (ir, **options) -> ir with its requirements and promises; for the fields see `hpmoe.transform`."""

    def __init__(self, rewrite: Function, requires: str | None, makes: str | None, once: bool,
                 check: Callable[..., None] | None, passes: str | None = None):
        for name, level in (("requires", requires), ("makes", makes)):
            if level is not None and not is_name(level, LEVELS):
                raise TransformError(f"transform: {name} is {level!r}; it must be one of {', '.join(LEVELS)}, or None")
        check_flags("hpmoe.transform", once=once)
        check_argument(check is None or callable(check), "hpmoe.transform", "check", f"a {type(check).__name__}",
                       "a function of the options, or None")
        if not callable(rewrite):
            raise TransformError(f"transform: rewrite is {kind_of(rewrite)}; it must be a function of an IR")
        self.rewrite, self.requires, self.makes, self.once, self.check = rewrite, requires, makes, once, check
        check_argument(passes is None or is_name(passes, PASSES), "hpmoe.transform", "passes", repr(passes),
                       f"one of {', '.join(PASSES)}, or None")
        is_of_both = makes in (None, requires) or passes in (None, "both")
        check_argument(is_of_both, "hpmoe.transform", "passes", repr(passes), f"None: both passes must become {makes}")
        self.passes = passes
        self.__name__ = name_of(rewrite)  # that a functools.partial has none of
        functools.update_wrapper(cast("Function", self), rewrite)

    @property
    def is_differentiated(self) -> bool:
        """True if the rewrite gets the traced Program, so that gradients are those of the Program it returns."""
        return self.passes is None and self.requires in (None, "program") and self.makes in (None, "program")

    def apply_to(self, ir: AnyIR, **options: object) -> AnyIR:
        """Returns the checked rewrite of IR, with this transform in its provenance.

        Each of several Stages is rewritten. IR of a pass that `passes` does not name is returned unchanged.
        """
        if isinstance(ir, Stages):
            return Stages(ir.program, tuple(self.apply_to(stage, **options) for stage in ir))
        self.check_level(ir.level, ir.name)
        if self.passes in DIRECTIONS and ir.direction != self.passes:
            return ir
        if self.is_differentiated and isinstance(ir, Program) and ir.direction == "backward":
            raise TransformError(f"{self.__name__}: {ir.name} is a backward Program; it must be a traced Program, whose "
                                 f"gradient is taken afterwards. Apply {self.__name__} to the function. To rewrite "
                                 "both passes, make a transform by hpmoe.transform(passes=\"both\")")
        out = self._rewritten(ir, options)
        if getattr(out, "level", None) is None:
            raise TransformError(f"{self.__name__}: the rewrite returned {kind_of(out)}; it must return a Program, "
                                 "a Taskflow or an Executable")
        if isinstance(out, (Program, Taskflow)) and _num_outputs(out, ir) != _num_outputs(ir, out):
            raise TransformError(f"{self.__name__}: the rewrite returned {len(out.outputs)} outputs; it must return as many "
                                 f"as {ir.name} has, {len(ir.outputs)}")
        if isinstance(out, (Program, Taskflow)):
            self._check_avals(out, ir)
        if out.provenance == ir.provenance:
            out = out.replace(provenance=(*ir.provenance, self.label(options)))
        if isinstance(out, Taskflow):
            verify(out)
        return out

    def _rewritten(self, ir: AnyIR, options: Mapping[str, object]) -> AnyIR:
        """Returns the result of the rewrite; its errors begin with its name."""
        try:
            return self.rewrite(ir, **options)
        except (ArgumentError, ProgramError) as error:
            if str(error).startswith(self.__name__):
                raise
            raise type(error)(f"{self.__name__}: {error}") from error.__cause__

    def _check_avals(self, out: Program | Taskflow, ir: Program | Taskflow) -> None:
        """Raises TransformError unless all outputs keep their shapes and dtypes, and a Program its inputs."""
        if isinstance(out, Program) and isinstance(ir, Program) and out.inputs != ir.inputs:
            raise TransformError(f"{self.__name__}: the rewrite returned other inputs; it must return a Program of the "
                                 f"inputs of {ir.name}: {', '.join(ir.input_names)}")
        for i, (made, was) in enumerate(zip(_avals(out), _avals(ir), strict=False)):
            if made != was and i < _num_outputs(ir, out):
                index = next((k for k, e in enumerate(out.equations) if out.outputs[i] in e.outputs), None) \
                    if isinstance(out, Program) else None
                raise TransformError(f"{self.__name__}: the rewrite returned {made} as output {i}; it must return {was}, as "
                                     f"output {i} of {ir.name}"
                                     + ("" if index is None else f"\n{program_window(cast('Program', out), index)}"))

    def check_level(self, level: str, what: object) -> None:
        """Raises TransformError unless `level`, the level of `what`, is the one that the rewrite requires."""
        if self.requires is None or self.requires == level:
            return
        missing = {"tiles": "tile_partition", "queues": "assign_queues"}.get(self.requires)
        later = list(LEVELS).index(level) > list(LEVELS).index(self.requires)
        advice = "it comes earlier in the chain" if later or missing is None else f"apply {missing} first"
        order = "fuse_persistent(assign_queues(overlap_comm(tile_partition(f))))"
        if self.requires == "program" and self.makes == "queues":
            advice = f"{self.__name__} applies tile_partition, overlap_comm and assign_queues itself; leave these out"
            order = f"fuse_persistent({self.__name__}(f))"
        raise TransformError(f"{self.__name__}: it needs {LEVELS[self.requires]}, and {what!r} is {LEVELS[level]}; "
                             f"{advice}\n  the order is {order}")

    def label(self, options: Mapping[str, object]) -> str:
        """Returns the rewrite as printed: its name and options, without those that are None or False."""
        bound = inspect.signature(self.rewrite).bind(None, **options)
        bound.apply_defaults()
        given = shown_options({name: value for name, value in list(bound.arguments.items())[1:] if value is not False})
        return f"{self.__name__}({given})" if given else self.__name__

    def __reduce__(self) -> str:
        """Pickles a rewrite by the qualified name that it has in its module."""
        return vars(self)["__qualname__"]

    def __repr__(self) -> str:
        return self.__name__


def _num_outputs(ir: Program | Taskflow, beside: AnyIR) -> int:
    """Returns the number of outputs that a rewrite must keep: all, or only the results if both are Programs."""
    return ir.num_results if isinstance(ir, Program) and isinstance(beside, Program) else len(ir.outputs)


def _avals(ir: Program | Taskflow) -> list[ShapeDtypeStruct]:
    """Returns the shape and dtype of each output."""
    if isinstance(ir, Program):
        return [ShapeDtypeStruct(a.aval.shape, a.aval.dtype) for a in ir.outputs]
    return [ShapeDtypeStruct(ir.buffers[b].shape, ir.buffers[b].dtype) for b in ir.outputs]


def name_of(f: Function) -> str:
    """Returns a plain function as messages show it: by its name, without an address."""
    return getattr(f, "__name__", type(f).__name__)


def shown_options(options: Mapping[str, object]) -> str:
    """Returns options as printed, without those that are None."""
    return ", ".join(f"{name}={shown(value)}" for name, value in options.items() if value is not None)


def shown(option: object) -> str:
    """Returns an option as printed: named values by their name, a dict by its keys, a long value by its beginning."""
    if isinstance(option, Mapping):
        return ", ".join(map(str, option))
    return getattr(option, "__name__", None) or getattr(option, "name", None) or textwrap.shorten(
        str(option), SHOWN, placeholder=" ...")
