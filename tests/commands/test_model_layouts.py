"""hpmoe simulate --model: a known model on a cluster, by the ranks that hold its experts; public and recorded routings."""

import json

import numpy as np
import pytest
from command_line import run

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.commands.model_layouts import MODELS, sizes_of, spreads_of
from hpmoe.costs.start import start_us
from hpmoe.routing.public_workloads import WORKLOADS, workload_ids
from hpmoe.routing.recorded_loads import ids_of_file
from hpmoe.routing.workload import balanced_ids
from hpmoe.support.errors import ArgumentError

QUICK = ["simulate", "--model=gpt-oss", "--ranks=8", "--tokens=64", "--layouts=2", "--bands=2"]


def test_a_table_of_layouts(capsys):
    status, out, _ = run(capsys, *QUICK, "--json")
    table = json.loads(out)
    assert status == 0 and [(r["ep"], r["tp"], r["dp"]) for r in table["rows"]] == [(8, 1, 1), (4, 1, 2)]
    for row in table["rows"]:
        for name, (low, high) in row["bands"].items():
            assert low <= row[name] <= high and low < high
        assert row["tokens_per_second"] == pytest.approx(8 * 64e3 / (row["forward_ms"] + row["backward_ms"]))
        assert 0 <= row["exposed_ms"] < row["forward_ms"] + row["backward_ms"] and row["imbalance"] == 1
        weights = 3 * 2880 * 2880 * 2 * 128 / row["ep"]
        assert 2 * weights < row["memory_gib"] * 2**30 < 2.5 * weights  # with their gradients, and some rows
    status, out, _ = run(capsys, *QUICK)
    lines = out.splitlines()
    assert status == 0 and "simulated" in lines[0] and [line.split()[0] for line in lines[2:4]] == ["8", "4"]
    assert all(line.count(" to ") == 3 for line in lines[2:4])


def test_layouts_whose_experts_are_shared(capsys):
    """TP keeps weights and work of a rank; a row goes to every rank of its expert's group."""
    rows = json.loads(run(capsys, *QUICK, "--layouts=1", "--bands=0", "--tp=2", "--json")[1])["rows"]
    assert [(r["ep"], r["tp"], r["dp"]) for r in rows] == [(8, 1, 1), (4, 2, 1)]
    whole, shared = rows
    assert shared["memory_gib"] == pytest.approx(whole["memory_gib"], rel=0.05) and shared["imbalance"] == 1
    assert whole["forward_ms"] < shared["forward_ms"] < 1.3 * whole["forward_ms"]
    status, _, err = run(capsys, *QUICK, "--tp=3")
    assert status == 2 and "flag --tp=3: it must be a power of two that divides --ranks" in err


def test_figures_are_those_of_the_layer(capsys):
    row = json.loads(run(capsys, *QUICK, "--layouts=1", "--bands=0", "--routing=W5", "--seed=3", "--json")[1])["rows"][0]
    o = type("o", (), {"tokens": 64, "dtype": "bfloat16", "model": "gpt-oss"})
    ids = workload_ids("W5", 8, 64, 4, 128, seed=3)
    line = Layer(sizes_of(o, 8), "forward", hpmoe.machines.ascend_a3, ids, tuned=True).fused()
    assert row["forward_ms"] * 1e3 == pytest.approx(line.span + start_us(line.flow, hpmoe.machines.ascend_a3))
    assert row["bands"] == {} and row["imbalance"] > 1.9  # half of the ranks have no expert that is chosen


def test_experts_are_spread_over_what_divides_both():
    assert spreads_of(64, MODELS["kimi-k2"].experts)[:3] == [64, 32, 16] and spreads_of(24, 128) == [8, 4, 2, 1]


@pytest.mark.parametrize("name", WORKLOADS)
@pytest.mark.parametrize("step", [0, 3])
def test_public_workloads(name, step):
    ep, tokens, top_k, experts = 8, 256, 4, 32
    ids = workload_ids(name, ep, tokens, top_k, experts, seed=1, step=step)
    there = ids[(ids >= 0).all(axis=-1)]
    assert ids.shape == (ep, tokens, top_k) and len(there) == (ids >= 0).any(axis=-1).sum()
    assert (np.diff(np.sort(there), axis=-1) > 0).all() and there.max() < experts
    load = np.bincount(there.reshape(-1), minlength=experts) / there.size
    hot = {"W1": load[:8], "W2": load[:8], "W3": load[::2], "W6": load[8:16] if step else load[:8],
           "W7": load[:8] if step else load}.get(name, load)
    shares = {"W1": 13 / 16, "W2": 13 / 16, "W3": 7 / 8, "W6": 13 / 16, "W7": 5 / 8 if step else 1}
    assert hot.sum() == pytest.approx(shares.get(name, 1), abs=0.02)
    of_rank = (ids >= 0).any(axis=-1).sum(axis=1)
    assert of_rank.tolist() == ([256, 237, 219, 201, 182, 164, 146, 128] if name == "W4" else [256] * 8)
    assert (load[:16].sum() == 0) == (name == "W5") and (np.ptp(load) == 0) == (name == "W0")
    np.testing.assert_array_equal(ids, workload_ids(name, ep, tokens, top_k, experts, seed=1, step=step))


def test_recorded_ids(capsys, tmp_path):
    path, ids = tmp_path / "ids.npy", balanced_ids(8, 64, 4, 128)
    np.save(path, ids.astype(np.int64))
    np.testing.assert_array_equal(ids_of_file(path, 8, 64, 4, 128), ids)
    np.testing.assert_array_equal(ids_of_file(path, 4, 32, 4, 128).reshape(-1, 4), ids.reshape(-1, 4)[:128])
    recorded, balanced = (json.loads(run(capsys, *QUICK, "--layouts=1", f"--routing={r}", "--json")[1])["rows"]
                          for r in (path, "balanced"))
    assert recorded == balanced
    assert run(capsys, *QUICK, f"--routing={path}", "--model=qwen3-235b")[0] == 2
    np.save(path, np.zeros((9, 2), int))
    with pytest.raises(ArgumentError, match=r"recorded_ids: .*ids.npy': topk_ids\[0\] is \[0, 0\]; it must be distinct"):
        ids_of_file(path, 2, 2, 2, 8)
    with path.open("wb") as file:
        np.savez(file, ids=ids)
    with pytest.raises(ArgumentError, match="recorded_ids: path is .* of several arrays; it must be a file of integers"):
        ids_of_file(path, 2, 2, 2, 8)


@pytest.mark.parametrize("array, expected", [
    (None, "cannot be read as a .npy file"), (np.ones((9, 2)), "float64(9, 2); it must be a file of integers [..., 2]"),
    (np.ones((9, 3), int), "it must be a file of integers [..., 2]"),
    (np.ones((3, 2), int), "of 3 tokens; it must be one of "),
    (np.full((4, 2), 8), "ids from 8 to 8; it must be one with ids from -1 to 7")], ids=str)
def test_files_that_hold_no_ids(tmp_path, array, expected):
    path = tmp_path / "ids.npy"
    path.write_bytes(b"") if array is None else np.save(path, array)
    with pytest.raises(ArgumentError, match="recorded_ids: path is") as caught:
        ids_of_file(path, 2, 2, 2, 8)
    assert expected in str(caught.value)


def test_a_routing_that_there_is_not(capsys):
    status, _, err = run(capsys, *QUICK, "--routing=W8")
    assert status == 2 and "flag --routing=W8: it must be one of balanced, uniform, zipf, W0, W1" in err
