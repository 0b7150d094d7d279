"""Finds faults of a schedule without the functions that derive tables and prune waits.

A Judge lists every routing of a small layer: on each rank tasks must run after what they need, and counters must reach their
thresholds. Counting proves the sums of signals once more, in unknowns, for layers of any size.
"""

from counting import Counting

from hpmoe.verification.order import Order


def inexact_events(flow):
    """Events whose signals do not add up to the threshold in every routing."""
    order, counting = Order(flow), Counting(flow)
    return [e for e in range(len(flow.events)) if not counting.is_exact(e, order.producers_of(e))]


def fault_of(judge, flow):
    """Returns the fault of a schedule of the judge's operations, or None."""
    harm = judge.harm(flow)
    return harm or [f"signals of event {e} do not add up" for e in inexact_events(flow)] or None
