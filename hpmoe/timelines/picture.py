"""Pictures of one Timeline and of several side by side: what each worker did, coloured by operation."""

from __future__ import annotations

import colorsys
import itertools
import os
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpmoe.support.known import known
from hpmoe.timelines.over_time import busy_share, most_of
from hpmoe.timelines.run import Run, format_us, op_name, unit_label, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLORS = ("#1b6ca8", "#d1495b", "#2e8b57", "#edae49", "#7b5ea7", "#00a6a6", "#8c564b", "#c45ab3", "#6b8e23", "#ff7f50",
          "#4b6584", "#a0522d")
WAITING, NOTHING = "#d7dbe0", "#ffffff"
RANKS_SHOWN = 4
TITLE_WIDTH = 150  # characters of a line that the figure can hold
CELLS = 800


def shown_ranks(line: Run) -> list[int]:
    """The ranks that a picture can hold: evenly among all, and the one that ends last."""
    if line.flow.ep_size <= RANKS_SHOWN:
        return list(range(line.flow.ep_size))
    last, others = int(line.rank[np.argmax(line.end)]), RANKS_SHOWN - 1
    return sorted({last, *(i * line.flow.ep_size // others for i in range(others))})


def colors_of(*lines: Run) -> list[list[str]]:
    """For each run the colors of its operations: those of one name, counted in order, have the same in all runs."""
    keys = [_counted([op_name(line.flow, op).split(" -> ")[0] for op in line.flow.ops]) for line in lines]
    place = {key: i for i, key in enumerate(dict.fromkeys(k for mine in keys for k in mine))}
    return [[COLORS[i] if (i := place[k]) < len(COLORS) else _more_colors(i) for k in mine] for mine in keys]


def _counted(names: list[str]) -> list[tuple[str, int]]:
    return [(name, names[:i].count(name)) for i, name in enumerate(names)]


def _more_colors(i: int) -> str:
    red, green, blue = colorsys.hls_to_rgb(i * 0.618034 % 1, 0.45 + 0.12 * (i % 3), 0.55)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def title(line: Run) -> str:
    """One line that says whose run it is, and whether it is simulated."""
    ranks = shown_ranks(line)
    some = "" if len(ranks) == line.flow.ep_size else f"; ranks {', '.join(map(str, ranks))} of {line.flow.ep_size}"
    return f"{line.flow.name}: {'' if line.is_simulated else 'measured '}{line.summary()}{some}"


def draw(line: Run, path: str | os.PathLike[str]) -> None:
    """Writes the picture to a file whose suffix says its kind."""
    import matplotlib
    from matplotlib.figure import Figure

    flow, ranks, (of_ops,) = line.flow, shown_ranks(line), colors_of(line)
    with matplotlib.rc_context({"font.size": 8}):
        height = min(12.0, 0.6 + len(ranks) * max(0.6, 0.035 * len(flow.queues)))
        figure = Figure(figsize=(11, height + 2.2), layout="constrained")
        axes = figure.subplots(len(ranks) + 1, 1, sharex=True, squeeze=False,
                               height_ratios=[height / len(ranks)] * len(ranks) + [1.2])[:, 0]
        for ax, rank in zip(axes, ranks, strict=False):
            _draw_rank(ax, line, rank, of_ops)
            ax.set_ylabel(f"rank {rank}")
        _draw_utilisation(axes[-1], line)
        figure.suptitle("\n".join(textwrap.fill(text, TITLE_WIDTH) for text in (title(line), " | ".join(flow.provenance))),
                        fontsize=8)
        _finish(figure, zip((op_name(flow, op) for op in flow.ops), of_ops, strict=True), 5, path)


def _draw_rank(ax: Axes, line: Run, rank: int, colors: Sequence[str]) -> None:
    """Draws what each worker of a rank did, in the colors of the operations."""
    from matplotlib.colors import ListedColormap

    (doing,) = most_of(line, CELLS, [rank])
    ax.imshow(doing, aspect="auto", interpolation="nearest", cmap=ListedColormap([*colors, WAITING, NOTHING]), vmin=-0.5,
              vmax=len(line.flow.ops) + 1.5, extent=(0, max(line.span, 1e-9), len(line.flow.queues), 0))
    of_units = units(known(line.flow.machine))
    ax.set_yticks([(q.start + q.stop) / 2 for q in of_units.values()],
                  [unit_label(unit, len(q)) for unit, q in of_units.items()])


def _draw_utilisation(ax: Axes, line: Run) -> None:
    """The share of the workers of each unit, over all ranks, that is in task bodies."""
    edges = np.linspace(0.0, max(line.span, 1e-9), 201)
    for unit, queues in units(known(line.flow.machine)).items():
        share = busy_share(line, queues, edges)
        ax.plot((edges[1:] + edges[:-1]) / 2, 100 * share, label=unit_label(unit, len(queues)), linewidth=1)
    ax.set_ylim(0, 105)
    ax.set_ylabel("busy, %")
    ax.set_xlabel("simulated us" if line.is_simulated else "measured us")
    ax.legend(loc="lower center", ncols=3)


def draw_side_by_side(lines: Sequence[Run], names: Sequence[str], equations: str, path: str | os.PathLike[str]) -> None:
    """Writes the picture: of each run the rank that ends last, on one axis of time; operations of one kind have one color.

    Args:
        lines: the runs.
        names: what each is called.
        equations: the text above them.
        path: of a file whose suffix says its kind.
    """
    import matplotlib
    from matplotlib.figure import Figure

    labels = list(dict.fromkeys(op.label for line in lines for op in line.flow.ops))
    color_of = dict(zip(labels, itertools.cycle(COLORS), strict=False))
    text_height, run_height = 0.14 * (equations.count("\n") + 1), 1.9
    with matplotlib.rc_context({"font.size": 9}):
        figure = Figure(figsize=(9, text_height + run_height * len(lines) + 1.2), layout="constrained")
        text, *axes = figure.subplots(len(lines) + 1, 1, height_ratios=[text_height] + [run_height] * len(lines))
        text.set_axis_off()
        text.text(0, 1, equations, family="monospace", fontsize=8, va="top", transform=text.transAxes)
        longest = max(line.span for line in lines)
        for ax, line, name in zip(axes, lines, names, strict=True):
            _draw_rank(ax, line, int(line.rank[np.argmax(line.end)]), [color_of[op.label] for op in line.flow.ops])
            ax.set_xlim(0, longest)
            kind = "simulated" if line.is_simulated else "measured"
            ax.set_title(f"{name}: {format_us(line.span)} {kind}", loc="left", fontsize=10)
        axes[-1].set_xlabel("simulated us" if lines[-1].is_simulated else "measured us")
        _finish(figure, color_of.items(), 4, path)


def _finish(figure: Figure, colors: Iterable[tuple[str, str]], columns: int, path: str | os.PathLike[str]) -> None:
    """Puts a legend of (name, color) below the figure, and writes the figure."""
    from matplotlib.patches import Patch

    names = [Patch(color=color, label=name) for name, color in (*colors, ("waiting", WAITING))]
    figure.legend(handles=names, loc="outside lower center", ncols=columns)
    figure.savefig(path, dpi=110)
