"""choose_schedule: what it takes is sooner done on other routings, is kept, and is the default where there is no choice."""

import dataclasses
import functools
import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
from helpers import SMALL_NPU

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.skewed import SKEWS, skewed_ids
from hpmoe.testing import assert_same
from hpmoe.tuning.sample_routings import sample_routings

module = importlib.import_module("hpmoe.tuning.choose_schedule")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hpmoe"


@pytest.fixture
def refused(monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("simulated")
    return lambda: monkeypatch.setattr(module.simulate, "outline", refuse)


SLOW = "stage_order", "expert_barrier"  # policies that are not tried


def skewed_layer(routing="half", direction="forward", seed=1, **sizes):
    o = SimpleNamespace(**{**dict(ep=8, tokens=512, hidden=2048, intermediate=1024, experts=32, top_k=8), **sizes},
                        dtype="bfloat16")
    return Layer(o, direction, hpmoe.ascend_a3, skewed_ids(routing, o.ep, o.tokens, o.top_k, o.experts, seed), tuned=True)


def us(layer, flow):
    return layer.outline(flow).span


def avals(tokens, hidden, intermediate, local, top_k, dtype="bfloat16"):
    return [hpmoe.Aval(*a) for a in (((tokens, hidden), dtype), ((tokens, top_k), "int32"), ((tokens, top_k), "float32"),
                                     ((local, hidden, 2 * intermediate), dtype), ((local, intermediate, hidden), dtype))]


def test_a_faster_schedule_is_chosen_and_kept(cache, refused):
    layer = skewed_layer("dirichlet", ep=16, tokens=16, hidden=4096, intermediate=1536)
    default, chosen = layer.fused_flow(), layer.chosen_flow()
    (file,) = cache.iterdir()
    kept = json.loads(file.read_text())
    assert (kept["rows"], kept["cols"]) == (256, 128) and us(layer, chosen) < us(layer, default)
    assert chosen.provenance[0] == "tile_partition(rows=256, cols=128)" != default.provenance[0]
    refused()
    assert us(layer, layer.chosen_flow()) == us(layer, chosen)
    file.write_text(json.dumps({**kept, "rows": float(kept["rows"])}))  # no number of rows, and equal to one
    assert us(layer, layer.chosen_flow()) == us(layer, chosen)
    for junk in ({"key": "of something else"}, {"policy": "stage_order"}, {"rows": 7}, {"cols": "256"}):
        file.write_text(json.dumps({**kept, **junk}))
        with pytest.raises(AssertionError, match="simulated"):
            layer.chosen_flow()


def test_weights_are_read_early_where_that_is_sooner(cache):
    layer = skewed_layer("uniform", ep=16, tokens=2, hidden=4096, intermediate=1536, experts=32)
    chosen = layer.chosen_flow()
    assert "prefetch_weights" in chosen.provenance and us(layer, chosen) < us(layer, layer.fused_flow())
    (file,) = cache.iterdir()
    assert us(layer, layer.chosen_flow()) == us(layer, chosen) and json.loads(file.read_text())["prefetch"] is True


def test_entries_over_the_room_of_a_plan_are_left_out(cache):
    """As where a call has fewer rows than the routing that was told before."""
    layer = skewed_layer("hot", ep=16, tokens=16)
    program = skewed_layer("uniform", ep=16, tokens=16)._program(0, "direct", "received")
    _, flow = module.chosen(program, hpmoe.ascend_a3, routing=layer.ids)
    assert flow.routes[0].max_rows < max(flow.routes[0].kind.by_ids.received(layer.ids)) and flow.queues


def test_each_pass_has_its_own_and_computes_the_same(cache):
    machine = SMALL_NPU.replace(tile_rows=8, tile_cols=16)
    f = hpmoe.choose_schedule(hpmoe.moe_ffn, machine=machine)
    for direction in ("forward", "backward"):
        f.lower(*avals(128, 32, 16, 2, 2, "float32"), mesh=hpmoe.Mesh(4), direction=direction)
    assert len(list(cache.iterdir())) == 2
    for tokens in (9, 0):
        sizes = avals(tokens, 8, 4, 2, 2, "float32")
        assert_same(hpmoe.choose_schedule(machine=machine), hpmoe.moe_ffn, sizes, hpmoe.Mesh(2), orders=2)


def test_a_tile_is_taken_by_its_time(cache, monkeypatch):
    """The cost rules' choice goes where another is sooner done, and is what is taken where none is."""
    machine = hpmoe.ascend_a3
    for cols, taken in ((512, (128, 256)), (256, (128, 256))):
        monkeypatch.setattr(module, "choose_tile", lambda *args, cols=cols: (128, cols))
        f = hpmoe.choose_schedule(hpmoe.moe_ffn, machine=machine)
        flow = f.lower(*avals(64, 2048, 1024, 4, 4), mesh=hpmoe.Mesh(8), direction="forward")
        assert f"tile_partition(rows={taken[0]}, cols={taken[1]})" == flow.provenance[0], cols
        (file,) = cache.iterdir()
        file.unlink()


@pytest.mark.parametrize("routing", SKEWS)
def test_samples_are_of_the_kind_that_fills_the_plan_but_not_the_routing_it_is_judged_on(routing):
    layer = skewed_layer(routing)
    flow = hpmoe.overlap_comm.apply_to(layer.tiles)
    (plan,), found = flow.routes, list(sample_routings(flow))
    kinds = [kind for kind, _ in found]
    assert len(kinds) == 4 and kinds.count(routing) > 2
    for kind, ids in found:
        rows = flow.routes[0].kind.by_ids.received(ids)
        assert 0.9 * plan.max_rows <= max(rows) <= plan.max_rows and not np.array_equal(ids, layer.ids)
        assert kind != "half" or rows.count(0) == 4


def test_samples_of_a_plan_for_any_routing_are_of_every_kind():
    layer = skewed_layer("uniform")
    flow = hpmoe.overlap_comm.apply_to(dataclasses.replace(layer, room="all").tiles)
    rows = {kind: flow.routes[0].kind.by_ids.received(ids) for kind, ids in sample_routings(flow)}
    assert rows["half"].count(0) == 4 and max(rows["hot"]) > 8 * 512 and min(rows["uniform"]) > 0.9 * 8 * 512
    limited = hpmoe.overlap_comm.apply_to(dataclasses.replace(layer, room="all", rank_capacity_factor=1.5).tiles)
    assert {kind for kind, _ in sample_routings(limited)} == {"uniform"}


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
    assert "uniform" in kinds["position"] and "hot" not in kinds["error"]


def test_the_default_where_nothing_is_chosen(cache, refused):
    """A CPU, no route, weights that decide, relays, many tasks."""
    refused()
    on_a3 = hpmoe.choose_schedule(machine=hpmoe.ascend_a3)
    sizes = avals(64, 64, 32, 4, 2)
    dropping = functools.partial(hpmoe.moe_ffn, capacity_factor=1.5, drop_policy="probs")
    for f, args, mesh in ((hpmoe.choose_schedule(hpmoe.moe_ffn), sizes, hpmoe.Mesh(2)),
                          (on_a3(hpmoe.swiglu), [hpmoe.Aval((512, 64), "float32")], None),
                          (on_a3(dropping), sizes, hpmoe.Mesh(2)),
                          (on_a3(hpmoe.relay_rows(hpmoe.moe_ffn)), sizes, hpmoe.Mesh(4, node_size=2)),
                          (on_a3(hpmoe.relay_rows(hpmoe.moe_ffn), routing=np.zeros((4, 64, 2), int)), sizes,
                           hpmoe.Mesh(4, node_size=2)),
                          (on_a3(hpmoe.moe_ffn, most_tasks=0), sizes, hpmoe.Mesh(2))):
        assert "critical_path" in f.lower(*args, mesh=mesh).provenance[-1]
    assert not cache.exists()
    with pytest.raises(AssertionError, match="simulated"):
        on_a3(hpmoe.moe_ffn).lower(*sizes, mesh=hpmoe.Mesh(2))


def test_what_is_not_hpmoe_s_own_is_not_kept(cache, monkeypatch):
    def foreign(*args):
        raise TypeError("a primitive of a user's")
    monkeypatch.setattr(module, "plan_key", foreign)
    assert skewed_layer(tokens=64).chosen_flow().queues and not cache.exists()


def test_a_folder_that_cannot_be_written_is_a_warning(cache):
    cache.parent.joinpath("hpmoe").write_text("a file")
    with pytest.warns(UserWarning, match="choose_schedule: what was found cannot be kept"):
        skewed_layer(tokens=64).chosen_flow()
    assert cache.read_text() == "a file"


def test_a_wrong_routing_is_refused_by_name():
    sizes, ids = avals(16, 64, 32, 2, 2), np.zeros((2, 16, 2), np.int32)
    for routing, name in ((ids[:1], "routing"), ([ids[0], ids[1][:4]], r"routing\[1\]"), (ids + 4, r"routing\[0\]")):
        f = hpmoe.choose_schedule(hpmoe.moe_ffn, machine=hpmoe.ascend_a3, routing=routing)
        with pytest.raises(hpmoe.ArgumentError, match=f"choose_schedule: {name} is"):
            f.lower(*sizes, mesh=hpmoe.Mesh(2))
    assert len(repr(f)) < 200
