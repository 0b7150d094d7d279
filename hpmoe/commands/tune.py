"""hpmoe tune: the plans that hpmoe.autotune compares for a layer, with their simulated times."""

from __future__ import annotations

import dataclasses

from absl import flags

from hpmoe.commands import layer_flags, options
from hpmoe.support.progress import Progress
from hpmoe.tuning import compare_plans
from hpmoe.tuning.autotune import BUDGET
from hpmoe.tuning.plan import Setting
from hpmoe.tuning.trials import Trials

SUMMARY = "compares tiles, puts, queues and schemes of sending rows on a model of a machine, as hpmoe.autotune does"
NOTES = """\
  hpmoe tune --ep=8 --tokens=1024 --budget=16
All times are simulated; nothing is computed. The first plan is the choice of the cost model, the second one has the
policy round_robin, every other plan differs from the best so far in one setting. A setting that is given as a flag,
such as --policy=round_robin or --scheme=hierarchical, is not tuned. Ranks share nodes as the machine has them.
Times are kept in $XDG_CACHE_HOME/hpmoe, or ~/.cache/hpmoe."""
SETTINGS = {"scheme": "scheme", "policy": "policy", "signal": "signal", "order": "order", "rows": "tile_rows",
            "cols": "tile_cols", "prefetch": "prefetch", "put_cols": "put_cols", "returns": "returns"}


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "budget", BUDGET, "most plans that are simulated", least=0)
    layer_flags.define_simulated(values, direction="both")


def run(o: flags.FlagValues) -> int:
    layer_flags.check_schedule(o)
    layer_flags.check_copies(o.min_load, o.replicas)
    layer_flags.check_policy(o)
    options.check_flag(o.row_capacity == "received", "row_capacity", o.row_capacity,
                       "left out; plans can hold the rows of --routing")
    options.check_flag(o.combine_order is None, "combine_order", o.combine_order, "left out; rows go back as --order has it")
    fixed: dict[str, Setting] = {name: o[flag].value for name, flag in SETTINGS.items() if not o[flag].using_default_value}
    if "put_cols" in fixed:
        fixed["put_cols"] = layer_flags.put_cols_of(o)
    if "returns" in fixed:
        fixed["returns"] = o.returns or None
    with Progress("hpmoe tune") as progress:
        found = [_trials(o, direction, fixed, progress) for direction in (
            ("forward", "backward") if o.direction == "both" else (o.direction,))]
    return options.report(o, {"simulated": True, **options.sizes(o), "dtype": o.dtype, "machine": found[0].machine,
                              "imbalance": o.imbalance, "passes": list(map(_fields, found))}, "\n\n".join(map(str, found)))


def _trials(o: flags.FlagValues, direction: str, fixed: dict[str, Setting], progress: Progress) -> Trials:
    layer = dataclasses.replace(layer_flags.layer_of(o, direction), scheme="direct")
    return compare_plans(layer.traced(has_nodes=True), machine=layer.machine, topk_ids=layer.ids, budget=o.budget,
                               fixed=fixed, report=progress)


def _fields(found: Trials) -> dict[str, object]:
    trials = [{**dataclasses.asdict(t.plan), "simulated_ms": t.us and t.us / 1e3, "error": t.error} for t in found.trials]
    ms = [t["simulated_ms"] for t in trials]
    return {"direction": found.direction, "chosen": dataclasses.asdict(found.chosen), "reason": found.reason,
            "num_simulated": found.num_simulated, "makespan_ms": min((t for t in ms if t is not None), default=None),
            "default_ms": next(iter(ms), None), "trials": trials}
