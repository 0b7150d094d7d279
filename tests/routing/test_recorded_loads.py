"""Routings from recorded loads: draws have the shares of the loads, files of each form are read, and others are errors."""

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from simulated_layers import plan

import hpmoe
from hpmoe import ArgumentError
from hpmoe.cli import main
from hpmoe.commands.layer import Layer
from hpmoe.routing.recorded_loads import ids_of_file, ids_of_loads

DATA = Path(__file__).parents[2] / "examples" / "benchmarks" / "data"
LOADS = np.array([5.0, 1, 1, 1, 0, 2, 3, 3])


def counts(ids, num_experts=8):
    return np.bincount(ids.ravel(), minlength=num_experts)


@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_draws_have_the_shares_of_the_loads(top_k):
    ids = ids_of_loads(LOADS, 2, 4000, top_k, seed=1)
    assert ids.shape == (2, 4000, top_k) and ids.dtype == np.int32
    assert (np.diff(np.sort(ids, axis=-1), axis=-1) > 0).all()
    np.testing.assert_allclose(counts(ids) / 8000, top_k * LOADS / LOADS.sum(), atol=0.02)
    np.testing.assert_array_equal(ids, ids_of_loads(7 * LOADS, 2, 4000, top_k, seed=1))
    assert (ids != ids_of_loads(LOADS, 2, 4000, top_k, seed=2)).any()


def test_an_expert_gets_each_token_at_most_once():
    """More than a token each cannot be drawn: such experts are chosen by all tokens, the rest by their shares."""
    np.testing.assert_allclose(counts(ids_of_loads([90, 6, 2, 2], 1, 5000, 2), 4) / 5000, [1, 0.6, 0.2, 0.2], atol=0.03)
    assert counts(ids_of_loads([9, 8, 0, 1e-9], 1, 100, 3), 4).tolist() == [100, 100, 0, 100]


def test_recorded_files_of_a_serving_system_are_read():
    for file in DATA.glob("*.json"):
        recorded = np.array(json.loads(file.read_text())["logical_count"], float)
        ids = ids_of_file(file, 8, 512, 8, 256, layer=30)
        got = counts(ids, 256)
        assert got.max() / got.mean() == pytest.approx(recorded[30].max() / recorded[30].mean(), rel=0.1)
        with pytest.raises(ArgumentError, match="layer is 2, which has no tokens"):
            ids_of_file(file, 8, 512, 8, 256, layer=2)
        with pytest.raises(ArgumentError, match="layer is None; it must be an int in 0..60"):
            ids_of_file(file, 8, 512, 8, 256)


def test_arrays_of_loads_and_of_records_are_read(tmp_path):
    path, steps = tmp_path / "a.npy", np.stack([np.stack([LOADS, LOADS[::-1]])] * 3)
    steps[2] *= [1, 1, 1, 1, 1, 1, 0, 0]
    for array, options in ((LOADS, {}), (steps[0], {"layer": 0}), (steps, {"layer": 0, "step": 1})):
        np.save(path, array)
        np.testing.assert_array_equal(ids_of_file(path, 2, 16, 2, 8, **options), ids_of_loads(LOADS, 2, 16, 2))
    with pytest.raises(ArgumentError, match=r"step is 3; it must be an int in 0..2"):
        ids_of_file(path, 2, 16, 2, 8, layer=0, step=3)
    records = np.random.default_rng(0).random((64, 5, 8)).argsort(-1)[..., :2].astype(np.int32)
    np.save(path, records)
    np.testing.assert_array_equal(ids_of_file(path, 2, 16, 2, 8, layer=3).reshape(-1, 2), records[:32, 3])
    with pytest.raises(ArgumentError, match=r"layer is 5; it must be an int in 0..4"):
        ids_of_file(path, 2, 16, 2, 8, layer=5)


def test_files_that_are_no_loads_say_so(tmp_path):
    path = tmp_path / "a.json"
    for text, said in (("{", "cannot be read"), ('{"counts": []}', "cannot be read"), ("[1, 2, 3]", "loads of shape"),
                       ("[1, 0, 0, 0, 0, 0, 0, -1]", "numbers of at least 0"), ("[1, 0, 0, 0, 0, 0, 0, 0]", "at least 2")):
        path.write_text(text)
        with pytest.raises(ArgumentError, match=said):
            ids_of_file(path, 2, 16, 2, 8)


def test_simulate_takes_loads():
    flow = plan(ep=2, T=128)
    ids = ids_of_loads(LOADS, 2, 128, 2, seed=3)
    assert hpmoe.simulate(flow, loads=LOADS, seed=3).span == hpmoe.simulate(flow, routing=ids).span
    for options, said in (({"routing": ids}, "given with routing"), ({"loads": LOADS[:3]}, r"loads is of shape \(3,\)")):
        with pytest.raises(ArgumentError, match=said):
            hpmoe.simulate(flow, **{"loads": LOADS, **options})


def test_advice_relocates_experts_of_a_hot_rank(capsys, tmp_path):
    path = tmp_path / "hot.npy"
    np.save(path, np.array([8.0, 8, 1, 1, 1, 1, 1, 1]))
    assert main(["simulate", "--ep=4", "--tokens=2048", "--hidden=1024", "--intermediate=512", "--experts=8", "--top_k=1",
                 f"--routing={path}", "--advise", "--bands=0", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["advice"]
    by = {(row["relocated"], row["replicas"]): row for row in rows}
    assert set(by) == {(moved, replicas) for moved in (False, True) for replicas in (0, 1, 2, 4)}
    assert by[True, 0]["imbalance"] < by[False, 0]["imbalance"] and by[True, 0]["fused_ms"] < by[False, 0]["fused_ms"]


@pytest.mark.parametrize("layer, seed", [(5, 0), (30, 1)])
def test_default_min_load_is_no_worse_than_without_idle_time(layer, seed):
    """Than copies that pay only if their products hide their weights, which ignores that the link may be idle."""
    o = SimpleNamespace(ep=8, tokens=512, hidden=2048, intermediate=1024, experts=256, top_k=8, dtype="bfloat16")
    ids = ids_of_file(DATA / "expert_load_prefill_in4096.json", 8, 512, 8, 256, layer=layer, seed=seed)
    flops = hpmoe.machines.ascend_a3.num_aic * hpmoe.machines.ascend_a3.cube.rate("bfloat16")
    times = []
    for min_load in (None, flops / hpmoe.machines.ascend_a3.link.rate(8)):
        made = Layer(SimpleNamespace(**vars(o), min_load=min_load), "forward", hpmoe.machines.ascend_a3, ids, replicas=1)
        times.append(made.outline(made.fused_flow()).span)
    assert times[0] <= 1.01 * times[1]
