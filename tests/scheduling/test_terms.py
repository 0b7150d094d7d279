"""Terms of the default schedule: each makes a layer faster, and orders tasks as its reason says."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpmoe.commands.layer import Layer
from hpmoe.machines import ascend_a3
from hpmoe.routing.skewed import skewed_ids
from hpmoe.scheduling.score import spread_out
from hpmoe.scheduling.terms import TERMS, without

NODES = ascend_a3.replace({"link.node_size": 8})


def layer(routing, direction, ep, tokens, hidden, intermediate, local, top_k, machine=ascend_a3, **options):
    o = SimpleNamespace(ep=ep, tokens=tokens, hidden=hidden, intermediate=intermediate, experts=local * ep, top_k=top_k,
                        dtype="bfloat16")
    return Layer(o, direction, machine, skewed_ids(routing, ep, tokens, top_k, o.experts), tuned=True, **options)


LAYERS = {
    "spread_slots": layer("hot", "forward", 16, 2048, 2048, 768, 8, 8),
    "divided_workers": layer("hot", "forward", 16, 2048, 2048, 768, 8, 8),
    "puts_together": layer("uniform", "backward", 16, 2048, 2048, 1024, 8, 6),
    "groups_of_few": layer("hot", "forward", 8, 128, 6144, 16384, 1, 2)}


def span(of):
    return of.outline(of.fused_flow()).span


@pytest.mark.parametrize("term", TERMS)
def test_a_layer_without_a_term_takes_longer(term):
    span_us = span(LAYERS[term])
    with without(term):
        assert 1.05 * span_us < span(LAYERS[term])


def slots_in_order(flow, op, queue):
    tasks = np.asarray(flow.queues[queue])
    rows = flow.tasks["row"][tasks[flow.tasks["op"][tasks] == op]]
    return rows[np.sort(np.unique(rows, return_index=True)[1])]


@pytest.mark.parametrize("of, parts", [
    (layer("hot", "backward", 16, 2048, 2048, 1024, 2, 4), 1), (layer("hot", "backward", 16, 1024, 7168, 2048, 4, 8), 2),
    (layer("uniform", "backward", 16, 2048, 2048, 1024, 2, 4, NODES), 1)], ids=["hot", "two parts", "over nodes"])
def test_rows_and_their_gradients_are_sent_in_the_spread_order(of, parts):
    flow = of.fused_flow()
    puts, turn = [i for i, op in enumerate(flow.ops) if op.primitive.sends_rows], spread_out(flow.num_slots, parts)
    assert len(puts) == 2
    for queue in range(flow.machine.num_aic, flow.machine.num_queues):
        for op in puts:
            assert (np.diff(turn[slots_in_order(flow, op, queue)]) > 0).all()


@pytest.mark.parametrize("num_slots", [1, 2, 7, 64, 100, 1000])
def test_any_beginning_of_the_spread_order_is_spread(num_slots):
    """The discrepancy, in slots, is at most twice the logarithm of their number."""
    turn, most = spread_out(num_slots), 2 + 2 * np.log2(num_slots)
    assert sorted(turn) == list(range(num_slots))
    for begin in range(1, num_slots + 1, max(1, num_slots // 16)):
        is_first = np.concatenate([[0], np.cumsum(turn < begin)])
        assert np.ptp(is_first - begin * np.arange(num_slots + 1) / num_slots) <= most


@pytest.mark.parametrize("of", [
    layer("uniform", "backward", 8, 64, 2048, 1024, 2, 4, scheme="deduplicated"),
    layer("uniform", "forward", 16, 64, 2048, 1024, 2, 4, NODES, scheme="hierarchical"),
    layer("uniform", "forward", 16, 64, 2048, 1024, 2, 4, NODES)], ids=["deduplicated", "hierarchical", "few over nodes"])
def test_tasks_of_other_schemes_are_dealt_out_in_turn(of):
    default, other = of.fused_flow(), of.fused_flow("round_robin")
    assert all(map(np.array_equal, default.queues, other.queues))


def test_idle_senders_help_to_send_rows_back():
    """Each sender of rows to experts takes some puts of rows that go back, behind its own."""
    flow = LAYERS["divided_workers"].fused_flow()
    sends, back = (np.isin(flow.tasks["op"], [i for i, op in enumerate(flow.ops) if is_one(op.primitive)])
                   for is_one in (lambda p: p.sends_rows, lambda p: p.puts_back))
    senders = [tasks for tasks in flow.queues if sends[tasks].any()]
    assert 0 < len(senders) < sum(back[tasks].any() for tasks in flow.queues)
    for tasks in senders:
        assert back[tasks].any() and np.flatnonzero(back[tasks])[0] > np.flatnonzero(sends[tasks])[-1]


def test_gradients_of_weights_come_after_other_products():
    flow = layer("uniform", "backward", 8, 1024, 2048, 1024, 2, 4).fused_flow()
    gradients = [i for i, op in enumerate(flow.ops) if op.primitive.makes_blocks]
    for tasks in flow.queues[:flow.machine.num_aic]:
        assert (np.diff(np.isin(flow.tasks["op"][tasks], gradients).astype(int)) >= 0).all()
