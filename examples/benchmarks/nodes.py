"""ablation.py --nodes: how long a layer takes with each scheme of sending rows, and what crosses between nodes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from absl import flags

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.workload import sampled_ids
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

SCHEMES = {
    "direct": "each of a token's experts gets its row from the token's rank",
    "deduplicated": "a token goes to a rank once and comes back as one sum",
    "hierarchical": "a token goes to a relay in a node once, which passes it on, and one sum comes back",
    "hierarchical+deduplicated": "both: the relay passes it on to a rank once",
}


def rows(o: flags.FlagValues, machine: hpmoe.Machine, progress: Progress) -> list[Fields]:
    """A row for each number of nodes, doubled up to that of the flags, and scheme; experts a rank are those of the flags."""
    out: list[Fields] = []
    nodes = 1
    while nodes <= o.nodes:
        ep = nodes * machine.link.node_size
        sizes = SimpleNamespace(ep=ep, tokens=o.tokens, hidden=o.hidden, intermediate=o.intermediate,
                                experts=o.experts // o.ep * ep, top_k=o.top_k, dtype=o.dtype)
        ids = sampled_ids(ep, o.tokens, o.top_k, sizes.experts, is_zipf=o.routing == "zipf", seed=o.seed)
        for scheme in SCHEMES if nodes > 1 else ("direct", "deduplicated"):
            progress(f"{nodes} nodes, {scheme}")
            line = Layer(sizes, o.direction, machine, ids, tuned=True, scheme=scheme).fused()
            out.append({"nodes": nodes, "scheme": scheme, "ms": (machine.host.launch_us + line.span) / 1e3,
                        "across_nodes_mb": line.link_bytes().across_nodes / ep / 1e6})
        nodes *= 2
    return out


def fastest(table: list[Fields]) -> dict[int, str]:
    """For each number of nodes, the scheme of which the machine model expects the shortest time."""
    return {nodes: min((r for r in table if r["nodes"] == nodes), key=lambda r: r["ms"])["scheme"]
            for nodes in dict.fromkeys(r["nodes"] for r in table)}


def text(table: list[Fields], o: flags.FlagValues, machine: hpmoe.Machine) -> str:
    """A line for each scheme, a column for each number of nodes; then the megabytes that cross between nodes."""
    cells: dict[tuple[int, str], Fields] = {(r["nodes"], r["scheme"]): r for r in table}
    chosen = fastest(table)
    lines = [f"{machine.name}, {o.direction}, {machine.link.node_size} ranks a node, {o.tokens} tokens a rank, "
             f"hidden {o.hidden}, intermediate {o.intermediate}, top {o.top_k}, {o.experts // o.ep} experts a rank, "
             f"{'zipf' if o.routing == 'zipf' else 'uniform'} routing: simulated",
             "ms, and how many times as fast as direct", f"{'nodes':14}" + "".join(f"{n:>16}" for n in chosen)]
    for scheme in SCHEMES:
        found = [(cells[(n, "direct")]["ms"], cells.get((n, scheme))) for n in chosen]
        lines.append(f"{scheme:14}" + "".join(
            f"{cell['ms']:9.2f} {direct / cell['ms']:5.2f}x" if cell else f"{'-':>16}" for direct, cell in found))
    lines += [f"{'fastest':14}" + "".join(f"{scheme:>16}" for scheme in chosen.values()),
              "MB that a rank sends between nodes"]
    for scheme in SCHEMES:
        lines.append(f"{scheme:14}" + "".join(
            f"{cells[(n, scheme)]['across_nodes_mb']:16.1f}" if (n, scheme) in cells else f"{'-':>16}" for n in chosen))
    return "\n".join([*lines, *(f"{name}: {what}" for name, what in SCHEMES.items())])


def draw(table: list[Fields], path: Path, title: str) -> None:
    """Milliseconds over nodes, a line for each scheme."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    figure, ax = plt.subplots(figsize=(6.0, 3.6), layout="constrained")
    for scheme in SCHEMES:
        mine = [r for r in table if r["scheme"] == scheme]
        ax.plot([r["nodes"] for r in mine], [r["ms"] for r in mine], marker="o", label=scheme)
    ticks = sorted({r["nodes"] for r in table})
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, list(map(str, ticks)))
    ax.set(xlabel="nodes", ylabel="ms of a layer, simulated", title=title, ylim=(0, None))
    ax.legend(fontsize=8)
    figure.savefig(path, dpi=90)
    plt.close(figure)
