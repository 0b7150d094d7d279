"""Transforms of callables: made from a rewrite of IR, checked where they are applied, and chained."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

from hpmoe.calling.staging import Staged, describe, level_of, signature_of
from hpmoe.errors import TransformError, is_name
from hpmoe.program import Program
from hpmoe.proofs.verify import verify
from hpmoe.taskflow import Taskflow

LEVELS = {
    "program": "a plain function or a Program transform",
    "tiles": "the tile tasks that tile_partition makes",
    "queues": "the queues that assign_queues makes",
    "kernel": "the persistent kernel that fuse_persistent binds",
}


class Transform:
    """A transform of callables, made by `transform`: called with a function it stages it.

    Attributes:
        rewrite: function (ir, **options) -> ir.
        requires, makes, once, check, before_vjp: see `transform`.
    """

    def __init__(self, rewrite: Callable[..., Any], requires: str | None, makes: str | None, once: bool,
                 check: Callable[..., None] | None, before_vjp: bool):
        for level in (requires, makes):
            if level is not None and not is_name(level, LEVELS):
                raise TransformError(f"transform: level is {level!r}; it must be one of {', '.join(LEVELS)}")
        if not callable(rewrite):
            raise TransformError(f"transform: rewrite is {type(rewrite).__name__}; it must be a function of an IR")
        self.rewrite, self.requires, self.makes, self.once, self.check = rewrite, requires, makes, once, check
        self.before_vjp = before_vjp
        self.__name__ = describe(rewrite)  # that a functools.partial has none of
        functools.update_wrapper(self, rewrite)
        self.__signature__ = _of_callables(signature_of(rewrite))

    def __call__(self, *args: Any, **options: Any) -> Staged:
        """Stages a function, called as `__signature__` says: the function, and options by name."""
        name = self.__name__
        try:
            bound = self.__signature__.bind(*args, **options)
        except TypeError as error:
            instead = "" if args or "f" in options else f"; with options alone it is functools.partial({name}, ...)"
            raise TypeError(f"{name}: {error}{instead}") from None
        (f,), options = bound.args, bound.kwargs
        if not callable(f):
            raise TransformError(f"{name}: f is {type(f).__name__}; it must be a callable, plain or staged")
        from hpmoe.calling.spmd import Spmd
        if isinstance(f, Spmd):
            raise TransformError(f"{name}: f is under spmd, {f!r}; spmd is the outermost, spmd({name}(f), mesh)")
        if self.once and name in _applied(f):
            raise TransformError(f"{name}: it is applied twice; {describe(f)} is already made by it")
        _check_level(name, self.requires, level_of(f), describe(f))
        if self.before_vjp and isinstance(f, Staged) and not f.is_before_vjp:
            raise TransformError(f"{name}: it is about the function that gradients are taken of, and {f!r} is staged; it "
                                 f"comes first, chain({name}, ...)")
        if self.check is not None:
            self.check(**options)
        return Staged(f, self, options)

    def apply_to(self, ir: Any, **options: Any) -> Any:
        """The checked rewrite: IR of the required level in, verified IR with this transform in its provenance out."""
        _check_level(self.__name__, self.requires, ir.level, ir.name)
        out = self.rewrite(ir, **options)
        if getattr(out, "level", None) is None:
            raise TransformError(f"{self.__name__}: the rewrite returned {type(out).__name__}; it must return IR")
        if isinstance(out, (Program, Taskflow)) and len(out.outputs) != len(ir.outputs):
            raise TransformError(f"{self.__name__}: the rewrite returned {len(out.outputs)} outputs; it must return as many "
                                 f"as {ir.name} has, {len(ir.outputs)}")
        if out.provenance == ir.provenance:
            out = out.replace(provenance=(*ir.provenance, self.label(options)))
        if isinstance(out, Taskflow):
            verify(out)
        return out

    def __reduce__(self) -> str:
        """By its name: it stands where its rewrite is defined."""
        return self.__qualname__

    def label(self, options: dict[str, Any]) -> str:
        """The transform as printed: its name and the options it runs with, those that are None left out."""
        bound = inspect.signature(self.rewrite).bind(None, **options)
        bound.apply_defaults()
        given = ", ".join(f"{k}={_shown(v)}" for k, v in list(bound.arguments.items())[1:] if v is not None)
        return f"{self.__name__}({given})" if given else self.__name__

    def __repr__(self) -> str:
        return self.__name__


def _of_callables(rewrite: inspect.Signature) -> inspect.Signature:
    """What a transform takes, of what its rewrite does: a function instead of IR, and options by name."""
    options = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY)
               for p in list(rewrite.parameters.values())[1:] if p.kind is not p.VAR_POSITIONAL]
    f = inspect.Parameter("f", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="Callable[..., Any]")
    return inspect.Signature([f, *options], return_annotation="Staged")


def transform(rewrite: Callable[..., Any] | None = None, *, requires: str | None = None, makes: str | None = None,
              once: bool = False, check: Callable[..., None] | None = None, before_vjp: bool = False) -> Any:
    """Makes a transform of callables from a rewrite of IR; a decorator.

    Args:
        rewrite: function (ir, **options) -> ir; it gets and returns a Program or a Taskflow. A rewrite of Programs is given
            the forward program and, for gradients, the backward program of the function it wraps; it returns as many
            outputs as it got.
        requires: the level it applies to: "program", "tiles" or "queues"; any where None.
        makes: the level of its result; that of its input where None.
        once: refuse to be applied twice.
        check: called with the options when the transform is applied, to refuse bad ones early.
        before_vjp: the rewrite gets the traced Program, before its gradient is taken, instead of each direction; such a
            transform is the innermost.

    Returns:
        A function (f, **options) -> staged callable; `.apply_to(ir, **options)` is the checked rewrite.

    Raises:
        TransformError: when the transform is applied to what is not of the level it requires.

    Example:
        >>> import hpmoe
        >>> @hpmoe.transform(requires="program")
        ... def rename(program, *, name):
        ...     return program.replace(name=name)
        >>> print(rename(lambda x: x + 1.0, name="increment").lower(hpmoe.Aval((2,), "float32")))
        # increment | rename(name=increment)
        { lambda x:f32[2]
          let a:f32[2] = add x 1.0
          in (a,) : f32[2] }
    """
    if rewrite is None:
        return functools.partial(transform, requires=requires, makes=makes, once=once, check=check, before_vjp=before_vjp)
    return Transform(rewrite, requires, makes, once, check, before_vjp)


def _shown(option: Any) -> str:
    """An option as printed: named things by their name, a dict by its keys."""
    if isinstance(option, Mapping):
        return ", ".join(map(str, option))
    return getattr(option, "__name__", None) or getattr(option, "name", None) or str(option)


def _applied(f: Callable[..., Any]) -> list[str]:
    names = []
    while isinstance(f, Staged):
        names.append(f.transform.__name__)
        f = f.function
    return names


def _check_level(name: str, requires: str | None, level: str, what: object) -> None:
    if requires is None or requires == level:
        return
    missing = {"tiles": "tile_partition", "queues": "assign_queues"}.get(requires)
    later = list(LEVELS).index(level) > list(LEVELS).index(requires)
    advice = "it comes earlier in the chain" if later or missing is None else f"apply {missing} first"
    raise TransformError(f"{name}: it needs {LEVELS[requires]}, and {what!r} is {LEVELS[level]}; {advice}\n"
                         "  the order is fuse_persistent(assign_queues(overlap_comm(tile_partition(f))))")


def chain(*transforms: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Composes transforms, the first one innermost; `chain()` is the identity.

    Args:
        transforms: functions from callable to callable; one that needs options is given as
            `lambda f: hpmoe.tile_partition(f, rows=64)` or as a functools.partial.

    Returns:
        A function from callable to staged callable.

    Raises:
        TransformError: something given is no transform, such as a function that is staged already.

    Example:
        >>> import hpmoe
        >>> staged = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm)(hpmoe.moe_ffn)
        >>> staged.level
        'tiles'
    """
    for i, t in enumerate(transforms):
        if not callable(t) or isinstance(t, Staged):
            raise TransformError(f"chain: transform {i} is {describe(t)}; it must be a function from callable to callable, "
                                 "such as hpmoe.tile_partition")

    def composed(f: Callable[..., Any]) -> Any:
        for t in transforms:
            f = t(f)
        return f
    return composed
