"""What relays sum is planned for later than a plan knows: rows come back from other ranks after their own puts are done."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.scheduling.rules import rule

LATE = 2  # parts of columns, until what other ranks put is likely to have come


@rule("late_sums", otherwise=lambda flow: flow)
def late_sums(flow: tf.Taskflow) -> tf.Taskflow:
    """Has relays sum a part of columns as if they waited for LATE parts that come back after it, too.

    What other ranks put is later than a plan knows. A worker that waits for it has its own puts behind it, for which others
    wait in turn, so that the hop across nodes would follow on the one inside, part by part.
    """
    waits, events = flow.deps.waits, flow.deps.events
    blocks = [b for b in flow.deps.blocks if b.columns and b.size and events["extent"][b.first] == tf.RELAYED]
    later = np.arange(len(events))
    for name in dict.fromkeys(b.name for b in blocks):
        parts = [b.first for b in blocks if b.name == name]
        later[parts] = parts[LATE:] + parts[-1:] * min(LATE, len(parts))
    more = waits[later[waits["event"]] != waits["event"]]
    if not len(more):
        return flow
    more["event"] = later[more["event"]]
    waits = np.concatenate([waits, more])
    return flow.replace(deps=flow.deps.replace(waits=waits[np.argsort(tf.row_keys(waits), kind="stable")]))
