"""The picture of a Timeline: what each worker did, coloured by operation, and below it how much of each unit is in use."""

from __future__ import annotations

import colorsys
import os
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hpmoe.support.known import known
from hpmoe.timelines.over_time import busy_share, most_of
from hpmoe.timelines.run import Run, op_name, unit_label, units

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLORS = ("#1b6ca8", "#d1495b", "#2e8b57", "#edae49", "#7b5ea7", "#00a6a6", "#8c564b", "#c45ab3", "#6b8e23", "#ff7f50",
          "#4b6584", "#a0522d")
WAITING, NOTHING = "#d7dbe0", "#ffffff"
RANKS_SHOWN = 4
TITLE_WIDTH = 150  # characters of a line that the figure has room for
CELLS = 800


def shown_ranks(line: Run) -> list[int]:
    """The ranks that a picture has room for: evenly among all, and the one that ends last."""
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
    from matplotlib.patches import Patch

    flow, ranks, (of_ops,) = line.flow, shown_ranks(line), colors_of(line)
    with matplotlib.rc_context({"font.size": 8}):
        height = min(12.0, 0.6 + len(ranks) * max(0.6, 0.035 * len(flow.queues)))
        figure = Figure(figsize=(11, height + 2.2), layout="constrained")
        axes = figure.subplots(len(ranks) + 1, 1, sharex=True, squeeze=False,
                               height_ratios=[height / len(ranks)] * len(ranks) + [1.2])[:, 0]
        for ax, rank in zip(axes, ranks, strict=False):
            draw_rank(ax, line, rank, of_ops)
            ax.set_ylabel(f"rank {rank}")
        _draw_utilisation(axes[-1], line)
        figure.suptitle("\n".join(textwrap.fill(text, TITLE_WIDTH) for text in (title(line), " | ".join(flow.provenance))),
                        fontsize=8)
        names = [Patch(color=c, label=op_name(flow, op)) for c, op in zip(of_ops, flow.ops, strict=True)]
        figure.legend(handles=[*names, Patch(color=WAITING, label="waiting")], loc="outside lower center", ncols=5)
        figure.savefig(path, dpi=110)


def draw_rank(ax: Axes, line: Run, rank: int, colors: Sequence[str]) -> None:
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
