"""The flag --routing: how tokens choose experts, drawn here, of a public workload, or recorded."""

from __future__ import annotations

import numpy as np
from absl import flags

from hpmoe.commands import options
from hpmoe.commands.layer import ROUTINGS, ids_of
from hpmoe.routing.public_workloads import WORKLOADS, recorded_ids, workload_ids

KINDS = f"{', '.join(ROUTINGS)}, {min(WORKLOADS)} to {max(WORKLOADS)}, a .npy file of topk_ids"
NOTES = "\n".join(["--routing takes topk_ids [tokens, K] of a .npy file, and public workloads:",
                   *(f"  {'; '.join(f'{name}: {WORKLOADS[name]}' for name in pair)}"
                     for pair in zip(sorted(WORKLOADS)[::2], sorted(WORKLOADS)[1::2], strict=True))])


class RoutingName(flags.ArgumentParser):
    """A kind of routing, a public workload, or a file of recorded ids."""

    def parse(self, argument: str) -> str:
        words = (*ROUTINGS, *WORKLOADS)
        if argument not in words and not argument.endswith(".npy"):
            raise ValueError(f"it must be one of {', '.join(words)}, or a .npy file{options.did_you_mean(argument, words)}")
        return argument


def define_routing(values: flags.FlagValues) -> None:
    flags.DEFINE(RoutingName(), "routing", "balanced", f"{KINDS}: how tokens choose experts", flag_values=values)
    options.define_integer(values, "step", 0, "of a public workload that changes from step to step", least=0)


def routing_of(o: options.Options, sizes: options.Options, imbalance: float = 1.0) -> np.ndarray:
    """topk_ids of the ranks that hold all experts once, [ep, T, K]; an imbalance is of a balanced routing."""
    if o.routing in ROUTINGS:
        return ids_of(sizes, imbalance, o.routing, o.seed)
    shape = sizes.ep, sizes.tokens, sizes.top_k, sizes.experts
    return workload_ids(o.routing, *shape, o.seed, o.step) if o.routing in WORKLOADS else recorded_ids(o.routing, *shape)
