"""Names the terms of the default schedule, so that a term can be left out and its worth measured."""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

from hpmoe.support.errors import check_argument

F = TypeVar("F", bound=Callable[..., object])
TERMS: dict[str, str] = {}  # the first sentence of each term's docstring
_left_out: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar("left_out", default=frozenset())


def term(name: str, otherwise: Callable[..., object]) -> Callable[[F], F]:
    """Makes a function a term; `without(name)` calls `otherwise` instead."""
    def decorate(f: F) -> F:
        TERMS[name] = " ".join((f.__doc__ or "").split()).split(". ")[0]

        @functools.wraps(f)
        def either(*args: object, **kwargs: object) -> object:
            return (otherwise if name in _left_out.get() else f)(*args, **kwargs)
        return cast(F, either)
    return decorate


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """Plans without some terms in this thread until the block ends.

    Raises:
        ArgumentError: no term has one of the names.

    Example:
        >>> import hpmoe
        >>> layer = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu), machine=hpmoe.machines.ascend_a3)
        >>> with without("divided_workers", "spread_slots"):
        ...     layer.lower(hpmoe.ShapeDtypeStruct((512, 4096), "bfloat16")).num_tasks
        2
    """
    for name in names:
        check_argument(name in TERMS, "without", "names", repr(name), "a name in hpmoe.scheduling.terms.TERMS")
    token = _left_out.set(_left_out.get() | set(names))
    try:
        yield
    finally:
        _left_out.reset(token)
