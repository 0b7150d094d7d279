"""A self-contained page about one run or several side by side: no script, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from hpmoe.support.known import known
from hpmoe.timelines.critical_path import critical_path
from hpmoe.timelines.kinds import KINDS, NOTHING, kinds_in
from hpmoe.timelines.over_time import busy_share, most_of
from hpmoe.timelines.picture import shown_ranks, title
from hpmoe.timelines.releases import waiting_for
from hpmoe.timelines.run import Run, format_us, num_workers, unit_label, units, workers_text
from hpmoe.timelines.text import after_last

CELLS = 480
DASHES = ("", "stroke-dasharray='4 3'")  # of the curves of units
DETAILS = ("waiting for ", "after ", "critical path: ")  # how the numbers begin that stand below the runs
CHARTS = """.hpmoe svg{width:100%;background:#fff}.hpmoe table{border-collapse:collapse;margin:.5em 0}
.hpmoe td,.hpmoe th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd}
.hpmoe td:first-child,.hpmoe th:first-child{text-align:left}.hpmoe pre{overflow-x:auto;font-size:12px}
.hpmoe i{display:inline-block;width:1em;height:1em;margin:0 .3em 0 1em;vertical-align:-.15em}
.hpmoe .row{display:flex;gap:.5em}.hpmoe .row>:first-child{width:7em;text-align:right;font-size:11px;line-height:1.2}
.hpmoe .axis{position:relative;height:1.4em;width:100%;border-top:1px solid #888;font-size:11px}
.hpmoe .axis b{position:absolute;font-weight:normal;border-left:1px solid #888;padding-left:.3em;white-space:nowrap}
.hpmoe .sides{display:flex;flex-wrap:wrap;gap:1em}.hpmoe .sides>*{flex:1 1 420px;min-width:0}"""
PAGE = """body{font:14px/1.5 sans-serif;margin:2em auto;padding:0 1em;max-width:1400px;color:#222}
h2{margin-top:2em;font-size:17px}h3{font-size:14px;margin-bottom:.2em}code{overflow-wrap:anywhere}
@media(max-width:600px){h1{font-size:20px}.hpmoe td,.hpmoe th{padding:.15em .3em;font-size:12px}.hpmoe pre{font-size:10px}
.hpmoe .row>:first-child{width:4.5em}}"""


def html(timelines: Sequence[Run], names: Sequence[str] = ()) -> str:
    """Returns a page: spans and use of units, rank 0 of all runs side by side, then each run, other ranks folded."""
    names = [*names, *(line.flow.name for line in timelines[len(names):])]
    longest = max((line.span for line in timelines), default=0.0)
    parts = ["<!doctype html><html lang='en'><head><meta charset='utf-8'><title>hpmoe: runs</title>",
             "<meta name='viewport' content='width=device-width, initial-scale=1'>",
             f"<style>{CHARTS}{PAGE}</style></head><body class='hpmoe'>",
             f"<h1>{escape(' and '.join(names))}</h1>", _numbers(timelines, names, are_headline=True),
             "<h2>rank 0</h2><div class='sides'>"]
    for name, line in zip(names, timelines, strict=True):
        heading = f"{name}: {format_us(line.span)}, {_kind(line)}"
        parts += [f"<div><h3>{escape(heading)}</h3>", *_gantt(line, 0, longest), "</div>"]
    parts += [f"</div>{_legend(*timelines)}"]
    for name, line in zip(names, timelines, strict=True):
        parts += [f"<h2>{escape(name)}</h2>", f"<p>{escape(title(line))}<br>",
                  f"<code>{escape(' | '.join([line.flow.name, *line.flow.provenance]))}</code></p>",
                  *_other_ranks(line, longest), *_curves(line, longest), _waiting(line),
                  f"<h3>critical path</h3><pre>{escape(critical_path(line).text())}</pre>"]
    parts += ["<h2>waiting and critical path, side by side</h2>", _numbers(timelines, names, are_headline=False)]
    return "\n".join([*parts, "</body></html>"])


def fragment(line: Run) -> str:
    """Returns what a notebook shows of a run: its summary, rank 0, and the legend."""
    parts = [f"<div class='hpmoe'><style>{CHARTS}</style><p>{escape(f'{line.flow.name}: {line.summary()}; rank 0')}</p>",
             *_gantt(line, 0, line.span), _legend(line), "</div>"]
    return "\n".join(parts)


def numbers(line: Run) -> dict[str, float]:
    """Returns figures to compare runs by, in microseconds and shares: span, use of units, waits, critical path."""
    out = {"span us": line.span}
    out |= {f"{unit} busy, share of span": float(share.mean()) for unit, share in line.unit_utilisation().items()}
    exposed = line.exposed_communication()
    out |= {"exposed communication, mean us": float(exposed.mean()), "exposed communication, most us": float(exposed.max())}
    workers = max(num_workers(line.flow), 1)
    out |= {f"waiting for {name}, us a worker": us / workers for name, us in waiting_for(line).items()}
    out["after the last task, us a worker"] = after_last(line) / workers
    out |= {f"critical path: {name}, us": us for name, us in critical_path(line).shares().items()}
    return out


def _numbers(timelines: Sequence[Run], names: Sequence[str], are_headline: bool) -> str:
    columns = [numbers(line) for line in timelines]
    keys = [k for k in dict.fromkeys(k for c in columns for k in c) if k.startswith(DETAILS) != are_headline]
    rows = "".join("".join([f"<tr><td>{escape(k)}</td>", *(f"<td>{format_number(c.get(k))}</td>" for c in columns), "</tr>"])
                   for k in keys)
    head = "".join(f"<th>{escape(name)}<br>{_kind(line)}</th>"
                   for name, line in zip(names, timelines, strict=True))
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def format_number(value: float | None) -> str:
    """Returns a time or a share as text, or "-" if a run has none."""
    return "-" if value is None else f"{value:,.1f}" if value >= 10 else f"{value:.3f}"


def _kind(line: Run) -> str:
    return "simulated" if line.is_simulated else "measured"


def _gantt(line: Run, rank: int, longest: float) -> Iterator[str]:
    """Yields a row for each worker of a rank, a rectangle for each stretch of one kind of work, and the axis of time."""
    (doing,) = most_of(line, CELLS, [rank])
    for unit, queues in units(known(line.flow.machine)).items():
        yield _row(unit_label(unit, len(queues)), _bars(line, doing, queues, longest))
    yield _time_axis(longest)


def _other_ranks(line: Run, longest: float) -> Iterator[str]:
    if others := [rank for rank in shown_ranks(line) if rank]:
        yield f"<details><summary>rank{'s' * (len(others) > 1)} {', '.join(map(str, others))}</summary>"
        for rank in others:
            yield f"<h3>rank {rank}, {_kind(line)}</h3>"
            yield from _gantt(line, rank, longest)
        yield "</details>"


def _legend(*lines: Run) -> str:
    entries = "".join(f"<i style='background:{kind.color}'></i>{kind.name}" for kind in kinds_in(*(x.flow for x in lines)))
    return f"<p>{entries}</p>"


def _row(label: str, svg: str) -> str:
    return f"<div class='row'><span>{escape(label)}</span>{svg}</div>"


def _bars(line: Run, doing: np.ndarray, queues: range, longest: float) -> str:
    height, width = 4 if len(line.flow.queues) > 16 else 12, CELLS * line.span / max(longest, 1e-12)
    total = height * len(queues)
    out = [f"<svg viewBox='0 0 {CELLS} {total}' preserveAspectRatio='none' style='height:{total}px' "
           "shape-rendering='crispEdges'>"]
    for place, q in enumerate(queues):
        out.append(f"<g><title>{known(line.flow.machine).queue_name(q)}</title>")
        starts = np.flatnonzero(np.diff(doing[q], prepend=-1))
        for a, b in zip(starts, [*starts[1:], doing.shape[1]], strict=True):
            if (kind := KINDS[doing[q, a]]) is not NOTHING:
                out.append(f"<rect x='{a * width / CELLS:.4g}' y='{place * height}' width='{(b - a) * width / CELLS:.4g}' "
                           f"height='{height - 1}' fill='{kind.color}'/>")
        out.append("</g>")
    return "".join([*out, "</svg>"])


def _time_axis(longest: float) -> str:
    """Returns the times at round places from 0 to the end of the longest run, the same below every chart of the page."""
    step = 10.0 ** np.floor(np.log10(max(longest, 1e-9) / 4))
    step *= next(n for n in (1, 2, 5, 10) if longest / (n * step) <= 8)
    ticks = "".join(f"<b style='left:{100 * t / max(longest, 1e-12):.2f}%'>{format_us(t) if t else '0'}</b>"
                    for t in np.arange(0, longest * 0.97, step))
    return f"<div class='row'><span>time</span><div class='axis'>{ticks}</div></div>"


def _curves(line: Run, longest: float) -> Iterator[str]:
    """Yields the share of each unit's workers that is busy over time."""
    edges = np.linspace(0.0, max(line.span, 1e-12), 201)
    x = edges[1:] / max(longest, 1e-12) * CELLS
    legend, lines = [], []
    for i, (unit, queues) in enumerate(units(known(line.flow.machine)).items()):
        share = busy_share(line, queues, edges)
        points = " ".join(f"{a:.1f},{60 - 60 * b:.1f}" for a, b in zip(x, share, strict=True))
        lines.append(f"<polyline points='{points}' fill='none' stroke='black' {DASHES[i]} "
                     "vector-effect='non-scaling-stroke'/>")
        legend.append(f"{('solid', 'dashed')[i]}: {unit if unit == 'worker' else unit.upper()}")
    svg = f"<svg viewBox='0 0 {CELLS} 60' preserveAspectRatio='none' style='height:120px'>{''.join(lines)}</svg>"
    yield (f"<h3>busy workers of each unit, 0 to 100 %</h3>{_row('0 .. 100 %', svg)}{_time_axis(longest)}"
           f"<p>{'; '.join(legend)}</p>")


def _waiting(line: Run) -> str:
    workers = max(num_workers(line.flow) * line.span, 1e-12)
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{format_us(us)}</td><td>{us / workers:.1%}</td></tr>"
                   for name, us in {**waiting_for(line), "(after the last task)": after_last(line)}.items())
    return (f"<h3>waiting, summed over {workers_text(line.flow)}</h3><table><tr><th>for</th><th>time</th>"
            f"<th>share of their time</th></tr>{rows}</table>")
