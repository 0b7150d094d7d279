"""hpmoe doctor --target: what the kernel of a target runs, and what it refuses by name before any launch.

Reads the table that the target's refusals ask.
"""

from __future__ import annotations

import textwrap

from hpmoe.runtime.bodies import Bodies
from hpmoe.runtime.targets import find_target
from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import BYTES, FLOATS, INTEGERS
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.tile_primitive import TilePrimitive

WIDTH = 110


def reach(target: str) -> Fields:
    """Returns the operations, functions, dtypes and numbers that a target runs, and those that it refuses."""
    bodies = find_target(target).bodies
    runs: Fields = {"operations": sorted(bodies.operations), "functions": sorted(bodies.functions)}
    refuses = {"operations": sorted(TilePrimitive.members.keys() - bodies.operations),
               "functions": sorted(Function.members.keys() - bodies.functions)}
    runs |= {"dtypes": dtypes(bodies), "at_most": dict(bodies.at_most)}
    return {"target": target, "runs": runs, "refuses": refuses}


def dtypes(bodies: Bodies) -> dict[str, list[str]]:
    """Returns for each dtype the operations that take an operand of it, besides ids, which routes read as int32."""
    operations = [TilePrimitive.members[name] for name in sorted(bodies.operations)]
    return {dtype: [p.name for p in operations if any(bodies.takes(x, dtype) for x in (*p.outputs, *p.inputs))]
            for dtype in (*FLOATS, *INTEGERS, BYTES)}


def lines(found: Fields) -> list[str]:
    """Returns the lines of text of `reach`."""
    runs, all_names = found["runs"], found["runs"]["operations"]
    rows = [f"the {found['target']} target runs", *_list("operations", all_names), *_list("functions", runs["functions"])]
    for dtype, names in runs["dtypes"].items():
        left = sorted(set(all_names) - set(names))
        rows += _list(dtype, ["in none of them"] if not names else names if len(left) > len(names) else
                      ["in all but", *left] if left else ["in all of them"])
    rows += _list("at most", [f"{what} {most};" for what, most in runs["at_most"].items()] or ["what memory holds"])
    rows += ["and refuses, by name and before a launch"]
    for family, names in found["refuses"].items():
        rows += _list(family, names or ["none"])
    return rows


def _list(title: str, words: list[str]) -> list[str]:
    return textwrap.wrap(" ".join(words).rstrip(";"), WIDTH, initial_indent=f"  {title:<12}", subsequent_indent=" " * 14)
