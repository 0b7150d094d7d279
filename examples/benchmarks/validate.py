"""validate.py: every published measurement beside what the model says of the same work."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterable, Sequence

import paper_table
import script
from absl import flags
from published import PR_809, published
from published_work import BEGIN_END_US
from refit import PAPER, without

import hpmoe
from hpmoe.commands import options
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

SUMMARY = "prints every published measurement of such work beside what the model says of the same"
NOTES = """\
All figures but the published ones are simulated; a row says if a constant of the model was fitted to it.
  python examples/benchmarks/validate.py --json"""


def define(values: flags.FlagValues) -> None:
    """No flags but --json and --help."""


def run(o: flags.FlagValues) -> int:
    with Progress("validate.py") as progress:
        table = rows(progress)
        found, left = summary(table), left_out(table, progress)
    result = {"simulated": True, "rows": table, **found, "left_out": left}
    return options.report(o, result, text(table, found, left))


def rows(progress: Progress) -> list[Fields]:
    """One for each figure: source, work, unit, published, simulated, blind, missing."""
    return [*_of_paper(progress), *_of_others(progress)]


def left_out(table: Sequence[Fields], progress: Progress) -> dict[str, Fields]:
    """For each source the errors of its rows by the model without it: by a machine that is refitted where it was fitted to
    the source, and which constants that changes; as in the table for all others."""
    out = {}
    for source in dict.fromkeys(row["source"] for row in table):
        mine = [row for row in table if row["source"] == source]
        changed = {}
        if not all(row["blind"] for row in mine):
            progress(f"refitting without {source}")
            machine = without(source)
            changed = {name: machine[name] for name, _ in hpmoe.machines.ascend_a3.constants
                       if machine[name] != hpmoe.machines.ascend_a3[name]}
            begin_end_us = 0.0 if source == PR_809 else BEGIN_END_US
            changed |= {"begin_end_us": 0.0} if source == PR_809 else {}
            mine = _of_paper(progress, machine) if source == PAPER else _of_others(progress, machine, source, begin_end_us)
        out[source] = {**_errors(mine), "refitted": changed}
    return out


def _of_paper(progress: Progress, machine: hpmoe.Machine = hpmoe.machines.ascend_a3) -> list[Fields]:
    out = []
    for row in paper_table.rows(4096, progress, machine):
        for side, unit in (("baseline", "ms"), ("fused", "ms")):
            name = "unfused" if side == "baseline" else side
            out.append(_row(PAPER, f"{row['direction']}, EP {row['ep']}, {name}", unit, row[f"paper_{side}_ms"],
                            row[f"{side}_ms"], False, ""))
    return out


def _of_others(progress: Progress, machine: hpmoe.Machine = hpmoe.machines.ascend_a3, source: str | None = None,
               begin_end_us: float = BEGIN_END_US) -> list[Fields]:
    out = []
    for known in published(machine, begin_end_us):
        if source not in (None, known.source):
            continue
        progress(f"{known.source}: {known.work}")
        out.append(_row(known.source, known.work, known.unit, known.figure, known.simulate(), known.is_blind, known.missing))
    return out


def summary(table: Sequence[Fields]) -> Fields:
    """Median and worst error of rows that were fitted, of blind ones, and of these without each source in turn."""
    blind = [row for row in table if row["blind"]]
    sources = dict.fromkeys(row["source"] for row in blind)
    return {"fitted": _errors(row for row in table if not row["blind"]), "blind": _errors(blind),
            "blind_without": {source: _errors(row for row in blind if row["source"] != source) for source in sources}}


def text(table: Sequence[Fields], found: Fields, left: dict[str, Fields]) -> str:
    width = max(len(row["work"]) for row in table)
    lines = ["published beside simulated; f: a constant of the machine was fitted to it, or had it in view"]
    source = None
    for row in table:
        if row["source"] != source:
            source = row["source"]
            lines += ["", f"{source:<{width + 4}}{'published':>11}{'simulated':>11}{'error':>9}"]
        figures = f"{row['published']:>11.4g}{row['simulated']:>11.4g}{row['error']:>+9.0%} {row['unit']}"
        missing = f"; not modelled: {row['missing']}" if row["missing"] else ""
        lines.append(f"{' ' if row['blind'] else 'f'} {row['work']:<{width}}  {figures}{missing}")
    lines += ["", *(f"{name}: {_said(found[name])}" for name in ("fitted", "blind")), "blind, without"]
    lines += [f"  {source}: {_said(errors)}" for source, errors in found["blind_without"].items()]
    lines += ["", "a source's rows by the model without it"]
    for source, errors in left.items():
        refitted = ", ".join(f"{name} {value:.3g}" for name, value in errors["refitted"].items())
        lines.append(f"  {source}: {_said(errors)}{f'; refitted: {refitted}' if refitted else ''}")
    return "\n".join(lines)


def _row(source: str, work: str, unit: str, figure: float, simulated: float, is_blind: bool, missing: str) -> Fields:
    return {"source": source, "work": work, "unit": unit, "published": figure, "simulated": simulated, "blind": is_blind,
            "error": simulated / figure - 1, "missing": missing}


def _errors(table: Iterable[Fields]) -> dict[str, float]:
    errors = [abs(row["error"]) for row in table]
    return {"rows": len(errors), "median": statistics.median(errors), "worst": max(errors)}


def _said(errors: dict[str, float]) -> str:
    return f"{errors['rows']} rows, median error {errors['median']:.0%}, worst {errors['worst']:.0%}"


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
