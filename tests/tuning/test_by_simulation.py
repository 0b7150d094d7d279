"""by_simulation: what it chooses is no slower on other routings, is kept, and is the default where there is no choice."""

import importlib
import json
from types import SimpleNamespace

import numpy as np
import pytest

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.routing.routing import rows_of_ranks
from hpmoe.routing.skewed import skewed_ids
from hpmoe.transforms.assign_queues import POLICIES

module = importlib.import_module("hpmoe.tuning.by_simulation")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "_chosen", {})
    return tmp_path / "hpmoe"


def skewed_layer(machine=hpmoe.ascend_a3):
    o = SimpleNamespace(ep=8, tokens=512, hidden=2048, intermediate=1024, experts=32, top_k=8, dtype="bfloat16")
    return Layer(o, "forward", machine, skewed_ids("half", 8, 512, 8, 32, seed=1), tuned=True)


def test_a_skewed_layer_is_finished_slot_by_slot_and_sooner(cache, monkeypatch):
    layer = skewed_layer()
    default, chosen = layer.fused(), layer.fused(hpmoe.by_simulation)
    (file,) = cache.iterdir()
    assert json.loads(file.read_text())["policy"] == "slot_major"
    assert chosen.span < 0.97 * default.span
    assert all((a == b).all() for a, b in zip(chosen.flow.queues, layer.fused("slot_major").flow.queues, strict=True))

    def refuse(*args, **kwargs):
        raise AssertionError("simulated again")
    monkeypatch.setattr(module, "simulate", refuse)
    assert layer.fused(hpmoe.by_simulation).span == chosen.span
    module._chosen.clear()  # another process finds it in the file
    assert layer.fused(hpmoe.by_simulation).span == chosen.span
    module._chosen.clear()
    file.write_text(json.dumps({"key": "of something else", "policy": "slot_major"}))
    with pytest.raises(hpmoe.TransformError, match="simulated again"):
        layer.fused(hpmoe.by_simulation)


def test_samples_have_room_and_are_not_the_routing_it_is_judged_on():
    layer = skewed_layer()
    flow = hpmoe.overlap_comm.apply_to(layer.tiles)
    samples = list(module.samples(flow))
    assert 2 <= len(samples) <= module.SAMPLES
    for ids in samples:
        assert max(rows_of_ranks(ids, 32)) <= flow.routes[0].max_rows and not np.array_equal(ids, layer.ids)


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
        skewed_layer().fused(hpmoe.by_simulation)
    assert cache.read_text() == "a file"
