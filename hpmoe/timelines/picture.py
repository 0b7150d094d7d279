"""Pictures of one Timeline and of several side by side: a row for each worker, coloured by kind of work."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpmoe.support.known import known
from hpmoe.timelines.kinds import KINDS, Kind, kinds_in
from hpmoe.timelines.over_time import busy_share, most_of
from hpmoe.timelines.run import Run, format_us, unit_label, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RANKS_SHOWN = 4
TITLE_WIDTH = 150  # characters of a line that the figure can hold
CELLS = 800


def shown_ranks(line: Run) -> list[int]:
    """Returns the ranks that a picture can hold: evenly among all, and the one that ends last."""
    if line.flow.ep_size <= RANKS_SHOWN:
        return list(range(line.flow.ep_size))
    last, others = int(line.rank[np.argmax(line.end)]), RANKS_SHOWN - 1
    return sorted({last, *(i * line.flow.ep_size // others for i in range(others))})


def title(line: Run) -> str:
    """Returns one line with the name of the run, and whether it is simulated."""
    ranks = shown_ranks(line)
    some = "" if len(ranks) == line.flow.ep_size else f"; ranks {', '.join(map(str, ranks))} of {line.flow.ep_size}"
    return f"{line.flow.name}: {'' if line.is_simulated else 'measured '}{line.summary()}{some}"


def draw(line: Run, path: str | os.PathLike[str]) -> None:
    """Writes the picture to a file whose suffix says its kind."""
    import matplotlib
    from matplotlib.figure import Figure

    flow, ranks = line.flow, shown_ranks(line)
    with matplotlib.rc_context({"font.size": 8}):
        height = min(12.0, 0.6 + len(ranks) * max(0.6, 0.035 * len(flow.queues)))
        figure = Figure(figsize=(11, height + 2.2), layout="constrained")
        axes = figure.subplots(len(ranks) + 1, 1, sharex=True, squeeze=False,
                               height_ratios=[height / len(ranks)] * len(ranks) + [1.2])[:, 0]
        for ax, rank in zip(axes, ranks, strict=False):
            _draw_rank(ax, line, rank)
            ax.set_ylabel(f"rank {rank}")
        _draw_utilisation(axes[-1], line)
        figure.suptitle("\n".join(textwrap.fill(text, TITLE_WIDTH) for text in (title(line), " | ".join(flow.provenance))),
                        fontsize=8)
        _finish(figure, kinds_in(flow), path, title(line))


def _draw_rank(ax: Axes, line: Run, rank: int) -> None:
    """Draws a row for each worker of a rank, in the colours of the kinds of work."""
    from matplotlib.colors import ListedColormap

    (doing,) = most_of(line, CELLS, [rank])
    ax.imshow(doing, aspect="auto", interpolation="nearest", cmap=ListedColormap([k.color for k in KINDS]), vmin=-0.5,
              vmax=len(KINDS) - 0.5, extent=(0, max(line.span, 1e-9), len(line.flow.queues), 0))
    of_units = units(known(line.flow.machine))
    ax.set_yticks([(q.start + q.stop) / 2 for q in of_units.values()],
                  [unit_label(unit, len(q)) for unit, q in of_units.items()])


def _draw_utilisation(ax: Axes, line: Run) -> None:
    """Draws the share of the workers of each unit, over all ranks, that is in task bodies."""
    edges = np.linspace(0.0, max(line.span, 1e-9), 201)
    for (unit, queues), style in zip(units(known(line.flow.machine)).items(), ("-", "--"), strict=False):
        share = busy_share(line, queues, edges)
        ax.plot((edges[1:] + edges[:-1]) / 2, 100 * share, style, label=unit_label(unit, len(queues)), color="black",
                linewidth=1)
    ax.set_ylim(0, 105)
    ax.set_ylabel("busy, %")
    ax.set_xlabel(f"{_kind(line)} us")
    ax.legend(loc="lower center", ncols=3)


def draw_side_by_side(lines: Sequence[Run], names: Sequence[str], equations: str, path: str | os.PathLike[str], *,
                      rank: int | None = None, until: float | None = None) -> None:
    """Writes a picture of one rank of several runs on one axis of time, in the format of the path's suffix.

    The spans of the runs are also the title in the file's metadata. `names` are headings, `equations` is the text above
    the runs. `rank` is by default the one that ends last, `until` microseconds are by default the longest run's.
    """
    import matplotlib
    from matplotlib.figure import Figure

    text_height, run_height = 0.14 * (equations.count("\n") + 1) if equations else 0.01, 1.9
    titles = [f"{name}: {format_us(line.span)} {_kind(line)}" for line, name in zip(lines, names, strict=True)]
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, text_height + run_height * len(lines) + 0.9), layout="constrained")
        text, *axes = figure.subplots(len(lines) + 1, 1, height_ratios=[text_height] + [run_height] * len(lines))
        text.set_axis_off()
        text.text(0, 1, equations, family="monospace", fontsize=8, va="top", transform=text.transAxes)
        for ax, line, heading in zip(axes, lines, titles, strict=True):
            _draw_rank(ax, line, int(line.rank[np.argmax(line.end)]) if rank is None else rank)
            ax.set_xlim(0, until or max(line.span for line in lines))
            ax.set_title(heading, loc="left", fontsize=10)
        axes[-1].set_xlabel(f"{_kind(lines[-1])} us")
        _finish(figure, kinds_in(*(line.flow for line in lines)), path, "; ".join(titles))


def _kind(line: Run) -> str:
    return "simulated" if line.is_simulated else "measured"


def _finish(figure: Figure, kinds: Sequence[Kind], path: str | os.PathLike[str], text: str) -> None:
    """Puts the legend below the figure, and writes the figure with `text` as its title in the metadata."""
    from matplotlib.patches import Patch

    figure.legend(handles=[Patch(color=kind.color, label=kind.name) for kind in kinds], loc="outside lower center",
                  ncols=len(kinds))
    figure.savefig(path, dpi=110, metadata={"Title": text})
