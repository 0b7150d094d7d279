"""hpmoe doctor --target: what the kernel of a target runs, and what it refuses by name before any launch.

Read off the definitions that the refusals ask, so that neither says what the other does not do.
"""

from __future__ import annotations

import textwrap

from hpmoe.kernels.ascendc import rules as ascend_rules
from hpmoe.runtime.bodies import Bodies
from hpmoe.runtime.targets import find_target
from hpmoe.support.dtypes import BYTES, FLOATS, INTEGERS
from hpmoe.support.kept_files import Fields
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.tile_primitive import TilePrimitive

WIDTH = 110


def reach(target: str) -> Fields:
    """Operations, functions, dtypes and numbers that a target runs, and those that it refuses."""
    bodies = find_target(target).bodies
    runs = {"operations": sorted(bodies.operations), "functions": sorted(bodies.functions)}
    refuses = {"operations": sorted(TilePrimitive.members.keys() - bodies.operations),
               "functions": sorted(Function.members.keys() - bodies.functions)}
    limits = {limit.what.strip(","): limit.most for limit in ascend_rules.LIMITS} if target != "cpu" else {}
    if limits:
        limits["columns of a product's operand"] = ascend_rules.MOST_COLUMNS
        limits["columns of a row that is quantised, as int8, on a 950 also fp8, with a scale a row, or as mxfp8, of any"] = (
            ascend_rules.MOST_QUANTISED)
        limits["columns of a guarded row"] = ascend_rules.MOST_GUARDED
        limits[f"bytes of a row of {', '.join(p.name for p in ascend_rules.ON_WHOLE_ROWS)}"] = ascend_rules.MOST_ROW_BYTES
    return {"target": target, "runs": {**runs, "dtypes": dtypes(bodies), "at_most": limits}, "refuses": refuses}


def dtypes(bodies: Bodies) -> dict[str, list[str]]:
    """For each dtype the operations that take an operand of it, beside ids, which every route reads as int32."""
    operations = [TilePrimitive.members[name] for name in sorted(bodies.operations)]
    return {dtype: [p.name for p in operations if any(bodies.takes(x, dtype) for x in (*p.outputs, *p.inputs))]
            for dtype in (*FLOATS, *INTEGERS, BYTES)}


def lines(found: Fields) -> list[str]:
    """The text of reach."""
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
