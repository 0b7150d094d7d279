"""Plain data: dataclasses of numbers, names and one another as what JSON holds, and back by what their annotations say."""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Union, get_args, get_origin, get_type_hints

import numpy as np

from hpmoe.ir.avals import Rows
from hpmoe.support.trees import PyTree
from hpmoe.tile_ops.named import Named

Json = PyTree  # None, a bool, an int, a float, a str, or a list or dict of such
NUMBERS = (bool, int, float, str)


class Written:
    """Writes values as JSON; the same symbolic number of rows has the same number in all of them."""

    def __init__(self) -> None:
        self._rows: dict[Rows, int] = {}

    def __call__(self, value: object) -> Json:
        """Raises TypeError for what is not plain, such as a function."""
        if value is None or isinstance(value, NUMBERS):
            return value.value if isinstance(value, Enum) else value
        if isinstance(value, Rows):
            return {"rows": self._rows.setdefault(value, len(self._rows))}
        if isinstance(value, Named):
            return value.name
        if isinstance(value, (tuple, list)):
            return [self(v) for v in value]
        if isinstance(value, (np.bool_, np.integer, np.floating)):
            return value.item()
        if dataclasses.is_dataclass(value):
            return [type(value).__name__, *(self(getattr(value, f.name)) for f in dataclasses.fields(value))]
        raise TypeError(f"a {type(value).__name__} is no plain data")


Reader = Callable[[Json, dict[int, Rows]], PyTree]


class Read:
    """Reads what `Written` wrote."""

    def __init__(self) -> None:
        self._rows: dict[int, Rows] = {}

    def __call__(self, hint: PyTree, data: Json) -> PyTree:
        """Returns a value of the annotation's type; raises ValueError, TypeError or KeyError if the data has another type.
        """
        return _reader(hint)(data, self._rows)


@functools.cache
def _reader(hint: PyTree) -> Reader:
    if get_origin(hint) in (Union, types.UnionType):
        return _either(get_args(hint))
    if get_origin(hint) is tuple:
        return _tuple(get_args(hint))
    if dataclasses.is_dataclass(hint) or any(True for _ in _kinds(hint)):
        return _dataclass(hint)
    if issubclass(hint, tuple):
        return _named_tuple(hint)
    if issubclass(hint, Named):
        return lambda data, rows: hint.named(data)
    if issubclass(hint, Enum):
        return lambda data, rows: hint(data)
    if hint is Rows:
        return lambda data, rows: rows.setdefault(data["rows"], Rows())
    return _number((int, float) if hint is float else (hint,))


def _number(kinds: tuple[type, ...]) -> Reader:
    def read(data: Json, rows: dict[int, Rows]) -> PyTree:
        if type(data) not in kinds:
            raise ValueError(f"{data!r} is no {kinds[-1].__name__}")
        return data
    return read


def _either(hints: tuple[PyTree, ...]) -> Reader:
    """Returns the specific hint of None and another hint, or of a number and a symbolic number."""
    special = Rows if Rows in hints else type(None)
    (other,) = (_reader(h) for h in hints if h is not special)
    if special is Rows:
        return lambda data, rows: (_reader(Rows) if isinstance(data, dict) else other)(data, rows)
    return lambda data, rows: None if data is None else other(data, rows)


def _items(data: Json, length: int | None = None) -> list[Json]:
    if not isinstance(data, list) or length not in (None, len(data)):
        raise ValueError(f"{data!r} is no list of {length} items")
    return data


def _tuple(hints: tuple[PyTree, ...]) -> Reader:
    if hints[-1] is ...:
        each = _reader(hints[0])
        return lambda data, rows: tuple([each(d, rows) for d in _items(data)])
    readers = [_reader(h) for h in hints]
    return lambda data, rows: tuple([r(d, rows) for r, d in zip(readers, _items(data, len(readers)), strict=True)])


def _named_tuple(cls: PyTree) -> Reader:
    fields = _tuple(tuple(get_type_hints(cls)[name] for name in cls._fields))
    return lambda data, rows: cls(*fields(data, rows))


def _kinds(cls: PyTree) -> Iterator[PyTree]:
    """Yields the dataclasses among a class and its subclasses."""
    for each in cls.__subclasses__() if isinstance(cls, type) else ():
        yield from _kinds(each)
    if dataclasses.is_dataclass(cls):
        yield cls


def _dataclass(cls: PyTree) -> Reader:
    kinds = {kind.__name__: kind for kind in _kinds(cls)}

    def read(data: Json, rows: dict[int, Rows]) -> PyTree:
        kind, *values = _items(data)
        return _fields(kinds[kind])(values, rows)
    return read


@functools.cache
def _fields(cls: PyTree) -> Reader:
    hints = get_type_hints(cls)
    names = [f.name for f in dataclasses.fields(cls)]
    readers = [_reader(hints[name]) for name in names]

    def read(data: Json, rows: dict[int, Rows]) -> PyTree:
        values = zip(names, readers, _items(data, len(names)), strict=True)
        return cls(**{name: reader(value, rows) for name, reader, value in values})
    return read
