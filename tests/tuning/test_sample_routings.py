"""sample_routings: samples have the planned number of rows, or are uniform and skewed, and keep to capacities."""

import dataclasses
import functools
from types import SimpleNamespace

import numpy as np
import pytest

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import SKEWS, skewed_ids
from hpmoe.tuning.sample_routings import sample_routings


def layer(routing):
    o = SimpleNamespace(ep=8, tokens=512, hidden=64, intermediate=32, experts=32, top_k=8, dtype="bfloat16")
    return Layer(o, "forward", hpmoe.machines.ascend_a3, skewed_ids(routing, o.ep, o.tokens, o.top_k, o.experts, seed=1),
                 tuned=True)


@pytest.mark.parametrize("routing", SKEWS)
def test_samples_have_the_planned_rows_and_are_other_routings(routing):
    sizes = layer(routing)
    (plan,), found = sizes.tiles.routes, list(sample_routings(sizes.tiles))
    assert [kind for kind, _ in found] == [routing] * 2
    for kind, ids in found:
        rows = plan.kind.by_ids.received(ids)
        assert 0.9 * plan.max_rows <= max(rows) <= plan.max_rows and not np.array_equal(ids, sizes.ids)
        assert kind != "half" or rows.count(0) == 4


def test_samples_for_any_routing_are_uniform_and_skewed():
    flow = dataclasses.replace(layer("uniform"), row_capacity="all").tiles
    rows = {kind: flow.routes[0].kind.by_ids.received(ids) for kind, ids in sample_routings(flow)}
    assert list(rows) == ["uniform", "dirichlet"] and max(rows["dirichlet"]) > 1.2 * 8 * 512
    assert min(rows["uniform"]) > 0.9 * 8 * 512
    limited = dataclasses.replace(layer("uniform"), row_capacity="all", rank_capacity_factor=1.5).tiles
    assert {kind for kind, _ in sample_routings(limited)} == {"uniform"}


def test_samples_keep_to_a_capacity_or_are_left_out():
    shapes = (64, 16), (64, 2), (64, 2), (2, 16, 32), (2, 16, 16)
    dtypes = "float32", "int32", "float32", "float32", "float32"
    kinds = {}
    for policy in ("error", "position", "probs"):
        f = functools.partial(hpmoe.moe_ffn, capacity_factor=1.5, drop_policy=policy)
        flow = hpmoe.tile_partition(f, rows=32).lower(*map(hpmoe.ShapeDtypeStruct, shapes, dtypes), mesh=hpmoe.Mesh(4))
        kinds[policy] = {kind for kind, _ in sample_routings(flow)}
    assert "uniform" in kinds["position"] and "hot" not in kinds["error"] and not kinds["probs"]
