"""One picture of several runs of a layer: the layer as equations, below it what the workers of a rank did in each run."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence

import numpy as np

from hpmoe.timelines.picture import COLORS, WAITING, draw_rank
from hpmoe.timelines.run import Run, format_us

LEGEND_COLUMNS = 4


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
    from matplotlib.patches import Patch

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
            draw_rank(ax, line, int(line.rank[np.argmax(line.end)]), [color_of[op.label] for op in line.flow.ops])
            ax.set_xlim(0, longest)
            kind = "simulated" if line.is_simulated else "measured"
            ax.set_title(f"{name}: {format_us(line.span)} {kind}", loc="left", fontsize=10)
        axes[-1].set_xlabel("simulated us" if lines[-1].is_simulated else "measured us")
        figure.legend(handles=[*(Patch(color=c, label=label) for label, c in color_of.items()),
                               Patch(color=WAITING, label="waiting")], loc="outside lower center", ncols=LEGEND_COLUMNS)
        figure.savefig(path, dpi=110)
