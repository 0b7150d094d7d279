"""Primitives by the names that programs print, which stay: `from hpmoe.rewriting.primitives import add, grouped_matmul`.

An equation `c:f32[R,6] = grouped_matmul[transpose=True] a w r` is one of `primitives.grouped_matmul`, and
`builder.add(primitives.grouped_matmul, a, w, r, transpose=True)` makes one. Operands are atoms: variables of the program, or
numbers; a name with a star stands for any number of operands. What has `=` is given by name. `repr` and `signature`
of a primitive are its name and its line below.

Example:
    >>> from hpmoe.rewriting import primitives
    >>> primitives.select, primitives.combine.signature
    (select, 'combine(rows, route, *weights)')

All of them:
"""

from __future__ import annotations

import difflib

from hpmoe.primitives.primitive import REGISTRY, Primitive


def __getattr__(name: str) -> Primitive:
    if name not in REGISTRY:
        near = ", ".join(difflib.get_close_matches(name, REGISTRY))
        advice = f"did you mean {near}?" if near else "help(hpmoe.rewriting.primitives) lists all."
        raise AttributeError(f"hpmoe.rewriting.primitives: {name!r} is no primitive; {advice}")
    return REGISTRY[name]


def __dir__() -> list[str]:
    return sorted(REGISTRY)


__doc__ = (__doc__ or "") + "\n".join(f"    {REGISTRY[name].signature}" for name in sorted(REGISTRY))
