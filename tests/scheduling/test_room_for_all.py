"""Plans with room for all rows, for about as many as come: tiles, order and time of one for the rows there are."""

import dataclasses
from types import SimpleNamespace

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import skewed_ids
from hpmoe.runtime.planned_rows import PlannedRows
from hpmoe.scheduling.spread_slots import is_spread, spread_parts


class Planned(Layer):
    """With room for all rows, for so many times those of the fullest rank: `o.likely`."""

    def _planned_rows(self, aval, room):
        fullest = self.loads.reshape(self.o.ep, -1).sum(axis=1).max()
        return PlannedRows(aval.max_rows, min(aval.max_rows, int(self.o.likely * fullest)))


def layer(routing, likely=None, intermediate=768, local=2, top_k=4):
    o = SimpleNamespace(ep=8, tokens=1024, hidden=2048, intermediate=intermediate, experts=8 * local, top_k=top_k,
                        dtype="bfloat16", likely=likely)
    ids = skewed_ids(routing, o.ep, o.tokens, top_k, o.experts)
    return (Planned if likely else Layer)(o, "forward", hpmoe.ascend_a3, ids, tuned=True)


def test_a_plan_for_drawn_rows_has_the_tiles_of_one_for_the_rows_there_are():
    known = layer("uniform", intermediate=1024, local=8, top_k=6)
    every = dataclasses.replace(known, room="all", plan=1)
    assert every.tiles.num_slots > 4 * known.tiles.num_slots
    assert every.tiles.provenance[-1] == known.tiles.provenance[-1] == "tile_partition(rows=128, cols=256)"


def test_a_plan_for_all_rows_that_can_come_is_spread():
    flow = layer("hot", likely=8.0, local=1).fused_flow()
    assert flow.routes[0].likely_rows == flow.routes[0].max_rows and is_spread(flow, hpmoe.ascend_a3)


def test_halves_are_of_the_slots_that_are_likely():
    """Where L2 holds but half of the weights; one half of all slots would be all that have rows, and spread these."""
    known, every = (layer("half", likely, intermediate=1024, local=24) for likely in (None, 1.0))
    assert [spread_parts(one.fused_flow(), hpmoe.ascend_a3) for one in (known, every)] == [2, 2]
    assert every.tiles.num_slots > 1.5 * known.tiles.num_slots
