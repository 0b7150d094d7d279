"""Where a rank gets many more rows than others: slots are sent, multiplied and finished in one order, backward, too."""

from types import SimpleNamespace

import numpy as np

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import skewed_ids
from hpmoe.scheduling.rules import without
from hpmoe.scheduling.spread_slots import spread_out, spread_parts


def layer(routing, direction="backward", **sizes):
    o = SimpleNamespace(**{"ep": 16, "tokens": 2048, "hidden": 2048, "intermediate": 1024, "experts": 32, "top_k": 4,
                           "dtype": "bfloat16", **sizes})
    return Layer(o, direction, hpmoe.ascend_a3, skewed_ids(routing, o.ep, o.tokens, o.top_k, o.experts), tuned=True)


def slots_in_order(flow, op, queue):
    tasks = np.asarray(flow.queues[queue])
    rows = flow.tasks["row"][tasks[flow.tasks["op"][tasks] == op]]
    return rows[np.sort(np.unique(rows, return_index=True)[1])]


def test_rows_and_their_weights_go_out_in_the_order_of_spread_slots():
    hot = layer("hot")
    flow = hot.fused_flow()
    puts = [i for i, op in enumerate(flow.ops) if op.primitive.sends_rows]
    assert len(puts) == 2
    turn = spread_out(flow.num_slots)
    for op in puts:
        for queue in range(flow.machine.num_aic, flow.machine.num_queues):
            assert (np.diff(turn[slots_in_order(flow, op, queue)]) > 0).all()
    with without("spread_slots"):
        assert hot.outline(flow).span < hot.outline(hot.fused_flow()).span


def test_gradients_of_weights_come_after_rows_that_others_wait_for():
    even = layer("uniform", tile_rows=128, tile_cols=256)
    flow = even.fused_flow()
    gradients = [i for i, op in enumerate(flow.ops) if op.primitive.makes_blocks]
    with without("gradients_last"):
        first = even.fused_flow()

    def products_after_gradients(flow):
        return sum(int((np.diff(np.isin(flow.tasks["op"][q], gradients).astype(int)) < 0).sum()) for q in flow.queues[:24])
    assert products_after_gradients(flow) == 0 < products_after_gradients(first)
    assert even.outline(flow).span < even.outline(first).span


def test_where_l2_holds_half_of_the_weights_one_half_of_the_slots_comes_after_the_other():
    hot = layer("hot", hidden=7168, intermediate=2048, experts=64, tokens=1024)
    flow = hot.fused_flow()
    assert spread_parts(flow, flow.machine) == 2
    put = next(i for i, op in enumerate(flow.ops) if op.primitive.sends_rows)
    turn = spread_out(flow.num_slots, parts=2)
    half = flow.num_slots // 2
    assert turn[:half].max() < turn[half + 1:].min()
    for queue in range(flow.machine.num_aic, flow.machine.num_queues):
        assert (np.diff(turn[slots_in_order(flow, put, queue)]) > 0).all()
    with without("spread_slots"):
        assert hot.outline(flow).span < hot.outline(hot.fused_flow()).span
