"""ablation.py: the worth of each technique, switched off or on by itself, over imbalances and numbers of ranks."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import nodes
import numpy as np
import script
from absl import flags
from orders import by_destination, interleaved

import hpmoe
from hpmoe.commands import options
from hpmoe.commands.layer import Layer, ids_of
from hpmoe.commands.layer_flags import check_draws
from hpmoe.commands.machine import define_machine, machine_of
from hpmoe.ir.limits import MOST_RANKS
from hpmoe.machines.cached_calibration import is_calibrated
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress
from hpmoe.transforms.assign_queues import POLICIES

SUMMARY = "simulates the worth of each technique of the schedule, switched off or on by itself"
NOTES = """\
All times are simulated, of the queues that would be launched.
  python examples/benchmarks/ablation.py --most_ranks=64 --out=ablation.png
--nodes=8 prints instead how long a layer takes with each scheme of sending rows, on 1, 2, 4 and 8 nodes."""
TECHNIQUES = {
    "puts": "one-sided puts instead of blocking collectives in the kernel",
    "tile_events": "a signal for each tile instead of for each expert of a peer",
    "spread": "puts slot after slot, each to all destinations, instead of destination after destination",
    "ratr": "destinations from the right neighbour on instead of from rank 0",
    "queues": "list scheduling by critical path instead of tasks dealt out in turn, operator after operator",
    "interleave": "backward: an expert's weight gradients behind the matmuls that read the same rows",
    "all_aiv": "all vector workers instead of half",
}
NEEDS_PUTS = ("tile_events", "spread", "ratr")
DEDUP = "a token to a rank once, whatever number of its experts are there; no part of all on, but added to it"
IMBALANCES = (1.0, 2.0, 4.0, 7.0)


def define(values: flags.FlagValues) -> None:
    options.define_sizes(values, ep=8, tokens=4096, hidden=7168, intermediate=2048, experts=64, top_k=8)
    options.define_dtype(values, "bfloat16")
    options.define_choice(values, "direction", "forward", "which pass", ("forward", "backward"))
    define_machine(values, "ascend_a3", "the model")
    options.define_integer(values, "seed", 0, "of a routing that is drawn", least=0)
    options.define_integer(values, "most_ranks", 64, "ranks up to which techniques are compared")
    options.define_integer(values, "nodes", None, "compare schemes of sending rows on 1, 2, 4 .. nodes, up to this number")
    options.define_choice(values, "routing", "uniform", "with --nodes, how experts are drawn", ("uniform", "zipf"))
    script.define_picture(values)


def run(o: flags.FlagValues) -> int:
    options.check_flag(o.nodes is not None or not o["routing"].present, "routing", o.routing, "given with --nodes")
    options.check_sizes(o)
    options.check_picture(o.out)
    with Progress("ablation.py") as progress:
        result, shown = (_nodes if o.nodes else _techniques)(o, progress)
    return options.report(o, {"simulated": True, **result}, shown)


def _nodes(o: flags.FlagValues, progress: Progress) -> tuple[Fields, str]:
    machine = machine_of(o, is_calibrated())
    size = machine.link.node_size
    most = MOST_RANKS // size
    options.check_flag(o.nodes <= most, "nodes", o.nodes, f"at most {most}, of {size} ranks on {machine.name}")
    check_draws(o, o.nodes * size)
    table = nodes.rows(o, machine, progress)
    if o.out:
        nodes.draw(table, Path(o.out), f"{machine.name}, {o.direction}")
    result = {"machine": machine.name, "direction": o.direction, "rows": table, "fastest": nodes.fastest(table)}
    return result, nodes.text(table, o, machine)


def _techniques(o: flags.FlagValues, progress: Progress) -> tuple[Fields, str]:
    machine = machine_of(o, is_calibrated())
    table = rows(o, machine, o.most_ranks, progress)
    if o.out:
        draw(table, Path(o.out), o.direction)
    return {"machine": machine.name, "direction": o.direction, "rows": table}, text(table, o, machine)


def variants(direction: str) -> Iterator[tuple[str, frozenset[str], str | None]]:
    """(name, techniques that are on, the variant it is compared with): all, none, each alone off, each alone on.

    What is no part of the default chain is added to all instead.
    """
    every = frozenset(TECHNIQUES) - ({"interleave"} if direction == "forward" else set())
    yield "all on", every, None
    for name in (n for n in TECHNIQUES if n in every):
        yield f"{name} off", every - {name}, "all on"
    yield "dedup added", every | {"dedup"}, "all on"
    yield "all off", frozenset(), None
    for name in (n for n in TECHNIQUES if n in every):
        on = {name, "puts"} if name in NEEDS_PUTS else {name}
        yield f"{name} on", frozenset(on), "puts on" if name in NEEDS_PUTS else "all off"
    yield "dedup on", frozenset({"dedup"}), "all off"


def span_us(layer: Layer, on: frozenset[str]) -> float:
    """Returns microseconds of a persistent kernel with these techniques, including its launch."""
    machine = layer.machine if "all_aiv" in on else layer.machine.replace(num_aiv=max(1, layer.machine.num_aiv // 2))
    policy = POLICIES["critical_path" if "queues" in on else "round_robin"]
    if "interleave" in on:
        policy = interleaved(policy)
    if "puts" not in on:
        flow = hpmoe.assign_queues.apply_to(layer.tiles, machine=machine, policy=policy)  # with collectives
        return layer.span_us(hpmoe.simulate(flow, machine, routing=layer.ids))
    comm = {"order": "ratr" if "ratr" in on else "sequential", "signal": "tile" if "tile_events" in on else "expert"}
    return layer.span_us(layer.fused(policy if "spread" in on else by_destination(policy), machine, **comm))


def cases(o: flags.FlagValues, most_ranks: int) -> list[tuple[SimpleNamespace, float]]:
    """(sizes, imbalance) of each column: 4, 16, 64 ranks, with as many experts each as in the flags."""
    out, ep = [], min(4, most_ranks)
    while ep <= most_ranks:
        sizes = SimpleNamespace(**{n: getattr(o, n) for n in ("tokens", "hidden", "intermediate", "top_k", "dtype")},
                                experts=o.experts // o.ep * ep, ep=ep)
        out += [(sizes, i) for i in IMBALANCES if i <= min(ep, sizes.experts / o.top_k)]
        ep *= 4
    return out


def rows(o: flags.FlagValues, machine: hpmoe.Machine, most_ranks: int, progress: Progress) -> list[Fields]:
    """A row for each number of ranks, imbalance and variant."""
    out, columns, mine = [], cases(o, most_ranks), list(variants(o.direction))
    for sizes, imbalance in columns:
        ids = ids_of(sizes, imbalance, seed=o.seed)
        plain, once = (Layer(sizes, o.direction, machine, ids, scheme=scheme) for scheme in ("direct", "deduplicated"))
        sent = distinct_ranks(ids, sizes.experts // sizes.ep)
        for name, on, _ in mine:
            progress(f"{len(out) + 1} of {len(columns) * len(mine)}: EP {sizes.ep}, imbalance {imbalance:g}, {name}")
            out.append({"ep": sizes.ep, "imbalance": imbalance, "variant": name, "on": sorted(on),
                        "makespan_ms": span_us(once if "dedup" in on else plain, on) / 1e3, "rows_with_dedup": sent})
    return out


def distinct_ranks(ids: np.ndarray, num_local_experts: int) -> float:
    """Distinct ranks that a token goes to, as a share of its experts."""
    ranks = np.sort(ids // num_local_experts, axis=-1)
    return float((1 + (np.diff(ranks, axis=-1) > 0).sum(axis=-1)).mean() / ids.shape[-1])


def text(table: list[Fields], o: flags.FlagValues, machine: hpmoe.Machine) -> str:
    """A line for each variant, a column for each number of ranks and imbalance."""
    cells = {(r["ep"], r["imbalance"], r["variant"]): r for r in table}
    columns = list(dict.fromkeys((r["ep"], r["imbalance"]) for r in table))
    lines = [f"{machine.name}, {o.direction}, {o.tokens} tokens a rank, hidden {o.hidden}, intermediate {o.intermediate}, "
             f"top {o.top_k}, {o.experts // o.ep} experts a rank: simulated",
             "all on, all off: ms; off, added: time against all on; on: against all off, what needs puts against puts alone",
             f"{'':16}" + "".join(f"{f'EP{ep} x{i:g}':>10}" for ep, i in columns)]
    for name, _, reference in variants(o.direction):
        ms = [cells[(*c, name)]["makespan_ms"] for c in columns]
        base = [cells[(*c, reference)]["makespan_ms"] for c in columns] if reference else None
        shown = [f"{m / b - 1:+10.1%}" for m, b in zip(ms, base, strict=True)] if base else [f"{m:10.2f}" for m in ms]
        lines.append(f"{name:16}" + "".join(shown))
    sent = (f"{cells[(*c, 'all on')]['rows_with_dedup']:10.0%}" for c in columns)
    lines.append(f"{'rows with dedup':16}" + "".join(sent))
    return "\n".join([*lines, *(f"{name}: {what}" for name, what in {**TECHNIQUES, "dedup": DEDUP}.items())])


def draw(table: list[Fields], path: Path, direction: str) -> None:
    """Two maps of techniques and columns: how much longer the layer takes without one, and how much less with it."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    cells = {(r["ep"], r["imbalance"], r["variant"]): r["makespan_ms"] for r in table}
    columns = list(dict.fromkeys((r["ep"], r["imbalance"]) for r in table))
    figure, axes = plt.subplots(2, 1, figsize=(max(6.0, 3 + 0.55 * len(columns)), 5.6), layout="constrained", sharex=True)
    titles = {"off": "alone off (or added), against all on", "on": "alone on, against all off (or puts alone)"}
    for ax, (kind, title) in zip(axes, titles.items(), strict=True):
        mine = [(n, r) for n, _, r in variants(direction) if r and n.endswith(" on") == (kind == "on")]
        change = np.array([[100 * (cells[(*c, n)] / cells[(*c, r)] - 1) for c in columns] for n, r in mine])
        ax.imshow(change, cmap="RdBu_r", vmin=-40, vmax=40, aspect="auto")
        for (y, x), value in np.ndenumerate(change):
            ax.text(x, y, f"{value:+.0f}" if abs(value) >= 0.5 else "0", ha="center", va="center", fontsize=7,
                    color="white" if abs(value) > 28 else "black")
        ax.set_yticks(range(len(mine)), [n.removesuffix(f" {kind}") for n, _ in mine])
        ax.set_title(f"time, % more or less: {title}", fontsize=9)
    axes[1].set_xticks(range(len(columns)), [f"EP{ep}\nx{i:g}" for ep, i in columns], fontsize=8)
    figure.suptitle(f"ablation, {direction}, simulated", fontsize=10)
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
