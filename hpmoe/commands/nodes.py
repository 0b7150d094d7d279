"""Schemes of communication over numbers of nodes: how long a layer takes with each, and what crosses between nodes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from absl import flags
from mindspore import Tensor

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.commands.published_work import Sizes
from hpmoe.routing.relays import relay_ids
from hpmoe.routing.routing import rows_of_ranks
from hpmoe.routing.workload import drawn_ids
from hpmoe.runtime.planned_rows import PlannedRows, routes_of, with_planned_rows
from hpmoe.support.kept_files import Fields
from hpmoe.support.progress import Progress

SCHEMES = {
    "direct": "each of a token's experts gets its row from the token's rank",
    "rank once": "deduplicate_rows: a token goes to a rank once and comes back as one sum",
    "node once": "relay_rows: a token goes to a relay in a node once, which passes it on, and one sum comes back",
    "all-gather": "three launches: every token goes to a relay in every node, a layer inside the node, one sum comes back",
}


def rows(o: flags.FlagValues, machine: hpmoe.Machine, progress: Progress) -> list[Fields]:
    """A row for each number of nodes, doubled up to that of the flags, and scheme; experts a rank are those of the flags."""
    out: list[Fields] = []
    nodes = 1
    while nodes <= o.nodes:
        ep = nodes * machine.node_size
        sizes = Sizes(ep, o.tokens, o.hidden, o.intermediate, o.experts // o.ep * ep, o.top_k, o.dtype)
        ids = drawn_ids(ep, o.tokens, o.top_k, sizes.experts, is_zipf=o.routing == "zipf", seed=o.seed)
        for scheme in SCHEMES if nodes > 1 else ("direct", "rank once"):
            progress(f"{nodes} nodes, {scheme}")
            lines = launches(scheme, sizes, ids, machine, o.direction)
            spans = [(machine.launch_us + line.span) / 1e3 for line in lines]
            out.append({"nodes": nodes, "scheme": scheme, "ms": sum(spans), "launches_ms": spans,
                        "across_nodes_mb": sum(line.link_bytes().across_nodes for line in lines) / ep / 1e6})
        nodes *= 2
    return out


def launches(scheme: str, sizes: Sizes, ids: np.ndarray, machine: hpmoe.Machine, direction: str) -> list[hpmoe.Timeline]:
    """The kernels of one pass of a layer, one after another, simulated."""
    if scheme != "all-gather":
        return [Layer(_named(sizes), direction, machine, ids, tuned=True, dedup=scheme == "rank once",
                      relays=scheme == "node once").fused()]
    first, second = relay_ids(ids, sizes.experts // sizes.ep, machine.node_size)
    inside = dataclasses.replace(sizes, tokens=second.shape[1])
    spread = Layer(_named(inside), direction, machine, second, tuned=True)
    return [to_relays(sizes, first, machine, direction), spread.fused(), from_relays(sizes, first, machine, direction)]


def _named(sizes: Sizes) -> SimpleNamespace:
    return SimpleNamespace(**dataclasses.asdict(sizes))


def to_relays(sizes: Sizes, relays: np.ndarray, machine: hpmoe.Machine, direction: str) -> hpmoe.Timeline:
    """Tokens, their ids and weights to relays; backward, the gradients of what the layer gave for them."""
    numbers = 2 * sizes.top_k if direction == "forward" else 0
    return _exchange(_program(sizes, relays, numbers), relays, machine)


def from_relays(sizes: Sizes, relays: np.ndarray, machine: hpmoe.Machine, direction: str) -> hpmoe.Timeline:
    """What relays have summed up back to the tokens; backward, the gradients of these and of their weights."""
    numbers = sizes.top_k if direction == "backward" else 0
    return _exchange(hpmoe.vjp(_program(sizes, relays, numbers)), relays, machine)


def _program(sizes: Sizes, relays: np.ndarray, numbers: int) -> hpmoe.Program:
    """Rows to the ranks of their relays, and so many float32 numbers with each."""
    def send(x: Tensor, ids: Tensor, *more: Tensor) -> tuple[Tensor, ...]:
        return tuple(hpmoe.dispatch(values, ids, num_local_experts=1)[0] for values in (x, *more))
    shapes = [(sizes.tokens, sizes.hidden, sizes.dtype), (*relays.shape[1:], "int32"), (sizes.tokens, numbers, "float32")]
    avals = [hpmoe.Aval(tuple(shape), dtype) for *shape, dtype in shapes if 0 not in shape]
    return hpmoe.trace(send, *avals, mesh=hpmoe.Mesh(sizes.ep))


def _exchange(program: hpmoe.Program, relays: np.ndarray, machine: hpmoe.Machine) -> hpmoe.Timeline:
    received = max(rows_of_ranks(relays, program.ep_size))
    program = with_planned_rows(program, [PlannedRows(received, received)] * len(routes_of(program)))
    flow = hpmoe.tile_partition.apply_to(program, rows="auto", cols="auto", machine=machine)
    flow = hpmoe.overlap_comm.apply_to(flow, cols="auto", returns=2)
    return hpmoe.simulate(hpmoe.assign_queues.apply_to(flow, machine=machine), routing=relays)


def fastest(table: list[Fields]) -> dict[int, str]:
    """For each number of nodes, the scheme of which the machine model expects the shortest time."""
    return {nodes: min((r for r in table if r["nodes"] == nodes), key=lambda r: r["ms"])["scheme"]
            for nodes in dict.fromkeys(r["nodes"] for r in table)}


def text(table: list[Fields], o: flags.FlagValues, machine: hpmoe.Machine) -> str:
    """A line for each scheme, a column for each number of nodes; then the megabytes that cross between nodes."""
    cells: dict[tuple[int, str], Fields] = {(r["nodes"], r["scheme"]): r for r in table}
    chosen = fastest(table)
    lines = [f"{machine.name}, {o.direction}, {machine.node_size} ranks a node, {o.tokens} tokens a rank, "
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
