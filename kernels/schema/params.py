"""core/generated/params.h: a struct for the params of each tile operation, read from the words of an op."""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import get_type_hints

import hpmoe.tile_ops.families  # noqa: F401  defines all params
from hpmoe.kernels.schema.cpp import comment, header, members
from hpmoe.tile_ops.domains import Summed
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.params import Params

SUMMED = "Extra words of an operation that sums over rows; its own params have the first word."


def text() -> str:
    """Returns the header."""
    structs = [_struct(cls.__name__, cls.__doc__ or "", fields) for cls in sorted(_classes(Params), key=_name)
               if (fields := _fields(cls))]
    summed = [(name, 1 + i, "int32_t") for i, name in enumerate(Summed.SUMMED_WORDS)]
    structs.append(_struct("Summed", SUMMED, summed))
    body = "namespace params {\n\n" + "\n\n".join(structs) + "\n\n}  // namespace params"
    return header("Params of tile operations, as hpmoe/tile_ops defines them.",
                  ['"core/generated/structs.h"', '"core/marks.h"'], body)


def _classes(cls: type[Params]) -> Iterator[type[Params]]:
    for derived in cls.__subclasses__():
        yield derived
        yield from _classes(derived)


def _name(cls: type) -> str:
    return cls.__name__


def _fields(params: type[Params]) -> list[tuple[str, int, str]]:
    """Returns (name, index of the word, C++ type) of each attribute that an image holds."""
    types = get_type_hints(params)
    return [(name, i, _cpp_type(types[name])) for i, name in enumerate(params.names_in_image())]


def _cpp_type(cls: type) -> str:
    if issubclass(cls, Function):
        return "MapCode"
    return cls.__name__ if issubclass(cls, IntEnum) else "bool" if cls is bool else "int32_t"


def _struct(name: str, about: str, fields: list[tuple[str, int, str]]) -> str:
    values = ", ".join(_read(f"op.param[{word}]", cpp) for _, word, cpp in fields)
    return (f"{comment(about)}\nstruct {name} {{\n{members([(cpp, field) for field, _, cpp in fields])}\n"
            f"  HPMOE_DEVICE static inline {name} of(const Op& op) {{ return {{{values}}}; }}\n}};")


def _read(word: str, cpp: str) -> str:
    return word if cpp == "int32_t" else f"{word} != 0" if cpp == "bool" else f"static_cast<{cpp}>({word})"
