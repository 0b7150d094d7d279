"""What each technique is worth: alone off, and alone on, over imbalances and numbers of ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.commands.progress import Progress

TECHNIQUES = {
    "puts": "one-sided puts instead of blocking collectives in the kernel",
    "tile_events": "a signal for each tile instead of for each expert of a peer",
    "ratr": "destinations from the right neighbour on instead of from rank 0",
    "queues": "list scheduling by critical path instead of tasks dealt out in turn, operator after operator",
    "all_aiv": "all vector workers instead of half",
}
IMBALANCES = (1.0, 2.0, 4.0, 7.0)
MOST_RANKS = 64


def variants() -> Iterator[tuple[str, frozenset[str]]]:
    """(name, techniques that are on): all, none, each alone off, each alone on."""
    every = frozenset(TECHNIQUES)
    yield "all on", every
    for name in TECHNIQUES:
        yield f"{name} off", every - {name}
    yield "all off", frozenset()
    for name in TECHNIQUES:
        yield f"{name} on", frozenset({name})


def span_us(layer: Layer, on: frozenset[str]) -> float:
    """Of a persistent kernel with these techniques, and its launch."""
    machine = layer.machine if "all_aiv" in on else layer.machine.replace(num_aiv=max(1, layer.machine.num_aiv // 2))
    policy = "critical_path" if "queues" in on else "round_robin"
    if "puts" not in on:
        return layer.span_us(layer.blocking(policy, machine))
    comm = {"order": "ratr" if "ratr" in on else "sequential", "signal": "tile" if "tile_events" in on else "expert"}
    return layer.span_us(layer.fused(policy, machine, **comm))


def rows(o: Any, machine: hpmoe.Machine, most_ranks: int, progress: Progress) -> list[dict[str, Any]]:
    """A row for each number of ranks, imbalance and variant; experts per rank as in the flags, whatever the ranks."""
    out = []
    ep = min(4, most_ranks)
    while ep <= most_ranks:
        sizes = {**{n: getattr(o, n) for n in ("tokens", "hidden", "intermediate", "top_k", "dtype")},
                 "experts": o.experts // o.ep * ep}
        for imbalance in (i for i in IMBALANCES if i <= min(ep, sizes["experts"] / o.top_k)):
            layer = Layer(SimpleNamespace(**sizes, ep=ep), o.direction, machine, imbalance, o.seed)
            for name, on in variants():
                progress(f"EP {ep}, imbalance {imbalance:g}, {name}")
                out.append({"ep": ep, "imbalance": imbalance, "variant": name, "on": sorted(on),
                            "makespan_ms": span_us(layer, on) / 1e3})
        ep *= 2
    return out


def text(table: list[dict[str, Any]], o: Any, machine: hpmoe.Machine) -> str:
    """A line for each variant, a column for each number of ranks and imbalance; times relative to all on, or all off."""
    cells = {(r["ep"], r["imbalance"], r["variant"]): r["makespan_ms"] for r in table}
    columns = list(dict.fromkeys((r["ep"], r["imbalance"]) for r in table))
    lines = [f"{machine.name}, {o.direction}, {o.tokens} tokens a rank, hidden {o.hidden}, intermediate {o.intermediate}, "
             f"top {o.top_k}, {o.experts // o.ep} experts a rank: simulated",
             "all on, all off: ms; off: time against all on; on: time against all off",
             f"{'':16}" + "".join(f"{f'EP{ep} x{i:g}':>10}" for ep, i in columns)]
    for name, _ in variants():
        reference = None if name in ("all on", "all off") else "all on" if name.endswith("off") else "all off"
        row = []
        for ep, i in columns:
            ms = cells[ep, i, name]
            row.append(f"{ms:10.2f}" if reference is None else f"{ms / cells[ep, i, reference] - 1:+10.1%}")
        lines.append(f"{name:16}" + "".join(row))
    return "\n".join([*lines, *(f"{name}: {what}" for name, what in TECHNIQUES.items())])


def draw(table: list[dict[str, Any]], path: Path) -> None:
    """A bar for each technique turned off alone: how much longer the layer takes."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    cells = {(r["ep"], r["imbalance"], r["variant"]): r["makespan_ms"] for r in table}
    groups = list(dict.fromkeys((r["ep"], r["imbalance"]) for r in table))
    figure, axes = plt.subplots(figsize=(max(6.0, 0.8 * len(groups)), 3.6), layout="constrained")
    width = 0.8 / len(TECHNIQUES)
    for i, name in enumerate(TECHNIQUES):
        more = [100 * (cells[(*g, f"{name} off")] / cells[(*g, "all on")] - 1) for g in groups]
        axes.bar([x + (i - len(TECHNIQUES) / 2 + 0.5) * width for x in range(len(groups))], more, width, label=name)
    axes.set_xticks(range(len(groups)), [f"EP{ep}\nx{i:g}" for ep, i in groups])
    axes.set_ylabel("time more without it, %, simulated")
    axes.axhline(0, color="black", linewidth=0.8)
    figure.legend(ncols=len(TECHNIQUES), fontsize="small", frameon=False, loc="outside upper center")
    figure.savefig(path, dpi=120)
    plt.close(figure)
