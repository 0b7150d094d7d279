"""Where a rank gets many more rows than others: few workers put rows out, others back, and each has its share of any run."""

from types import SimpleNamespace

import numpy as np
import pytest

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import skewed_ids
from hpmoe.scheduling.put_turns import spread_turns
from hpmoe.scheduling.rules import without
from hpmoe.scheduling.spread_slots import spread_out


def layer(routing):
    o = SimpleNamespace(ep=16, tokens=512, hidden=2048, intermediate=1024, experts=32, top_k=4, dtype="bfloat16")
    return Layer(o, "forward", hpmoe.ascend_a3, skewed_ids(routing, o.ep, o.tokens, o.top_k, o.experts), tuned=True)


def putters(flow):
    """The vector workers that put rows out, and those that put them back."""
    ops, queues = flow.tasks["op"], [np.asarray(q) for q in flow.queues]
    return ({q for q, tasks in enumerate(queues) if np.isin(ops[tasks], [
        i for i, op in enumerate(flow.ops) if op.primitive.is_put and op.primitive.is_back == is_back]).any()}
        for is_back in (False, True))


def test_few_put_rows_out_and_others_back_to_and_from_a_hot_rank():
    hot = layer("hot")
    flow = hot.fused_flow()
    out, back = putters(flow)
    assert out and not out & back and 3 * len(out) < len(back)
    with without("few_out"):
        all_do_both = hot.fused_flow()
    assert set.intersection(*putters(all_do_both))
    assert hot.outline(flow).span < hot.outline(all_do_both).span


def test_all_do_both_where_ranks_get_about_as_many_rows():
    out, back = putters(layer("uniform").fused_flow())
    assert out == back


@pytest.mark.parametrize("workers", [5, 8, 16, 17, 23, 24, 31])
def test_whichever_run_is_one_sources_its_puts_are_dealt_out_evenly(workers):
    num_slots, cols = 200, 8
    turns = spread_turns(np.zeros((num_slots, 1, cols), np.int32), np.array([[workers]]))[:, 0] % workers
    for run in (np.arange(first, first + 32) for first in range(0, 160, 5)):
        in_order = run[np.argsort(spread_out(num_slots)[run])]
        for share in (0.5, 1.0):  # of the run, from its first puts on
            dealt = np.bincount(turns[in_order[:int(share * 32)]].reshape(-1), minlength=workers)
            assert dealt.max() - dealt.min() <= cols // 2, (workers, run[0], share, dealt)
