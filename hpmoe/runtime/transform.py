"""Transforms of callables: made from a rewrite of IR, checked where they are applied, and chained."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from hpmoe.runtime.rewrite import Rewrite
from hpmoe.runtime.spmd import Spmd
from hpmoe.runtime.staged import Staged, signature_of
from hpmoe.runtime.staged_function import StagedFunction, staged_of
from hpmoe.support.errors import TransformError


class Transform(Rewrite):
    """A transform of callables, made by `transform`: called with a function it stages it; see Rewrite."""

    def __init__(self, rewrite: Callable[..., Any], requires: str | None, makes: str | None, once: bool,
                 check: Callable[..., None] | None, before_vjp: bool):
        super().__init__(rewrite, requires, makes, once, check, before_vjp)
        self.__signature__ = _of_callables(signature_of(rewrite))

    def __call__(self, *args: Any, **options: Any) -> StagedFunction:
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
        if isinstance(f, Spmd):
            raise TransformError(f"{name}: f is under spmd, {f!r}; spmd is the outermost, spmd({name}(f), mesh)")
        staged = staged_of(f)
        self._check_place(staged)
        if self.check is not None:
            self.check(**options)
        return StagedFunction(f, staged.then(self, options))

    def _check_place(self, staged: Staged) -> None:
        """TransformError unless it may be the next transform of a function."""
        name = self.__name__
        if self.once and name in [s.rewrite.__name__ for s in staged.stages]:
            raise TransformError(f"{name}: it is applied twice; {staged} is already made by it")
        self.check_level(staged.level, str(staged))
        if self.before_vjp and not staged.is_before_vjp:
            raise TransformError(f"{name}: it is about the function that gradients are taken of, and {staged} is staged; it "
                                 f"comes first, chain({name}, ...)")


def _of_callables(rewrite: inspect.Signature) -> inspect.Signature:
    """What a transform takes, of what its rewrite does: a function instead of IR, and options by name."""
    options = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY)
               for p in list(rewrite.parameters.values())[1:] if p.kind is not p.VAR_POSITIONAL]
    f = inspect.Parameter("f", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="Callable[..., Any]")
    return inspect.Signature([f, *options], return_annotation="StagedFunction")


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
        if not callable(t) or isinstance(t, StagedFunction):
            raise TransformError(f"chain: transform {i} is {staged_of(t)}; it must be a function from callable to callable, "
                                 "such as hpmoe.tile_partition")

    def composed(f: Callable[..., Any]) -> Any:
        for t in transforms:
            f = t(f)
        return f
    return composed
