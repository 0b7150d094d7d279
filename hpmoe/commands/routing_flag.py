"""The flag --routing: how tokens choose experts, drawn here, of a public workload, or recorded."""

from __future__ import annotations

import numpy as np
from absl import flags

from hpmoe.commands import options
from hpmoe.commands.layer import ROUTINGS, ids_of
from hpmoe.routing.public_workloads import WORKLOADS, workload_ids
from hpmoe.routing.recorded_loads import ids_of_file

KINDS = f"{', '.join(ROUTINGS)}, {min(WORKLOADS)} to {max(WORKLOADS)}, a .npy or .json file of topk_ids or loads"
NOTES = "\n".join(["--routing takes ids [tokens, K], [tokens, layers, K] or loads [E], [layers, E] (.npy, or .json with "
                   "logical_count); or:",
                   *(f"  {'; '.join(f'{name}: {WORKLOADS[name]}' for name in pair)}"
                     for pair in zip(sorted(WORKLOADS)[::2], sorted(WORKLOADS)[1::2], strict=True))])


class RoutingName(flags.ArgumentParser):
    """Parser of a flag that names a routing: a name of ROUTINGS or WORKLOADS, or the path of a .npy or .json file of ids."""

    def parse(self, argument: str) -> str:
        words = (*ROUTINGS, *WORKLOADS)
        if argument not in words and not argument.endswith((".npy", ".json")):
            near = options.did_you_mean(argument, words)
            raise ValueError(f"it must be one of {', '.join(words)}, or a .npy or .json file{near}")
        return argument


def define_routing(values: flags.FlagValues) -> None:
    flags.DEFINE(RoutingName(), "routing", "balanced", f"{KINDS}: how tokens choose experts", flag_values=values)
    options.define_integer(values, "step", 0, "training step of a workload or of recorded loads", least=0)
    options.define_integer(values, "layer", None, "layer of a file with several layers", least=0)


def routing_of(o: options.Options, sizes: options.Options, imbalance: float = 1.0) -> np.ndarray:
    """Returns topk_ids of the ranks that hold all experts once, [ep, T, K]; an imbalance is of a balanced routing."""
    if o.routing in ROUTINGS:
        return ids_of(sizes, imbalance, o.routing, o.seed)
    shape = sizes.ep, sizes.tokens, sizes.top_k, sizes.experts
    if o.routing in WORKLOADS:
        return workload_ids(o.routing, *shape, o.seed, o.step)
    return ids_of_file(o.routing, *shape, seed=o.seed, layer=o.layer, step=o.step)
