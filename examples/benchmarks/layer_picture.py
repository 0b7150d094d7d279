"""The picture of a benchmark: a row of panels for each dtype, a panel for each case, two bars for each side."""

from __future__ import annotations

import matplotlib
from layer_problem import PASSES
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hpmoe.support.cached_files import Fields

COLORS = {"forward": ("#1b6ca8", "#9aa5b1"), "forward + backward": ("#7fb3d9", "#cfd6dd")}  # hpmoe's, the peers'


def draw(report: Fields, out: str) -> None:
    """Writes the picture to a file whose suffix says its kind."""
    dtypes = list(dict.fromkeys(case["dtype"] for case in report["cases"]))
    names = list(dict.fromkeys(case["name"] for case in report["cases"]))
    sides = {dtype: {r["side"]: r["title"] for case in report["cases"] if case["dtype"] == dtype
                     for r in case["sides"] if r["status"] not in ("none", "not installed")} for dtype in dtypes}
    heights = [1 + len(sides[dtype]) for dtype in dtypes]
    with matplotlib.rc_context({"font.size": 8}):
        figure = Figure(figsize=(1.8 + 2.9 * len(names), 0.8 + 0.45 * sum(heights)), layout="constrained")
        axes = figure.subplots(len(dtypes), len(names), squeeze=False, height_ratios=heights)
        for case in report["cases"]:
            row, column = dtypes.index(case["dtype"]), names.index(case["name"])
            panel(axes[row][column], case, sides[case["dtype"]], labels=column == 0)
        m = report["machine"]
        figure.suptitle(f"MoE-FFN, ms: dark forward, light forward + backward; lines from fastest to slowest of "
                        f"{report['repeats']} turns\n{m['cpu']}, {m['cores']} cores")
        figure.savefig(out, dpi=90)


def panel(axes: Axes, case: Fields, sides: dict[str, str], labels: bool) -> None:
    rows = {r["side"]: r for r in case["sides"]}
    for i, side in enumerate(sides):
        for k, which in enumerate(PASSES):
            y = i + 0.4 * k - 0.2
            p = rows[side]["passes"].get(which) if side in rows else None
            if p is None:
                axes.text(0, y, " -", va="center")
                continue
            spread = [[p["ms"] - p["min_ms"]], [p["max_ms"] - p["ms"]]]
            axes.barh(y, p["ms"], 0.38, color=COLORS[which][side != "hpmoe"], xerr=spread, error_kw={"elinewidth": 0.8})
            axes.text(p["max_ms"], y, f" {p['ms']:.{1 if p['ms'] < 100 else 0}f}", va="center")
    axes.set_yticks(range(len(sides)), list(sides.values()) if labels else [""] * len(sides))
    axes.set_ylim(len(sides) - 0.4, -0.6)
    axes.margins(x=0.18)
    axes.set_xlim(left=0)
    axes.set_title(f"{case['name']}, {case['dtype']}", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
