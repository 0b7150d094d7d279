"""schedule_grid.py --rules: the worth of each term of the default schedule, in the mean of each class of layers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
from sampled_layers import Case, cases

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.machines.perturbed import drawn
from hpmoe.scheduling.terms import TERMS, without
from hpmoe.support.cached_files import Fields
from hpmoe.support.host import num_cores
from hpmoe.support.progress import Progress

MOST_TASKS = 5 * 10**5  # of all ranks; a larger layer is sampled again
MACHINES = 4  # the machine itself, and some with other constants within their bands
OTHERS = "over nodes", "once to a rank", "relays", "any routing", "replicas", "wide experts"
POLICIES = "round_robin", "expert_barrier"
BEHIND = 1.03, 1.1  # of the faster of POLICIES


def rows(count: int, seed: int, dtype: str, machine: hpmoe.Machine, progress: Progress) -> list[Fields]:
    """Returns the time of each layer, and the times without each term and by other policies divided by it."""
    out = []
    with ThreadPoolExecutor(num_cores()) as threads:
        for i, (kind, layer) in enumerate(layers(count, seed, dtype, machine)):
            progress(f"layer {i + 1} of {count}: {kind}")
            flow = layer.fused_flow()
            left_out = {"default": (), **{term: (term,) for term in TERMS}, "none": tuple(TERMS)}
            span, *times = threads.map(lambda plan, of=layer: us_of(of, *plan), [
                *(("critical_path", terms) for terms in left_out.values()), *((policy, ()) for policy in POLICIES)])
            over = dict(zip([*list(left_out)[1:], *POLICIES], (us / span for us in times), strict=True))
            out.append({"kind": kind, "layer": str(layer.o), "direction": layer.direction, "makespan_us": span,
                        "makespan_over_bound": span / layer.least_us(flow), "over": over})
    return out


def layers(count: int, seed: int, dtype: str, machine: hpmoe.Machine) -> Iterator[tuple[str, Layer]]:
    """Yields sampled layers: 16 that are sent directly inside a node, 16 of other classes, and so on."""
    machines, found = [machine, *drawn(machine, MACHINES - 1, seed)], 0
    for i, case in enumerate(cases(16 * count, seed, dtype)):
        layer = case.layer(machines[i // 32 % MACHINES], seed + found)
        skew = "uniform" if case.routing == "uniform" else "skewed"
        kind = f"{case.rows}, {skew}, {case.direction}"
        if i // 16 % 2:
            kind = OTHERS[(i + i // 32) % len(OTHERS)]
            layer = _other(kind, case, layer, node_size=(4, 8)[i // 32 % 2])
        if layer.o.ep * layer.fused_flow("round_robin").num_tasks > MOST_TASKS:
            continue
        yield kind, layer
        found += 1
        if found == count:
            return


def _other(kind: str, case: Case, layer: Layer, node_size: int) -> Layer:
    """Returns the layer changed into another class."""
    nodes = layer.machine.replace({"link.node_size": node_size})
    changes = {"over nodes": {"machine": nodes}, "once to a rank": {"scheme": "deduplicated"},
               "relays": {"machine": nodes,
                          "scheme": "hierarchical"}, "any routing": {"row_capacity": "all"}, "replicas": {"replicas": 1},
               "wide experts": {"o": SimpleNamespace(**{**vars(case.sizes), "hidden": 4096, "intermediate": 14336})}}
    return dataclasses.replace(layer, **changes[kind])


def us_of(layer: Layer, policy: str, terms: tuple[str, ...]) -> float:
    """Returns microseconds by a policy without some terms, with the launch."""
    with without(*terms):
        flow = layer.fused_flow(policy)
    return layer.launch_us(flow)


def text(table: list[Fields], machine: hpmoe.Machine, seed: int) -> str:
    """Formats geometric means: a line for each class, a column for each term and policy."""
    kinds = sorted({r["kind"] for r in table})
    names = [*TERMS, "none", *POLICIES]
    lines = [f"{machine.name} and machines with constants within their bands, seed {seed}: time without a term, or by "
             "another policy, over that of the default, geometric mean; bound: median of default over bound; simulated",
             f"{'':26}{'layers':>7}{'bound':>7}" + "".join(f"{name:>{len(name) + 2}}" for name in names)]
    for kind in kinds:
        mine = [r for r in table if r["kind"] == kind]
        over = [_mean([r["over"][name] for r in mine]) for name in names]
        bound = np.median([r["makespan_over_bound"] for r in mine])
        lines.append(f"{kind:26}{len(mine):7}{bound:7.3f}"
                     + "".join(f"{x:{len(name) + 2}.3f}" for name, x in zip(names, over, strict=True)))
    behind = [1 / min(r["over"][policy] for policy in POLICIES) for r in table]
    few, far = (sum(x > limit for x in behind) for limit in BEHIND)
    lines.append(f"the default is over 3 % slower than the faster of {' and '.join(POLICIES)} on {few} of {len(table)} "
                 f"layers, over 10 % on {far}, at most {max(behind) - 1:.1%}")
    return "\n".join([*lines, *(f"{name}: {what}" for name, what in TERMS.items())])


def _mean(values: list[float]) -> float:
    return math.exp(float(np.log(values).mean()))
