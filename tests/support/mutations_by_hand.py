"""Mutations of a taskflow that each break one rule of a schedule, and taskflows whose parts do not fit together."""

import dataclasses

import numpy as np
from helpers import SMALL_NPU, Layer, lowered, stages
from mutation import changed, with_queue

import hpmoe
from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout

LAYER = Layer(ep=2, T=4, E=4, K=2)


def queued(direction="forward", machine=SMALL_NPU, **options):
    return lowered(stages(machine=machine, **options)["queues"](hpmoe.moe_ffn), LAYER.arguments(), LAYER.ep, direction)


def first_signal(flow, remote):
    return int(np.flatnonzero((flow.signals["remote"] == remote) & np.isin(flow.signals["event"], flow.waits["event"]))[0])


def drop_wait(flow):
    return flow.replace(waits=flow.waits[1:])


def signal_of_rows(flow):
    """The first signal to another rank about rows that it gets in LAYER."""
    layout = Layout(flow, [list(LAYER.arguments()[1])] * len(flow.routes), None)
    for i, signal in enumerate(flow.signals):
        task = flow.tasks[signal["task"]]
        op = flow.ops[task["op"]]
        code, peers = op.opcode, [layout.peer(r, task["peer"], op.way) for r in range(LAYER.ep)]
        if signal["remote"] == tf.PEER and peers[0] != 0 and (code == "NOTIFY" or code == "PUT" and any(
                len(layout.put_rows(r, flow.ops[task["op"]], p, task["row"])) for r, p in enumerate(peers))):
            return i
    raise AssertionError("no rank sends another one rows")


def drop_signal(flow):
    return flow.replace(signals=np.delete(flow.signals, signal_of_rows(flow)))


def double_signal(flow):
    return flow.replace(signals=np.concatenate([flow.signals, flow.signals[:1]]))


def raise_threshold(flow):
    return flow.replace(events=changed(flow.events, 0, mult=flow.events["mult"][0] + 1))


def lower_threshold(flow):
    return flow.replace(events=changed(flow.events, 0, mult=flow.events["mult"][0] - 1))


def other_extent(flow):
    return flow.replace(events=changed(flow.events, 0, extent=tf.RECEIVED))


def other_unit(flow):
    return flow.replace(events=changed(flow.events, 0, index=flow.events["index"][0] + 1))


def put_signals_itself(flow):
    return flow.replace(signals=changed(flow.signals, signal_of_rows(flow), remote=tf.LOCAL))


def local_signals_peer(flow):
    return flow.replace(signals=changed(flow.signals, first_signal(flow, tf.LOCAL), remote=tf.PEER))


def signal_counts_tasks(flow):
    return flow.replace(signals=changed(flow.signals, 0, amount=tf.COUNT))


def signal_another_event(flow):
    other = (flow.signals["event"][0] + 1) % len(flow.events)
    return flow.replace(signals=changed(flow.signals, 0, event=other))


def wait_for_another_event(flow):
    static = int(np.flatnonzero(flow.waits["kind"] == tf.STATIC)[0])
    return flow.replace(waits=changed(flow.waits, static, event=(flow.waits["event"][static] + 1) % len(flow.events)))


def wait_for_unknown_event(flow):
    return flow.replace(waits=changed(flow.waits, 0, event=len(flow.events)))


def signal_of_unknown_task(flow):
    return flow.replace(signals=changed(flow.signals, 0, task=-1))


def duplicate_task(flow):
    return with_queue(flow, 0, [*flow.queues[0], flow.queues[0][0]])


def lose_task(flow):
    return with_queue(flow, 0, flow.queues[0][1:])


def unknown_task(flow):
    return with_queue(flow, 0, [*flow.queues[0][:-1], flow.num_tasks])


def wrong_unit(flow):
    moved = with_queue(flow, 0, flow.queues[0][1:])
    last = len(flow.queues) - 1
    return with_queue(moved, last, [*flow.queues[last], flow.queues[0][0]])


def one_queue_less(flow):
    return flow.replace(queues=(*flow.queues[:-2], np.concatenate(flow.queues[-2:])))


def reversed_queue(flow):
    return flow.replace(queues=tuple(q[::-1] for q in flow.queues))


def same_peer_twice(flow):
    return flow.replace(peer_orders=np.zeros_like(flow.peer_orders))


def missing_peer(flow):
    return flow.replace(peer_orders=flow.peer_orders[:, :1])


MUTATIONS = (drop_wait, drop_signal, double_signal, raise_threshold, lower_threshold, other_extent, other_unit,
             put_signals_itself, local_signals_peer, signal_counts_tasks, signal_another_event, wait_for_another_event,
             wait_for_unknown_event, signal_of_unknown_task, duplicate_task, lose_task, unknown_task, wrong_unit,
             one_queue_less, reversed_queue, same_peer_twice, missing_peer)


def replaced(objects, i, **changes):
    return (*objects[:i], dataclasses.replace(objects[i], **changes), *objects[i + 1:])


BY_HAND = {  # taskflows that nobody made for these tables
    "a route of no choices": (lambda flow: {"routes": replaced(flow.routes, 0, top_k=0)},
                              r"routes\[0\] is .*top_k=0.*, whose sizes"),
    "more rows likely than there is room for": (lambda flow: {"routes": replaced(flow.routes, 0, likely_rows=10**6)},
                                                "whose sizes do not fit together"),
    "a route once of itself": (lambda flow: {"routes": replaced(flow.routes, 0, once_of=0)},
                               "whose sizes do not fit together"),
    "sums of parts of tiles": (lambda flow: {"routes": replaced(flow.routes, 0, return_tokens=3)},
                               "must be whole tiles of 2"),
    "rows of two kinds": (lambda flow: {"buffers": replaced(flow.buffers, 0, num_rows=None)}, "must be of one of the two"),
    "ids that nobody gives": (lambda flow: {"inputs": tuple(b for b in flow.inputs if b != flow.routes[0].ids)},
                              "whose sizes do not fit together"),
    "tiles of no rows": (lambda flow: {"tile_rows": 0}, "is for 2 ranks and tiles of 0 rows; there must be one at least"),
    "too many tasks": (lambda flow: {"ops": replaced(flow.ops, 0, cols=2**40, tile_cols=1)}, "is too large"),
    "a shape of other rows": (lambda flow: {"buffers": replaced(flow.buffers, 0, shape=(9, 9))},
                              r"buffers\[0\] is of shape \(9, 9\) in \d rows of \d columns"),
    "an operation without operands": (lambda flow: {"ops": replaced(flow.ops, 0, operands=None)}, "do not fit together"),
    "a machine that is none": (lambda flow: {"machine": 3}, "machine is a int; it must be a Machine or None"),
    "queues that are none": (lambda flow: {"queues": 3}, "queues is a int; it must be a tuple"),
}
