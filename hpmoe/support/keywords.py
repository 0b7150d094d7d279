"""Misspelt words: the nearest known word, and functions that name it for a keyword they do not take."""

from __future__ import annotations

import difflib
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Collection, Iterable
from typing import TypeVar

from hpmoe.support.trees import Function, PyTree

F = TypeVar("F", bound=Function)
SHOWN = 240  # characters of a list of arguments


def nearest(word: str, known: Collection[str]) -> str | None:
    """Returns the known word that a misspelt one means, or None."""
    containing = [name for name in known if word in re.split("[_-]", name)]
    return next(iter(containing if len(containing) == 1 else difflib.get_close_matches(word, known, n=1)), None)


def check_keywords(who: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises TypeError for the first keyword that is not known, with the nearest one that is."""
    for keyword in given:
        if keyword not in known:
            near = nearest(keyword, known)
            expected = textwrap.shorten(", ".join(known), SHOWN, placeholder=" ...")
            advice = f"did you mean {near!r}?" if near else f"expected one of {expected}." if known else "expected none."
            raise TypeError(f"{who}: got an unexpected keyword argument {keyword!r}; {advice}") from None


def suggests_keywords(f: F) -> F:
    """Makes a call with a misspelt keyword raise TypeError with the nearest one, also in methods of a class; a decorator.

    Example:
        >>> @suggests_keywords
        ... def scaled(x, *, factor=1.0):
        ...     return x * factor
        >>> scaled(2.0, factro=3.0)
        Traceback (most recent call last):
        ...
        TypeError: scaled: got an unexpected keyword argument 'factro'; did you mean 'factor'?
    """
    if inspect.isclass(f):
        return _checked_class(f)
    return _checked(f, f)


def _checked_class(kind: PyTree) -> PyTree:
    """Returns a class whose constructor and public methods check their keywords."""
    methods = [name for name, value in vars(kind).items() if inspect.isfunction(value) and not name.startswith("_")]
    for name in ("__init__", *methods):
        function = getattr(kind, name)
        setattr(kind, name, _checked(function, kind if name == "__init__" else function))
    return kind


def _checked(function: F, public: Function) -> F:
    """Returns a function that checks its keywords; errors name `public`, a class or the function itself."""
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return function
    known = {p.name: None for p in parameters if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD) and p.name != "self"}
    names = known.keys()
    is_method = "self" in inspect.signature(function).parameters
    is_open = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    most = sys.maxsize if is_open else sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters)

    @functools.wraps(function)
    def checked(*args: object, **kwargs: object) -> object:
        if kwargs and not kwargs.keys() <= names:
            check_keywords(_public_name(public), kwargs, names)
        if len(args) > most:
            by_name = list(names)[most - is_method:]
            advice = f"; write {by_name[0]}=... by name" if by_name else ""
            raise TypeError(f"{_public_name(public)}: got {len(args) - is_method} positional arguments; expected at most "
                            f"{most - is_method}{advice}.")
        return function(*args, **kwargs)
    return checked  # type: ignore[return-value]


def _public_name(public: Function) -> str:
    """Returns the shortest path by which a user imports a function or class, such as hpmoe.router.aux_loss."""
    parts, name = public.__module__.split("."), public.__qualname__
    if parts[0] != "hpmoe":
        return name
    packages = [".".join(parts[:i]) for i in range(1, len(parts) + 1)]
    first, packages = name.partition(".")[0], sorted([*packages, "hpmoe.router", "hpmoe.token_ops"], key=len)
    return next((f"{p}.{name}" for p in packages if hasattr(sys.modules.get(p), first)), name)
