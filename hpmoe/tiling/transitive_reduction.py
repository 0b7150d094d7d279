"""transitive_reduction: a taskflow in queues without the waits that the order of its queues implies."""

from __future__ import annotations

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.planner.planner import prune_waits, renumbered


def transitive_reduction(flow: Taskflow) -> Taskflow:
    """Returns the schedule without the waits that its order implies, and without event blocks that no task waits for."""
    deps, needed = flow.deps, prune_waits(flow)
    waited_events = np.zeros(len(deps.events), bool)
    waited_events[deps.waits["event"][needed]] = True
    waited = np.zeros(len(deps.blocks), bool)
    waited[deps.events["block"][waited_events]] = True
    if waited.all():
        return flow.replace(deps=deps.replace(waits=deps.waits[needed]))
    kept = waited[deps.events["block"]]
    number, number_of_block = np.where(kept, np.cumsum(kept) - 1, -1), np.cumsum(waited) - 1
    events = deps.events[kept]
    events["block"] = number_of_block[events["block"]]
    blocks = tuple(deps.blocks[b].replace(first=int(number[deps.blocks[b].first])) for b in np.flatnonzero(waited))
    waits, signals = renumbered(deps.waits, number, needed), renumbered(deps.signals, number)
    return flow.replace(deps=deps.replace(waits=waits, signals=signals, events=events, blocks=blocks))
