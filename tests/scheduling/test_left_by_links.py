"""Backward, vector workers that links have no use for compute; not over nodes, nor where a rank gets many more rows."""

from types import SimpleNamespace

import pytest

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import skewed_ids
from hpmoe.scheduling.likely_slots import first_round, likely_costs
from hpmoe.scheduling.rules import without
from hpmoe.scheduling.vector_workers import num_computing


def layer(routing, direction="backward", machine=hpmoe.ascend_a3):
    o = SimpleNamespace(ep=16, tokens=512, hidden=5120, intermediate=1536, experts=32, top_k=6, dtype="bfloat16",
                        tile_rows=128, tile_cols=256)
    return Layer(o, direction, machine, skewed_ids(routing, o.ep, o.tokens, o.top_k, o.experts, seed=3), tuned=True)


def computing(of):
    flow = of.fused_flow()
    return num_computing(flow, of.machine, first_round(flow, likely_costs(flow, of.machine)))


def test_a_quarter_computes_and_products_wait_less():
    ours = layer("uniform")
    with without("left_by_links"):
        few, longer = computing(ours), ours.outline(ours.fused_flow()).span
    assert computing(ours) == hpmoe.ascend_a3.num_aiv // 4 > few > 0
    assert ours.outline(ours.fused_flow()).span < longer


@pytest.mark.parametrize("other", [
    {"routing": "hot"}, {"routing": "uniform", "direction": "forward"},
    {"routing": "uniform", "machine": hpmoe.ascend_a3.replace({"link.node_size": 8})}], ids=str)
def test_elsewhere_as_many_as_without_the_rule(other):
    ours = layer(**other)
    with without("left_by_links"):
        expected = computing(ours)
    assert computing(ours) == expected
