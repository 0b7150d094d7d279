"""remembered: a result that is kept on the object that it is of."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

X = TypeVar("X")
Y = TypeVar("Y")


def remembered(f: Callable[[X], Y]) -> Callable[[X], Y]:
    """Returns `f`, a function of one object, with each result kept on the object, for as long as the object lives.

    `functools.lru_cache` would keep the objects of the last calls alive, and forget the results of all others.

    Example:
        >>> import hpmoe
        >>> program = hpmoe.trace(lambda x: x + x, hpmoe.ShapeDtypeStruct((2,), "float32"))
        >>> text_of = remembered(str)
        >>> text_of(program) is text_of(program)
        True
    """
    name = f"_remembered_{f.__module__}.{f.__qualname__}"

    @functools.wraps(f)
    def found(x: X) -> Y:
        kept = vars(x)
        if name not in kept:
            kept[name] = f(x)
        return kept[name]
    return found
