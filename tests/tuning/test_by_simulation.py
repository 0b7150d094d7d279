"""by_simulation: what it chooses is no slower on other routings, is kept, and is the default where there is no choice."""

import dataclasses
import functools
import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.routing import rows_of_ranks
from hpmoe.routing.skewed import SKEWS, skewed_ids
from hpmoe.transforms.assign_queues import POLICIES
from hpmoe.tuning.sample_routings import sample_routings

module = importlib.import_module("hpmoe.tuning.by_simulation")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_chosen", {})
    return tmp_path / "hpmoe"


def skewed_layer(routing="half", **sizes):
    o = SimpleNamespace(**{**dict(ep=8, tokens=512, hidden=2048, intermediate=1024, experts=32, top_k=8), **sizes},
                        dtype="bfloat16")
    return Layer(o, "forward", hpmoe.ascend_a3, skewed_ids(routing, o.ep, o.tokens, o.top_k, o.experts, seed=1), tuned=True)


def test_a_skewed_layer_is_finished_slot_by_slot_and_sooner(cache, monkeypatch):
    layer = skewed_layer()
    default, chosen = layer.fused(), layer.fused(hpmoe.by_simulation)
    (file,) = cache.iterdir()
    assert json.loads(file.read_text())["policy"] == "slot_major"
    assert chosen.span < 0.97 * default.span
    assert all((a == b).all() for a, b in zip(chosen.flow.queues, layer.fused("slot_major").flow.queues, strict=True))

    def refuse(*args, **kwargs):
        raise AssertionError("simulated again")
    monkeypatch.setattr(module, "outline", refuse)
    assert layer.fused(hpmoe.by_simulation).span == chosen.span
    module._chosen.clear()  # another process finds it in the file
    assert layer.fused(hpmoe.by_simulation).span == chosen.span
    module._chosen.clear()
    file.write_text(json.dumps({"key": "of something else", "policy": "slot_major"}))
    with pytest.raises(hpmoe.TransformError, match="simulated again"):
        layer.fused(hpmoe.by_simulation)


def test_another_that_is_slower_for_one_hot_expert_is_not_taken(cache):
    layer = skewed_layer("hot", ep=16, tokens=1024, experts=16, top_k=4)
    assert layer.fused("slot_major").span > 1.1 * layer.fused().span
    assert layer.fused(hpmoe.by_simulation).span == layer.fused().span


@pytest.mark.parametrize("routing", ["uniform", "hot", "half"])
def test_samples_fill_the_plan_and_are_not_the_routing_it_is_judged_on(routing):
    layer = skewed_layer(routing)
    flow = hpmoe.overlap_comm.apply_to(layer.tiles)
    (plan,), found = flow.routes, dict(sample_routings(flow))
    assert set(found) == set(SKEWS)
    for kind, ids in found.items():
        rows = rows_of_ranks(ids, 32)
        assert max(rows) <= plan.max_rows and not np.array_equal(ids, layer.ids)
        if kind in ("dirichlet", routing):
            assert max(rows) >= 0.9 * plan.max_rows
    assert all(min(rows_of_ranks(ids, 32)) > 0.5 * plan.max_rows for ids in found.values()) == (routing == "uniform")


def test_samples_of_a_plan_for_any_routing_are_as_skewed_as_their_kind():
    layer = skewed_layer("uniform")
    flow = hpmoe.overlap_comm.apply_to(dataclasses.replace(layer, room="all").tiles)
    rows = {kind: rows_of_ranks(ids, 32) for kind, ids in sample_routings(flow)}
    assert rows["half"].count(0) == 4 and max(rows["hot"]) > 8 * 512 and min(rows["uniform"]) > 0.9 * 8 * 512


def test_samples_keep_to_a_capacity_or_are_left_out():
    x, ids, weights, up, down = (hpmoe.Aval(shape, dtype) for shape, dtype in (
        ((4, 64, 16), "float32"), ((4, 64, 2), "int32"), ((4, 64, 2), "float32"), ((4, 2, 16, 32), "float32"),
        ((4, 2, 16, 16), "float32")))
    kinds = {}
    for policy in ("error", "position"):
        f = functools.partial(hpmoe.moe_ffn, capacity_factor=1.5, drop_policy=policy)
        flow = hpmoe.spmd(hpmoe.overlap_comm(hpmoe.tile_partition(f, rows=32)), hpmoe.Mesh(ep_size=4)).lower(
            x, ids, weights, up, down)
        kinds[policy] = {kind for kind, _ in sample_routings(flow)}
    assert kinds["position"] == set(SKEWS) and "hot" not in kinds["error"]


def test_the_default_where_nothing_is_chosen(cache):
    layer, cpu = skewed_layer(), hpmoe.cpu(2)
    flow = hpmoe.overlap_comm.apply_to(layer.tiles)
    local = hpmoe.tile_partition(hpmoe.swiglu).lower(hpmoe.Aval((512, 64), "float32"))
    for of, machine in ((flow, cpu), (local, layer.machine)):
        default = POLICIES["critical_path"](of, machine)
        assert all((a == b).all() for a, b in zip(hpmoe.by_simulation(of, machine), default, strict=True))
    assert not cache.exists()


def test_a_folder_that_cannot_be_written_is_a_warning(cache):
    cache.parent.joinpath("hpmoe").write_text("a file")
    with pytest.warns(UserWarning, match="what was found cannot be kept"):
        skewed_layer(tokens=64).fused(hpmoe.by_simulation)
    assert cache.read_text() == "a file"
