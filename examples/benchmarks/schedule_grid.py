"""schedule_grid.py: layers of many shapes and routings, drawn, each beside its bound and other schedules."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import admission
import numpy as np
import recorded
import row_capacities
import script
from absl import flags
from sampled_layers import FEW, MANY, Case, cases

import hpmoe
from hpmoe.commands import options
from hpmoe.commands.layer import Layer
from hpmoe.commands.machine import define_machine, machine_of
from hpmoe.costs.tile_choice import tiles_of
from hpmoe.kernels import simulate
from hpmoe.machines.cached_calibration import is_calibrated
from hpmoe.routing.skewed import SKEWS
from hpmoe.support.cached_files import Fields
from hpmoe.support.host import num_cores
from hpmoe.support.progress import Progress
from hpmoe.transforms.assign_queues import POLICIES

SUMMARY = "draws layers of many shapes and routings and sets each beside its bound and other schedules"
NOTES = """\
All times are simulated; each layer is printed as soon as it is done.
  python examples/benchmarks/schedule_grid.py --layers=60 --seed=7
--row_capacities compares plans with capacity for any routing, or less, with plans for the received rows.
--rules prints instead what each term of the default schedule is worth: the time without it, by class of layers.
--recorded prints instead the times of a DeepSeek-V3 layer under recorded loads, by several plans."""
CPU_RANKS = 8  # that share this CPU with --machine=cpu
BEHIND = 1.03  # of the fastest, the most that is wanted
MOST_TASKS = 10**6  # of all ranks; a larger layer is sampled again


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "layers", 60, "how many layers are drawn")
    options.define_integer(values, "seed", 0, "of the draws", least=0)
    options.define_dtype(values, "bfloat16")
    define_machine(values, "ascend_a3", "the model")
    options.define_switch(values, "prefetch", "matrix workers read weights while they wait for rows")
    options.define_switch(values, "row_capacities", "instead: plans with capacity for any routing or less")
    options.define_switch(values, "rules", "instead: what each term of the default schedule is worth")
    options.define_switch(values, "recorded", "instead: a DeepSeek-V3 layer under recorded loads")


def run(o: flags.FlagValues) -> int:
    machine = machine_of(SimpleNamespace(machine=o.machine, ep=CPU_RANKS), is_calibrated())
    with Progress("schedule_grid.py") as progress:
        mode = _recorded if o.recorded else _rules if o.rules else _row_capacities if o.row_capacities else _grid
        table, shown = mode(o, machine, progress)
    return options.report(o, {"simulated": True, "machine": machine.name, "seed": o.seed, "rows": table}, shown)


def _row_capacities(o: flags.FlagValues, machine: hpmoe.Machine, progress: Progress) -> tuple[list[Fields], str]:
    options.check_flag(not o.prefetch, "prefetch", o.prefetch, "left out with --row_capacities")
    table = row_capacities.rows(o.layers, o.seed, o.dtype, machine, progress)
    return table, row_capacities.text(table, machine, o.seed)


def _rules(o: flags.FlagValues, machine: hpmoe.Machine, progress: Progress) -> tuple[list[Fields], str]:
    options.check_flag(not o.prefetch, "prefetch", o.prefetch, "left out with --rules")
    options.check_flag(not o.row_capacities, "row_capacities", o.row_capacities, "left out with --rules")
    table = admission.rows(o.layers, o.seed, o.dtype, machine, progress)
    return table, admission.text(table, machine, o.seed)


def _recorded(o: flags.FlagValues, machine: hpmoe.Machine, progress: Progress) -> tuple[list[Fields], str]:
    options.check_flag(not (o.prefetch or o.rules or o.row_capacities), "recorded", o.recorded, "given without other modes")
    table = recorded.rows(o.dtype, machine, o.seed, progress)
    return table, recorded.text(table, machine)


def _grid(o: flags.FlagValues, machine: hpmoe.Machine, progress: Progress) -> tuple[list[Fields], str]:
    show_line = (lambda line: None) if o.json else functools.partial(print, flush=True)
    table = []
    show_line(head(o.layers, machine, o.seed))
    for row in rows(o.layers, o.seed, o.dtype, machine, progress, o.prefetch):
        show_line(line(row))
        table.append(row)
    return table, closing(table)


def others(layer: Layer) -> Iterator[tuple[str, Layer, str]]:
    """(name, layer, policy) of what else the library offers: every policy, and every tile that a chain may choose."""
    for policy in POLICIES:
        if policy != "critical_path":
            yield policy, layer, policy
    for rows, cols in tiles_of(layer.machine):
        sizes = SimpleNamespace(**{**vars(layer.o), "tile_rows": rows, "tile_cols": cols})
        yield f"{rows} x {cols}", dataclasses.replace(layer, o=sizes), "critical_path"


def rows(count: int, seed: int, dtype: str, machine: hpmoe.Machine, progress: Progress, prefetch: bool) -> Iterator[Fields]:
    """Yields one record for each sampled layer: simulated time of the default schedule, its lower bound, the fastest other
    schedule, and the plans that autotune chooses without topk_ids and with them. Schedules run in parallel, one a core."""
    with ThreadPoolExecutor(num_cores()) as threads:
        for i, (case, layer) in enumerate(itertools.islice(layers(16 * count, seed, dtype, machine, prefetch), count)):
            progress(f"{i + 1} of {count}: {case}")
            flow = layer.fused_flow()
            found = list(others(layer))
            bound, span, (chosen, chosen_us), (by_ids, by_ids_us), *times = threads.map(lambda what: what(), [
                functools.partial(layer.least_us, flow), functools.partial(layer.launch_us, flow),
                *(functools.partial(_chosen, layer, is_known) for is_known in (False, True)),
                *(functools.partial(_planned_us, other, policy) for _, other, policy in found)])
            named = {name: us for (name, *_), us in zip(found, times, strict=True) if us < math.inf}
            best = min(named, key=named.__getitem__)
            least = min(named[best], span)
            yield {"layer": str(case), "rows": case.rows, "routing": case.routing, "makespan_us": span,
                   "bound_us": bound, "makespan_over_bound": span / bound, "fastest_other": best,
                   "over_fastest_other": span / named[best], "others_us": named, "chosen": chosen,
                   "chosen_us": chosen_us, "chosen_over_fastest_other": chosen_us / least, "by_ids": by_ids,
                   "by_ids_us": by_ids_us, "by_ids_over_fastest_other": by_ids_us / least}


def layers(count: int, seed: int, dtype: str, machine: hpmoe.Machine, prefetch: bool) -> Iterator[tuple[Case, Layer]]:
    """Yields those of a number of sampled layers that have at most MOST_TASKS tasks."""
    for i, case in enumerate(cases(count, seed, dtype)):
        layer = case.layer(machine, seed + i, prefetch)
        if case.sizes.ep * layer.fused_flow("round_robin").num_tasks <= MOST_TASKS:
            yield case, layer


def _chosen(layer: Layer, is_known: bool) -> tuple[tuple[str, ...], float]:
    """Returns the provenance of the plan that autotune chooses, and its simulated microseconds."""
    flow = layer.autotuned_flow(is_known)
    return flow.provenance, layer.launch_us(flow)


def _planned_us(layer: Layer, policy: str) -> float:
    """Infinite where tiles are so small that there are more tasks than the simulator takes."""
    flow = layer.fused_flow(policy)
    return layer.launch_us(flow) if flow.ep_size * flow.num_tasks <= simulate.MOST_TASKS else math.inf


def head(count: int, machine: hpmoe.Machine, seed: int) -> str:
    return (f"{machine.name}, {count} layers drawn with seed {seed}: simulated\n"
            f"{'':62}{'ms':>8}{'over bound':>12}{'over best other':>17}{'chosen over best':>18}{'by ids':>9}")


def line(row: Fields) -> str:
    """Returns the printed line of one layer."""
    return (f"{row['layer']:62}{row['makespan_us'] / 1e3:8.2f}{row['makespan_over_bound']:12.3f}"
            f"{row['over_fastest_other']:10.3f}  {row['fastest_other']:13}{row['chosen_over_fastest_other']:10.3f}"
            f"{row['by_ids_over_fastest_other']:9.3f}")


def closing(table: list[Fields]) -> str:
    """The median and worst of each kind."""
    lines = []
    for kind in (FEW, MANY):
        for name, is_one in (("uniform", ("uniform",)), ("skewed", [s for s in SKEWS if s != "uniform"])):
            mine = [r for r in table if r["rows"] == kind and r["routing"] in is_one]
            if mine:
                over, other = (np.array([r[n] for r in mine]) for n in ("makespan_over_bound", "over_fastest_other"))
                lines.append(f"{kind}, {name}: {len(mine)} layers, over the bound median {np.median(over):.3f}, worst "
                             f"{over.max():.3f}; over the fastest other at most {other.max():.3f}")
    for name, key in (("the default", "over_fastest_other"), ("what autotune takes", "chosen_over_fastest_other"),
                      ("what it takes by the ids", "by_ids_over_fastest_other")):
        over = np.maximum(1.0, [r[key] for r in table])
        lines.append(f"{name} is behind the fastest of all by {np.median(over) - 1:.1%} in the median, by over 3 % on "
                     f"{(over > BEHIND).sum()}, at most {over.max() - 1:.1%}")
    behind = max(table, key=lambda r: r["over_fastest_other"])
    lines.append(f"the most over the fastest other: {behind['over_fastest_other']:.3f} over {behind['fastest_other']}, "
                 f"{' '.join(behind['layer'].split())}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
