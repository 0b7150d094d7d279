"""Transforms of callables: made from a rewrite of IR, checked where they are applied, and chained."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Generic, TypeVar, overload

from hpmoe.ir.stages import AnyIR
from hpmoe.machines.machine import Machine
from hpmoe.runtime.rewrite import Rewrite, name_of, shown_options
from hpmoe.runtime.spmd import Spmd
from hpmoe.runtime.staged import Staged, Step, signature_of
from hpmoe.runtime.staged_function import StagedFunction, staged_of
from hpmoe.runtime.targets import Target
from hpmoe.support.errors import TransformError, check_argument, kind_of
from hpmoe.support.keywords import check_keywords, suggests_keywords
from hpmoe.support.trees import Function, PyTree


class Transform(Rewrite):
    """A transform of callables, made by `transform`: stages the function that it is called with; see Rewrite.

    `binds` returns (target, whether plans are kept) of the kernels that it makes, from the options.
    """

    def __init__(self, rewrite: Function, requires: str | None, makes: str | None, once: bool,
                 check: Callable[..., None] | None, passes: str | None = None,
                 binds: Callable[..., tuple[Target, bool]] | None = None):
        super().__init__(rewrite, requires, makes, once, check, passes)
        self.binds = binds
        self.__signature__ = _of_callables(signature_of(rewrite))

    @overload
    def __call__(self, f: Function, **options: object) -> StagedFunction: ...
    @overload
    def __call__(self, **options: object) -> Curried: ...
    def __call__(self, *args: PyTree, **options: PyTree) -> StagedFunction | Curried:
        """Stages a function, called as `__signature__` says; without one, returns the transform with the options."""
        name = self.__name__
        if not args and "f" not in options:
            _, options = self._bind(None, **options)
            self._check_options(options)
            return Curried(self, options)
        (f,), options = self._bind(*args, **options)
        if not callable(f):
            raise TransformError(f"{name}: f is {kind_of(f)}; it must be a callable, plain or staged. Give options by "
                                 "name")
        if isinstance(f, Spmd):
            raise TransformError(f"{name}: f is under spmd, {f!r}; spmd is the outermost, spmd({name}(f), mesh)")
        if missing := self._missing(options):
            raise TypeError(f"{name}: missing a required argument: {missing[0]!r}.")
        staged = staged_of(f)
        self._check_place(staged, options)
        self._check_options(options)
        target, keeps_plans = self.binds(**options) if self.binds else (None, False)
        return StagedFunction(f, staged.then(Step(self, options, target, keeps_plans)))

    def _bind(self, *args: PyTree, **options: object) -> tuple[tuple[PyTree, ...], dict[str, PyTree]]:
        """Returns (the function, the options) of a call; raises TypeError for unknown or positional options."""
        try:
            bound = self.__signature__.bind_partial(*args, **options)
        except TypeError as error:
            names = [name for name in self.__signature__.parameters if name != "f"]
            check_keywords(self.__name__, options, names)
            expected = ", ".join(["f", *(f"{name}=" for name in names)])
            raise TypeError(f"{self.__name__}: {error}; expected {self.__name__}({expected}).") from None
        return bound.args, bound.kwargs

    def _check_options(self, options: Mapping[str, object]) -> None:
        """Refuses bad options, once all are there that it needs."""
        if self.check is not None and not self._missing(options):
            self.check(**options)

    def _missing(self, options: Mapping[str, object]) -> list[str]:
        """Returns the names of options that are required and not given."""
        parameters = list(self.__signature__.parameters.values())[1:]
        return [p.name for p in parameters if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in options]

    def _check_place(self, staged: Staged, options: Mapping[str, object]) -> None:
        """Raises TransformError unless this transform may be the next one of a staged function."""
        name = self.__name__
        if self.once and name in [s.rewrite.__name__ for s in staged.steps]:
            raise TransformError(f"{name} is already in {staged}; apply it once")
        self.check_level(staged.level, str(staged))
        if self.is_differentiated and staged.level == "program" and staged.of_passes:
            steps = *staged.differentiated, Step(self, options), *staged.of_passes
            raise TransformError(f"{name}: gradients are taken of its result, and {staged.of_passes[0].rewrite.__name__} "
                                 "rewrites each pass after gradients are taken; write "
                                 f"chain({', '.join(step.written for step in steps)})")


@dataclasses.dataclass(frozen=True, eq=False)
class Curried:
    """A transform with options, which a transform called with only options returns; call it with the function."""

    transform: Transform  # called with a function, and further options or others instead, it has these as well
    options: Mapping[str, object]  # by name

    @property
    def __name__(self) -> str:
        return self.transform.__name__

    @property
    def __signature__(self) -> inspect.Signature:
        return self.transform.__signature__

    @overload
    def __call__(self, f: Function, **options: object) -> StagedFunction: ...
    @overload
    def __call__(self, **options: object) -> Curried: ...
    def __call__(self, *args: PyTree, **options: PyTree) -> StagedFunction | Curried:
        return self.transform(*args, **{**self.options, **options})

    def apply_to(self, ir: AnyIR, **options: object) -> AnyIR:
        """Returns the checked rewrite of IR with these options; see Rewrite."""
        return self.transform.apply_to(ir, **{**self.options, **options})

    def __repr__(self) -> str:
        return f"{self.transform!r}({shown_options(self.options)})"


Out = TypeVar("Out", covariant=True)  # what transforms make of a function


@dataclasses.dataclass(frozen=True, eq=False)
class Chain(Generic[Out]):
    """Transforms as one, the first one innermost; see `chain`."""

    transforms: tuple[Callable[[Function], Out], ...]

    def __call__(self, f: Function, *rest: object) -> Out:
        if rest or not callable(f):
            raise TransformError(f"chain: f is {' and '.join(map(kind_of, (f, *rest)))}; it must be one callable. Call "
                                 "the result with arguments: chain(...)(f)(*args)")
        out: PyTree = f
        for t in self.transforms:
            out = t(out)
        return out

    def __repr__(self) -> str:
        return f"chain({', '.join(map(shown_transform, self.transforms))})"


def shown_transform(t: Function) -> str:
    """Returns a transform as messages show it: with its options, or a plain function by its name."""
    return repr(t) if isinstance(t, (Transform, Curried, Chain)) or not callable(t) else name_of(t)


def _of_callables(rewrite: inspect.Signature) -> inspect.Signature:
    """Returns a transform's signature from its rewrite's: a function instead of IR, and options by name."""
    options = [p if p.kind is p.VAR_KEYWORD else p.replace(kind=p.KEYWORD_ONLY)
               for p in list(rewrite.parameters.values())[1:] if p.kind is not p.VAR_POSITIONAL]
    f = inspect.Parameter("f", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="Function")
    return inspect.Signature([f, *options], return_annotation="StagedFunction")


@overload
def transform(rewrite: Function, *, requires: str | None = None, makes: str | None = None, once: bool = False,
              check: Callable[..., None] | None = None, passes: str | None = None) -> Transform: ...
@overload
def transform(rewrite: None = None, *, requires: str | None = None, makes: str | None = None, once: bool = False,
              check: Callable[..., None] | None = None, passes: str | None = None) -> Callable[[Function], Transform]: ...
@suggests_keywords
def transform(rewrite: Function | None = None, *, requires: str | None = None, makes: str | None = None,
              once: bool = False, check: Callable[..., None] | None = None, passes: str | None = None) -> PyTree:
    """Makes a transform of callables from a rewrite of IR; a decorator.

    Args:
        rewrite: function (ir, **options) -> ir, from a Program or a Taskflow to one with outputs of the same shapes and
            dtypes. A rewrite of Programs receives the traced Program; gradients are those of the Program that it returns, as
            under a transform of JAX. A rewrite of Taskflows receives the forward pass and the backward pass, one at a time.
        requires: the level of `ir`: "program", "tiles" or "queues"; None for any level.
        makes: the level of the result; None for the level of `ir`.
        once: True raises TransformError if the transform is applied twice.
        check: function of the options that raises if they are wrong, called when the transform is applied; or None.
        passes: None, or "forward", "backward" or "both" for a rewrite of Programs after differentiation, which receives each
            named pass separately; `ir.direction` says which. Such a rewrite must compute the same values, because the
            backward pass does not change with the forward pass.

    Returns:
        A function (f, **options) -> staged callable, with the checked rewrite as `.apply_to(ir, **options)`. Calling it with
        only options returns the configured transform, as `hpmoe.chain` takes it: `rename(name="f")(f)` is
        `rename(f, name="f")`.

    Raises:
        TransformError: raised by the transform if f is of another level than `requires`, or if a rewrite of the traced
            Program follows a rewrite of passes.
        TypeError: raised by the transform if an option is unknown, or a required option is missing.

    Example:
        >>> import hpmoe
        >>> @hpmoe.transform(requires="program")
        ... def rename(program, *, name):
        ...     return program.replace(name=name)
        >>> print(rename(lambda x: x + 1.0, name="increment").lower(hpmoe.ShapeDtypeStruct((2,), "float32")))
        # increment | rename(name=increment)
        { lambda x:f32[2]
          let a:f32[2] = add x 1.0
          in (a,) : f32[2] }
        >>> rename(name="increment")
        rename(name=increment)
    """
    if rewrite is None:
        return functools.partial(transform, requires=requires, makes=makes, once=once, check=check, passes=passes)
    return Transform(rewrite, requires, makes, once, check, passes)


@suggests_keywords
def chain(*transforms: Callable[[Function], Out], machine: Machine | None = None) -> Chain[Out]:
    """Composes transforms, the first one innermost; `chain()` is the identity.

    Args:
        transforms: functions from callable to callable, such as `hpmoe.overlap_comm`, `hpmoe.tile_partition(rows=64)` or
            another chain.
        machine: the machine of every transform of the chain that takes a machine and has none of its own.

    Returns:
        A function from callable to staged callable.

    Raises:
        TransformError: a value is not a transform, for example a function that a transform has been applied to. An order of
            transforms that does not fit is an error when the chain is applied to a function.
        ArgumentError: machine is not a Machine.

    Example:
        >>> import hpmoe
        >>> to_tiles = hpmoe.chain(hpmoe.tile_partition(rows=64), hpmoe.overlap_comm(signal="peer"))
        >>> to_tiles
        chain(tile_partition(rows=64), overlap_comm(signal=peer))
        >>> to_tiles(hpmoe.moe_ffn).level
        'tiles'
        >>> hpmoe.chain(hpmoe.tile_partition(rows=64), hpmoe.overlap_comm, machine=hpmoe.machines.ascend_a3)
        chain(tile_partition(rows=64, machine=ascend_a3), overlap_comm)
    """
    for i, t in enumerate(transforms):
        if not callable(t) or isinstance(t, StagedFunction):
            found = str(t) if isinstance(t, StagedFunction) else kind_of(t)
            raise TransformError(f"chain: transform {i} is {found}; it must be a function from callable to callable, "
                                 "such as hpmoe.tile_partition")
    check_argument(machine is None or isinstance(machine, Machine), "chain", "machine", repr(machine),
                   "an hpmoe.Machine, such as hpmoe.machines.ascend_a3, or None")
    return Chain(transforms if machine is None else tuple(_on_machine(t, machine) for t in transforms))


def _on_machine(t: Function, machine: Machine) -> Function:
    """Returns a transform with a machine, if it takes one and has none."""
    if isinstance(t, Chain):
        return Chain(tuple(_on_machine(inner, machine) for inner in t.transforms))
    options = t.options if isinstance(t, Curried) else {}
    takes_one = isinstance(t, (Transform, Curried)) and "machine" in t.__signature__.parameters
    return t(machine=machine) if takes_one and "machine" not in options else t
