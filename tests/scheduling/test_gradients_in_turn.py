"""Gradients of weights of a rank's one expert: all of one operation, then all of the other."""

from types import SimpleNamespace

import numpy as np

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import skewed_ids
from hpmoe.scheduling.rules import without


def changes(flow):
    """How often a worker goes from gradients of one weight to those of another, the most of all."""
    gradients = [i for i, op in enumerate(flow.ops) if op.primitive.makes_blocks]
    ops = [flow.tasks["op"][tasks] for tasks in flow.queues]
    return max(int((np.diff(of_queue[np.isin(of_queue, gradients)]) != 0).sum()) for of_queue in ops)


def test_they_do_not_take_turns():
    o = SimpleNamespace(ep=16, tokens=2048, hidden=2048, intermediate=1024, experts=16, top_k=4, dtype="bfloat16")
    layer = Layer(o, "backward", hpmoe.ascend_a3, skewed_ids("half", o.ep, o.tokens, o.top_k, o.experts), tuned=True)
    in_turn = layer.fused_flow()
    with without("gradients_in_turn"):
        mixed = layer.fused_flow()
    assert changes(in_turn) <= 1 < changes(mixed)
    assert layer.outline(in_turn).span < layer.outline(mixed).span
