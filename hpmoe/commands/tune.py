"""hpmoe tune: the tiles, orders, signals, queues and scheme of sending rows that a model of a machine finds fastest."""

from __future__ import annotations

import dataclasses
import json

from absl import flags

import hpmoe
from hpmoe.commands import layer_flags, options
from hpmoe.commands.program import avals
from hpmoe.support.known import known
from hpmoe.transforms.send_rows import SCHEMES

SUMMARY = "searches the fastest tiles, orders, signals, queues and scheme of sending rows on a model of a machine"
NOTES = """\
  hpmoe tune --ep=8 --tokens=1024 --budget=30
Every time is simulated; nothing is computed. The first trial is the default, the second one takes the sizes
with the least expected time, the next ones what hpmoe.choose_schedule takes of each pass, every other one changes one
setting of the best so far. A setting that is given as a flag, such as --policy=round_robin or --scheme=node, is kept.
Ranks of more than one node of the machine may relay rows; schemes are those of hpmoe.send_rows. What was found is
kept for the same layer, routing and machine in $XDG_CACHE_HOME/hpmoe, or ~/.cache/hpmoe, and taken from there unless
--fresh is given."""
SETTINGS = {"scheme": "scheme", "policy": "policy", "signal": "signal", "order": "order", "rows": "tile_rows",
            "cols": "tile_cols", "prefetch": "prefetch"}


def define(values: flags.FlagValues) -> None:
    options.define_choice(values, "scheme", None, "how rows are sent; --dedup is --scheme=rank", tuple(SCHEMES))
    options.define_number(values, "budget", 30.0, "seconds after which no other trial begins")
    options.define_integer(values, "max_trials", None, "most trials; as many as the budget allows where not given")
    options.define_switch(values, "fresh", "search anew, also where a result is kept")
    layer_flags.define_simulated(values, direction="both")


def _mesh(ep: int, machine: hpmoe.Machine) -> hpmoe.Mesh:
    """Ranks in the nodes of a machine, where these are all full."""
    return hpmoe.Mesh(ep, node_size=machine.link.node_size if ep % machine.link.node_size == 0 else None)


def run(o: flags.FlagValues) -> int:
    layer_flags.check_schedule(o)
    layer_flags.check_copies(o.min_load, o.replicas)
    layer_flags.check_policy(o)
    options.check_flag(o.room == "received", "room", o.room, "left out; plans have room for the rows of --routing")
    options.check_flag(o.combine_order is None, "combine_order", o.combine_order, "left out; rows go back as --order has it")
    options.check_flag(not o.dedup or o.scheme in (None, "rank"), "scheme", o.scheme, "rank, or left out, with --dedup")
    options.check_flag(o.budget >= 0, "budget", f"{o.budget:g}", "seconds, not below 0")
    layer = layer_flags.layer_of(o)
    f = layer.with_quantised_rows(layer.with_copies(hpmoe.moe_ffn))
    space = {name: [o[flag].value] for name, flag in SETTINGS.items() if not o[flag].using_default_value}
    if not o["dedup"].using_default_value:
        space.setdefault("scheme", [layer_flags.scheme_of(o)])
    tuned = hpmoe.tune(f, *avals(o), machine=layer.machine, mesh=_mesh(o.ep, layer.machine), direction=o.direction,
                       routing=layer.ids, space=space, budget_s=o.budget, max_trials=o.max_trials, verbose=True,
                       cache=not o.fresh)
    if o.json:
        trials = [{**dict(t.settings), "simulated_ms": t.us and t.us / 1e3, "error": t.error} for t in tuned.trials]
        print(json.dumps({"simulated": True, **options.sizes(o), "dtype": o.dtype, "machine": layer.machine.name,
                          "direction": o.direction, "imbalance": o.imbalance, "trials": trials, "chosen": tuned.settings,
                          "makespan_ms": known(tuned.best.us) / 1e3, "default_ms": known(tuned.trials[0].us) / 1e3,
                          "reason": tuned.reason, "cached": tuned.is_cached,
                          "choose_schedule": {launch: dataclasses.asdict(s) for launch, s in tuned.taken.items()}}))
    else:
        print(tuned)
    return 0
