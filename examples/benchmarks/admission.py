"""schedule_grid.py --rules: the worth of each term of the default schedule, in the mean of each class of layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
from sampled_layers import Case, cases

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.costs.start import start_us
from hpmoe.machines.perturbed import drawn
from hpmoe.scheduling.terms import TERMS, without
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

MOST_TASKS = 10**6  # of all ranks; a layer of more is left out
MACHINES = 4  # the machine itself, and some with other constants within their bands
OTHERS = "over nodes", "once to a rank", "relays", "any routing", "replicas", "wide experts"
POLICIES = "round_robin", "expert_barrier"


def rows(count: int, seed: int, dtype: str, machine: hpmoe.Machine, progress: Progress) -> list[Fields]:
    """Returns the time of each layer, and the times without each term and by other policies divided by it."""
    out = []
    for i, (kind, layer) in enumerate(layers(count, seed, dtype, machine)):
        progress(f"layer {i + 1}: {kind}")
        flow = layer.fused_flow()
        if flow.ep_size * flow.num_tasks > MOST_TASKS:
            continue
        span, over = _us(layer, flow), {}
        for term in TERMS:
            with without(term):
                over[term] = _us(layer, layer.fused_flow()) / span
        with without(*TERMS):
            over["no term"] = _us(layer, layer.fused_flow()) / span
        over |= {policy: _us(layer, layer.fused_flow(policy)) / span for policy in POLICIES}
        out.append({"kind": kind, "layer": str(layer.o), "direction": layer.direction, "makespan_us": span,
                    "makespan_over_bound": span / layer.least_us(flow), "over": over})
    return out


def layers(count: int, seed: int, dtype: str, machine: hpmoe.Machine) -> Iterator[tuple[str, Layer]]:
    """Sampled layers sent directly inside a node, each followed by one of another class."""
    machines = [machine, *drawn(machine, MACHINES - 1, seed)]
    for i, case in enumerate(cases(count, seed, dtype)):
        layer = case.layer(machines[i // 16 % MACHINES], seed + i)
        skew = "uniform" if case.routing == "uniform" else "skewed"
        yield f"{case.rows}, {skew}, {case.direction}", layer
        kind = OTHERS[(i + i // 16) % len(OTHERS)]
        yield kind, _other(kind, case, layer, node_size=(4, 8)[i // 32 % 2])


def _other(kind: str, case: Case, layer: Layer, node_size: int) -> Layer:
    """Returns the layer changed into another class."""
    nodes = layer.machine.replace({"link.node_size": node_size})
    changes = {"over nodes": {"machine": nodes}, "once to a rank": {"scheme": "deduplicated"},
               "relays": {"machine": nodes,
                          "scheme": "hierarchical"}, "any routing": {"row_capacity": "all"}, "replicas": {"replicas": 1},
               "wide experts": {"o": SimpleNamespace(**{**vars(case.sizes), "hidden": 4096, "intermediate": 14336})}}
    return dataclasses.replace(layer, **changes[kind])


def _us(layer: Layer, flow: hpmoe.rewriting.Taskflow) -> float:
    return start_us(flow, layer.machine) + layer.outline(flow).span


def text(table: list[Fields], machine: hpmoe.Machine, seed: int) -> str:
    """Formats geometric means: a line for each class, a column for each term and policy."""
    kinds = sorted({r["kind"] for r in table})
    names = [*TERMS, "no term", *POLICIES]
    lines = [f"{machine.name} and machines with constants within their bands, seed {seed}: time without a term, or by "
             "another policy, over that of the default, geometric mean; simulated",
             f"{'':28}{'layers':>7}{'over bound':>11}" + "".join(f"{name:>16}" for name in names)]
    for kind in kinds:
        mine = [r for r in table if r["kind"] == kind]
        over = [_mean([r["over"][name] for r in mine]) for name in names]
        bound = np.median([r["makespan_over_bound"] for r in mine])
        lines.append(f"{kind:28}{len(mine):7}{bound:11.3f}" + "".join(f"{x:16.3f}" for x in over))
    behind = [1 / r["over"]["round_robin"] for r in table]
    lines.append(f"the default is over 3 % slower than round_robin on {sum(x > 1.03 for x in behind)} of {len(table)} "
                 f"layers, over 10 % on {sum(x > 1.1 for x in behind)}, at most {max(behind) - 1:.1%}")
    return "\n".join([*lines, *(f"{name}: {what}" for name, what in TERMS.items())])


def _mean(values: list[float]) -> float:
    return math.exp(float(np.log(values).mean()))
