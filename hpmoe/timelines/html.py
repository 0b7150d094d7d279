"""A page about one run or several side by side, which needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from hpmoe.timelines.critical_path import critical_path
from hpmoe.timelines.over_time import most_of, time_inside
from hpmoe.timelines.picture import COLORS, WAITING, color, shown_ranks, title
from hpmoe.timelines.releases import waiting_for
from hpmoe.timelines.run import Run, format_us, op_name, units
from hpmoe.timelines.text import after_last

CELLS = 480
STYLE = """body{font:14px/1.5 sans-serif;margin:2em auto;max-width:1200px;color:#222}svg{width:100%;background:#fff}
table{border-collapse:collapse;margin:.5em 0}td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}pre{overflow-x:auto;font-size:12px}i{display:inline-block;width:1em;height:1em;
margin:0 .3em 0 1em;vertical-align:-.15em}h2{margin-top:2em;font-size:17px}h3{font-size:14px;margin-bottom:.2em}"""


def html(timelines: Sequence[Run], names: Sequence[str] = ()) -> str:
    """The page: for each run what its workers did, the use of each unit, waiting, and the critical path with its tasks."""
    names = [*names, *(line.flow.name for line in timelines[len(names):])]
    parts = ["<!doctype html><html><head><meta charset='utf-8'><title>hpmoe: runs</title>",
             f"<style>{STYLE}</style></head><body>",
             f"<h1>{escape(' and '.join(names))}</h1>", _numbers(timelines, names)]
    longest = max((line.span for line in timelines), default=0.0)
    for name, line in zip(names, timelines, strict=True):
        parts += [f"<h2>{escape(name)}</h2>", f"<p>{escape(title(line))}<br>",
                  f"<code>{escape(' | '.join([line.flow.name, *line.flow.provenance]))}</code></p>",
                  *_gantt(line, longest), *_curves(line, longest), _waiting(line),
                  f"<h3>critical path</h3><pre>{escape(critical_path(line).text())}</pre>"]
    return "\n".join([*parts, "</body></html>"])


def numbers(line: Run) -> dict[str, float]:
    """What a run is compared by, in microseconds and shares: span, use of units, waiting, critical path."""
    out = {"span us": line.span}
    out |= {f"{unit} busy": float(share.mean()) for unit, share in line.unit_utilisation().items()}
    exposed = line.exposed_communication()
    out |= {"exposed communication, mean us": float(exposed.mean()), "exposed communication, most us": float(exposed.max())}
    workers = max(len(line.flow.queues) * line.flow.ep_size, 1)
    out |= {f"waiting for {name}, us a worker": us / workers for name, us in waiting_for(line).items()}
    out["after the last task, us a worker"] = after_last(line) / workers
    out |= {f"critical path: {name}, us": us for name, us in critical_path(line).shares().items()}
    return out


def _numbers(timelines: Sequence[Run], names: Sequence[str]) -> str:
    columns = [numbers(line) for line in timelines]
    keys = dict.fromkeys(k for c in columns for k in c)
    rows = "".join("".join([f"<tr><td>{escape(k)}</td>", *(f"<td>{format_number(c.get(k))}</td>" for c in columns), "</tr>"])
                   for k in keys)
    head = "".join(f"<th>{escape(name)}<br>{'simulated' if line.is_simulated else 'measured'}</th>"
                   for name, line in zip(names, timelines, strict=True))
    return f"<table><tr><th></th>{head}</tr>{rows}</table>"


def format_number(value: float | None) -> str:
    """A time or a share, or "-" where a run has none."""
    return "-" if value is None else f"{value:,.1f}" if value >= 10 else f"{value:.3f}"


def _gantt(line: Run, longest: float) -> Iterator[str]:
    """A row for each worker, one rectangle for each stretch in which it did the same."""
    flow, height = line.flow, 4 if len(line.flow.queues) > 16 else 12
    width = CELLS * line.span / max(longest, 1e-12)
    ranks = shown_ranks(line)
    for rank, doing in zip(ranks, most_of(line, CELLS, ranks), strict=True):
        yield f"<h3>rank {rank}, {'simulated' if line.is_simulated else 'measured'}</h3>"
        yield (f"<svg viewBox='0 0 {CELLS} {height * len(doing)}' preserveAspectRatio='none' "
               f"style='height:{height * len(doing)}px' shape-rendering='crispEdges'>")
        for q, row in enumerate(doing):
            yield f"<g><title>{flow.machine.queue_name(q)}</title>"
            starts = np.flatnonzero(np.diff(row, prepend=-1))
            for a, b in zip(starts, [*starts[1:], len(row)], strict=True):
                if row[a] <= len(flow.ops):
                    fill = color(int(row[a])) if row[a] < len(flow.ops) else WAITING
                    yield (f"<rect x='{a * width / CELLS:.4g}' y='{q * height}' width='{(b - a) * width / CELLS:.4g}' "
                           f"height='{height - 1}' fill='{fill}'/>")
            yield "</g>"
        yield "</svg>"
    legend = "".join(f"<i style='background:{color(i)}'></i>{escape(op_name(flow, op))}" for i, op in enumerate(flow.ops))
    yield f"<p>{legend}<i style='background:{WAITING}'></i>waiting</p>"


def _curves(line: Run, longest: float) -> Iterator[str]:
    """The share of each unit's workers that is busy over time."""
    edges = np.linspace(0.0, max(line.span, 1e-12), 201)
    x = edges[1:] / max(longest, 1e-12) * CELLS
    legend, lines = [], []
    for i, (unit, queues) in enumerate(units(line.flow.machine).items()):
        mine = (line.queue >= queues.start) & (line.queue < queues.stop)
        busy = time_inside(edges, line.begin[mine], line.end[mine]) / np.diff(edges) / (len(queues) * line.flow.ep_size)
        points = " ".join(f"{a:.1f},{60 - 60 * b:.1f}" for a, b in zip(x, busy, strict=True))
        lines.append(f"<polyline points='{points}' fill='none' stroke='{COLORS[i]}'/>")
        legend.append(f"<i style='background:{COLORS[i]}'></i>{unit}")
    yield (f"<h3>busy workers, 0 to 100 % of each unit, over {format_us(longest)}</h3>"
           f"<svg viewBox='0 0 {CELLS} 60'>{''.join(lines)}</svg><p>{''.join(legend)}</p>")


def _waiting(line: Run) -> str:
    workers = max(len(line.flow.queues) * line.flow.ep_size * line.span, 1e-12)
    rows = "".join(f"<tr><td>{escape(name)}</td><td>{format_us(us)}</td><td>{us / workers:.1%}</td></tr>"
                   for name, us in {**waiting_for(line), "(after the last task)": after_last(line)}.items())
    return f"<h3>waiting, all workers together</h3><table><tr><th>for</th><th>time</th><th>share</th></tr>{rows}</table>"
