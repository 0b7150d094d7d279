"""Pieces of C++ text that several headers share."""

import itertools
from collections.abc import Iterable

WIDTH = 125


def header(about: str, includes: Iterable[str], body: str) -> str:
    """Returns a header in namespace hpmoe that begins with a comment and ends with its body."""
    lines = "\n".join(f"#include {name}" if name else "" for name in includes)
    return (f"{comment(about)}\n// Written by `python -m hpmoe.kernels.schema`; a test holds it equal to the definitions.\n"
            f"// clang-format off\n#pragma once\n\n{lines}\n\nnamespace hpmoe {{\n\n{body}\n\n}}  // namespace hpmoe\n")


def comment(text: str) -> str:
    """Returns lines of a comment."""
    return "\n".join(lines_of(text.split(), " ", "// "))


def members(fields: Iterable[tuple[str, str]]) -> str:
    """Returns the members of a struct from (type, name) pairs; neighbours of one type share lines."""
    runs = itertools.groupby(fields, lambda field: field[0])
    return "\n".join(f"{line};" for cpp, run in runs for line in lines_of([name for _, name in run], ", ", f"  {cpp} "))


def lines_of(items: Iterable[str], separator: str, indent: str = "") -> list[str]:
    """Returns items, joined by a separator, in lines of at most WIDTH columns, each with an indent."""
    lines: list[str] = []
    for item in items:
        longer = f"{lines[-1]}{separator}{item}" if lines else ""
        if longer and len(longer) < WIDTH:
            lines[-1] = longer
        else:
            lines.append(indent + item)
    return lines
