"""hpmoe simulate --validate: every published measurement beside what the model says of the same work."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from hpmoe.commands import paper_table
from hpmoe.commands.published import published
from hpmoe.support.kept_files import Fields
from hpmoe.support.progress import Progress

PAPER = "HyperParallel-MoE (arXiv 2605.23764)"


def rows(progress: Progress) -> list[Fields]:
    """One for each figure: source, work, unit, published, simulated, blind, missing."""
    out = []
    for row in paper_table.rows(4096, progress):
        for side, unit in (("baseline", "ms"), ("fused", "ms")):
            name = "unfused" if side == "baseline" else side
            out.append(_row(PAPER, f"{row['direction']}, EP {row['ep']}, {name}", unit, row[f"paper_{side}_ms"],
                            row[f"{side}_ms"], False, ""))
    for known in published():
        progress(f"{known.source}: {known.work}")
        out.append(_row(known.source, known.work, known.unit, known.figure, known.simulate(), known.is_blind, known.missing))
    return out


def summary(table: Sequence[Fields]) -> Fields:
    """Median and worst error of rows that were fitted, of blind ones, and of these without each source in turn."""
    blind = [row for row in table if row["blind"]]
    sources = dict.fromkeys(row["source"] for row in blind)
    return {"fitted": _errors(row for row in table if not row["blind"]), "blind": _errors(blind),
            "blind_without": {source: _errors(row for row in blind if row["source"] != source) for source in sources}}


def text(table: Sequence[Fields], found: Fields) -> str:
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
    return "\n".join(lines)


def _row(source: str, work: str, unit: str, figure: float, simulated: float, is_blind: bool, missing: str) -> Fields:
    return {"source": source, "work": work, "unit": unit, "published": figure, "simulated": simulated, "blind": is_blind,
            "error": simulated / figure - 1, "missing": missing}


def _errors(table: Iterable[Fields]) -> dict[str, float]:
    errors = [abs(row["error"]) for row in table]
    return {"rows": len(errors), "median": statistics.median(errors), "worst": max(errors)}


def _said(errors: dict[str, float]) -> str:
    return f"{errors['rows']} rows, median error {errors['median']:.0%}, worst {errors['worst']:.0%}"
