"""transitive_reduction: a taskflow in queues without the waits that the order of its queues implies."""

from __future__ import annotations

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.planner.planner import prune_waits, renumbered


def transitive_reduction(flow: Taskflow) -> Taskflow:
    """Returns the schedule without the waits that its order implies, and without event blocks that no task waits for."""
    needed = prune_waits(flow)
    waited_events = np.zeros(len(flow.events), bool)
    waited_events[flow.waits["event"][needed]] = True
    waited = np.zeros(len(flow.blocks), bool)
    waited[flow.events["block"][waited_events]] = True
    if waited.all():
        return flow.replace(waits=flow.waits[needed])
    kept = waited[flow.events["block"]]
    number, number_of_block = np.where(kept, np.cumsum(kept) - 1, -1), np.cumsum(waited) - 1
    events = flow.events[kept]
    events["block"] = number_of_block[events["block"]]
    blocks = tuple(flow.blocks[b].replace(first=int(number[flow.blocks[b].first])) for b in np.flatnonzero(waited))
    waits, signals = renumbered(flow.waits, number, needed), renumbered(flow.signals, number)
    return flow.replace(waits=waits, signals=signals, events=events, blocks=blocks)
