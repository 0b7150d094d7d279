"""hpmoe bench --processes: the MoE-FFN with a process for each rank beside PyTorch with gloo; what communication takes."""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpmoe.commands import options
from hpmoe.peers import MALLOC
from hpmoe.ranks.starting import start_ranks
from hpmoe.support.kept_files import Fields

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUITE = {"tokens": (256, 512, 1024, 2048), "intermediate": (512, 128)}
TITLES = {"hpmoe": "hpmoe", "torch": "PyTorch, gloo"}
NOTES = """\
Each process has its share of the cores, and both sides in it, which take turns of 0.1 s after one untimed run: medians of
the turns. T is of each rank. Communication of hpmoe is the share of its launches in which a rank runs no task that computes
(copies and waits); of PyTorch the share of a run inside all_to_all_single. Both are means over ranks."""


def cases(num_processes: int, sizes: Fields, is_suite: bool) -> Iterator[Fields]:
    """Sizes of each case. `tokens` is of a rank."""
    options.check_flag(sizes["experts"] % num_processes == 0, "experts", sizes["experts"],
                       f"a multiple of {num_processes}, the number of --processes")
    if not is_suite:
        yield sizes
        return
    for intermediate in SUITE["intermediate"]:
        for tokens in SUITE["tokens"]:
            yield {**sizes, "tokens": tokens, "intermediate": intermediate}


def sides_of(peers: str) -> list[str]:
    """The sides: what --peers says."""
    options.check_flag(peers in ("all", "none", "torch"), "peers", peers, "torch, all or none with --processes")
    if peers == "none":
        return ["hpmoe"]
    options.check_flag(importlib.util.find_spec("torch") is not None, "peers", peers,
                       "none with --processes where PyTorch is not installed; pip install '.[bench]'")
    return ["hpmoe", "torch"]


def measured(num_processes: int, sizes: Fields, dtype: str, sides: Sequence[str], seed: int, repeats: int) -> Fields:
    """One case: medians, turns and shares of communication of each side and pass; `status` is not 0 where a rank failed."""
    case: Fields = {"processes": num_processes, "sizes": sizes, "dtype": dtype}
    with tempfile.TemporaryDirectory(prefix="hpmoe_bench_") as folder:
        given = {**sizes, "dtype": dtype, "seed": seed, "repeats": repeats, "torch": "torch" in sides, "folder": folder}
        malloc = [f"{name}={value}" for name, value in MALLOC["malloc that keeps its memory"].items()]
        command = ["env", *malloc, sys.executable, "-m", "hpmoe.peers.ranks_contest", json.dumps(given)]
        status = start_ranks(command, num_processes)
        if status != 0:
            return {**case, "status": status}
        ranks = json.loads((Path(folder) / "report.json").read_text())
    passes = {side: {which: {"ms": statistics.median(turns), "turns_ms": turns,
                             "communication": statistics.mean(r["shares"][side][which] for r in ranks)}
                     for which, turns in of_side.items()} for side, of_side in ranks[0]["turns_ms"].items()}
    return {**case, "status": 0, "sides": passes, "exchange_us": ranks[0]["exchange_us"],
            "difference": max((d for r in ranks for d in r.get("differences", {}).values()), default=None)}


def ratio(case: Fields, which: str) -> float | None:
    """How many times longer PyTorch takes."""
    sides = case["sides"]
    return sides["torch"][which]["ms"] / sides["hpmoe"][which]["ms"] if "torch" in sides else None


def goals(case: Fields) -> list[tuple[str, float, bool]]:
    """(what, the figure, whether it is met)."""
    sizes, found = case["sizes"], []
    if case["dtype"] == "float32" and "torch" in case["sides"]:
        forward = 1.58 if sizes["tokens"] >= 2048 or sizes["intermediate"] == 128 else 1.35
        for which, wanted in (("forward", forward), ("forward + backward", 1.2)):
            times = float(ratio(case, which) or 0.0)
            found.append((f"{which}: PyTorch takes at least {wanted} times as long", times, times >= wanted))
    if case["processes"] == 2:
        share = case["sides"]["hpmoe"]["forward"]["communication"]
        found.append(("forward: communication takes at most 5 %", share, share <= 0.05))
    times = case["exchange_us"]["meeting"] / case["exchange_us"]["bare"]
    found.append(("64 bytes to every peer: at most 2 times the bare exchange", times, times <= 2))
    return found


HEAD = ["| processes | T | I | dtype | pass | hpmoe ms | PyTorch ms | ratio | communication of hpmoe | of PyTorch |",
        "|---|---|---|---|---|---|---|---|---|---|"]


def rows(case: Fields) -> list[str]:
    """Markdown, a row for each pass."""
    sizes, sides = case["sizes"], case["sides"]
    start = f"| {case['processes']} | {sizes['tokens']} | {sizes['intermediate']} | {case['dtype']}"
    lines = []
    for which, own in sides["hpmoe"].items():
        other = sides.get("torch", {}).get(which)
        ms, times, share = ("-", "-", "-") if other is None else (
            f"{other['ms']:.1f}", f"{ratio(case, which):.2f}x", f"{100 * other['communication']:.0f} %")
        own_share = f"{100 * own['communication']:.0f} %"
        lines.append(f"{start} | {which} | {own['ms']:.1f} | {ms} | {times} | {own_share} | {share} |")
    return lines


def closing_lines(report: Fields) -> list[str]:
    """The exchanges, and which goals are met how often."""
    done = [case for case in report["cases"] if case["status"] == 0]
    lines = [f"{case['processes']} processes, 64 bytes to every peer: {case['exchange_us']['meeting']:.2f} us, bare "
             f"{case['exchange_us']['bare']:.2f} us" for case in done[:1]]
    found: dict[str, list[tuple[float, bool]]] = {}
    for case in done:
        for what, figure, met in goals(case):
            found.setdefault(what, []).append((figure, met))
    lines += [f"goal, {what}: met in {sum(met for _, met in each)} of {len(each)}, {min(x for x, _ in each):.2f} .. "
              f"{max(x for x, _ in each):.2f}" for what, each in found.items()]
    return [*lines, *(f"status {case['status']}: {case['sizes']}, {case['dtype']}" for case in report["cases"]
                      if case["status"] != 0)]


def draw(report: Fields, out: str) -> None:
    """Bars of each case; what communication takes is light."""
    from matplotlib.figure import Figure  # late: an extra
    done = [case for case in report["cases"] if case["status"] == 0]
    figure = Figure(figsize=(10, 1.2 + 0.42 * len(done)), layout="constrained")
    panels = figure.subplots(1, 2)
    for which, axes in zip(("forward", "forward + backward"), panels, strict=True):
        _draw_pass(axes, done, which)
    panels[0].set_yticks(range(len(done)), [f"{c['dtype']}, T={c['sizes']['tokens']}, I={c['sizes']['intermediate']}"
                                            for c in done])
    panels[1].set_yticks([])
    m = report["machine"]
    figure.suptitle(f"MoE-FFN on {done[0]['processes']} processes, ms; light: communication\n{m['cpu']}, {m['cores']} cores")
    figure.savefig(out, dpi=90)


def _draw_pass(axes: Axes, done: Sequence[Fields], which: str) -> None:
    colors = {"hpmoe": ("#1b6ca8", "#7fb3d9"), "torch": ("#76808c", "#cfd6dd")}
    for i, case in enumerate(done):
        for k, (side, of_side) in enumerate(case["sides"].items()):
            ms, share, y = of_side[which]["ms"], of_side[which]["communication"], i + 0.4 * k - 0.2
            title = TITLES[side] if i == 0 else None
            axes.barh(y, ms * (1 - share), 0.38, color=colors[side][0], label=title)
            axes.barh(y, ms * share, 0.38, left=ms * (1 - share), color=colors[side][1])
            axes.text(ms, y, f" {ms:.0f}", va="center", fontsize=7)
    axes.set_title(which, fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.legend(fontsize=7)
    axes.spines[["top", "right"]].set_visible(False)
