"""hpmoe simulate: any configuration, and its bound."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from simulated_layers import NPU, plan

import hpmoe
from hpmoe.cli import main
from hpmoe.commands import simulate
from hpmoe.commands.bands import digits
from hpmoe.commands.layer import ROW_CAPACITY, Layer, ids_of
from hpmoe.costs.bound import rank_bounds
from hpmoe.routing.public_workloads import workload_ids
from hpmoe.routing.skewed import SKEWS, skewed_ids
from hpmoe.routing.workload import balanced_ids, imbalanced_ids

SIZES = ["--ep=4", "--tokens=256", "--hidden=512", "--intermediate=256", "--experts=8", "--top_k=2"]


def simulated(capsys, *flags):
    assert main(["simulate", *SIZES, *flags, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("direction", ("forward", "backward"))
def test_a_configuration(capsys, direction):
    out = simulated(capsys, f"--direction={direction}", "--imbalance=2")
    assert out["simulated"] and out["imbalance"] == 2 and out["direction"] == direction
    assert 0 < out["bound_ms"] <= out["makespan_ms"] < out["baseline_ms"]
    assert all(low <= out[name] <= high for name, (low, high) in zip(
        ("makespan_ms", "baseline_ms", "speedup"), out["bands"].values(), strict=True))
    assert set(out["utilisation"]) == {"aic", "aiv", "egress", "ingress", "memory"}
    assert all(0 < share <= 1 for share in out["utilisation"].values())
    assert out["speedup"] == pytest.approx(out["baseline_ms"] / out["makespan_ms"])


def test_quantised_rows_are_sent_in_fewer_bytes(capsys):
    """Rows of 512 bfloat16 are 516 bytes of int8 and a scale."""
    out, both = (simulated(capsys, f"--quantize={rows}", "--bands=0") for rows in ("int8", "int8+combine"))
    assert out["quantize"] == "int8" and out["without_quantize_ms"] > 0
    assert out["sent_mb"] / out["without_quantize_sent_mb"] == pytest.approx((516 + 1024) / 2048)
    assert both["sent_mb"] / both["without_quantize_sent_mb"] == pytest.approx(516 / 1024)


@pytest.mark.parametrize("flags", (["--policy=expert_barrier"], ["--machine=ascend_a2"], ["--machine=cpu"],
                                   ["--signal=peer"], ["--policy=autotune"],
                                   ["--policy=round_robin", "--order=sequential"], ["--tile_rows=64", "--tile_cols=128"]))
def test_every_option(capsys, flags, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    out = simulated(capsys, *flags)
    assert 0 < out["bound_ms"] <= out["makespan_ms"]
    assert main(["simulate", *SIZES, *flags]) == 0
    text = capsys.readouterr().out
    makespan = out["makespan_ms"]
    low, high = out["bands"].get("fused", (makespan, makespan))
    shown = next(line for line in text.splitlines() if line.startswith("  fused")).split(" ms ")[0].split()[-1]
    assert "simulated" in text and abs(float(shown) - makespan) <= max((high - low) / 4, makespan / 200)
    assert len(shown.replace(".", "").lstrip("0")) <= 3


def test_drawn_routings_and_room_for_them(capsys):
    uniform, zipf = (simulated(capsys, f"--routing={r}", "--tokens=4096") for r in ("uniform", "zipf"))
    assert 1 < uniform["imbalance"] < zipf["imbalance"] and uniform["makespan_ms"] < zipf["makespan_ms"]
    zipf = simulated(capsys, "--routing=zipf")
    assert main(["simulate", *SIZES, "--routing=zipf"]) == 0
    assert f"zipf routing, imbalance {zipf['imbalance']:.3g}: simulated" in capsys.readouterr().out
    assert simulated(capsys, "--routing=zipf", "--seed=1")["makespan_ms"] != zipf["makespan_ms"]


def test_room_is_how_many_rows_a_plan_has(capsys):
    o = SimpleNamespace(ep=4, tokens=300, hidden=64, intermediate=32, experts=8, top_k=2, dtype="bfloat16")
    layers = {row_capacity: Layer(o, "forward", hpmoe.machines.ascend_a3, ids_of(o, routing="zipf"),
                                  row_capacity=row_capacity)
              for row_capacity in ROW_CAPACITY}
    received = round(layers["received"].imbalance * 300 * 2)
    assert 768 < received < 1024
    assert {row_capacity: layer.tiles.routes[0].max_rows for row_capacity, layer in layers.items()} == {
        "received": received, "bucket": 1024, "all": 4 * 300 * 2}
    assert simulated(capsys, "--row_capacity=all")["row_capacity"] == "all"


def test_figures_have_the_digits_that_their_bands_support():
    assert digits(11.83, (10.6, 13.1)) == "12" and digits(11.83, (11.7, 11.9)) == digits(11.83) == "11.8"
    assert digits(0.01234, (0.01, 0.02)) == "0.012" and digits(0.0) == "0" and digits(0.5, (0.5, 0.5)) == "0.500"


def test_public_workloads_and_recorded_ids(capsys, tmp_path):
    """Equals the simulator with the same ids; masked tokens of W4 count nowhere."""
    o = SimpleNamespace(ep=4, tokens=256, hidden=512, intermediate=256, experts=8, top_k=2, dtype="bfloat16")
    ids = workload_ids("W4", 4, 256, 2, 8, seed=1)
    np.save(tmp_path / "ids.npy", ids.reshape(-1, 2))
    layer = Layer(o, "forward", hpmoe.machines.ascend_a3, ids, tuned=True)
    for routing in ("W4", str(tmp_path / "ids.npy")):
        out = simulated(capsys, f"--routing={routing}", "--seed=1", "--bands=0")
        assert out["makespan_ms"] == pytest.approx(layer.span_us(layer.fused()) / 1e3, rel=1e-9)
        assert main(["compare", "unfused", "fused", *SIZES, f"--routing={routing}", "--seed=1", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["ratio"] == pytest.approx(layer.fused().span / layer.baseline().span)
    assert main(["simulate", *SIZES, "--routing=W8"]) == 2 and "one of balanced" in capsys.readouterr().err


def test_bands_are_left_out_where_they_would_take_minutes(capsys, monkeypatch):
    assert simulated(capsys)["bands"]
    monkeypatch.setattr(simulate, "MOST_BANDED", 100)
    assert simulated(capsys)["bands"] == {} and simulated(capsys, "--bands=1")["bands"]
    assert main(["simulate", *SIZES]) == 0
    assert "no bands: " in capsys.readouterr().out


def test_what_is_refused(capsys):
    assert main(["simulate", *SIZES, "--imbalance=5"]) == 2
    assert "flag --imbalance=5: it must be from 1 to 4 for these sizes" in capsys.readouterr().err
    assert main(["simulate", "--imbalance=x"]) == 2
    assert "it must be a number" in capsys.readouterr().err
    assert main(["simulate", *SIZES, "--imbalance=2", "--routing=zipf"]) == 2
    assert "flag --imbalance=2: it must be 1 with --routing=zipf" in capsys.readouterr().err
    assert main(["simulate", "--experts=65536", "--tokens=9999", "--routing=zipf"]) == 2
    words = "flag --tokens=9999: it must be at most 2048 for 65536 experts on 8 ranks, whose routing is "
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("direction", ("forward", "backward"))
@pytest.mark.parametrize("machine", [NPU.replace(changes) for changes in (
    {}, {"link.bytes_per_us": 300.0}, {"vector.bytes_per_us": 200.0},
    {"link.node_size": 1, "link.node_bytes_per_us": 100.0})])
def test_no_schedule_beats_the_bound(direction, machine):
    for policy in ("critical_path", "round_robin", "expert_barrier"):
        flow = plan(ep=4, direction=direction, make=hpmoe.overlap_comm, T=200)
        flow = hpmoe.assign_queues.apply_to(flow, machine=machine, policy=policy)
        for ids in (balanced_ids(4, 200, 2, 8), imbalanced_ids(4, 200, 2, 8, imbalance=3.0, seed=2)):
            bounds = rank_bounds(flow, machine, ids)
            assert hpmoe.simulate(flow, machine, routing=ids).span >= max(b.total for b in bounds) * (1 - 1e-6)


def test_a_bound_is_what_limits():
    flow, ids = plan(ep=4, make=hpmoe.overlap_comm, T=200), imbalanced_ids(4, 200, 2, 8, imbalance=3.0, seed=2)
    received = np.bincount(ids.reshape(-1), minlength=8).reshape(4, 2).sum(axis=1)
    slow = rank_bounds(flow, NPU.replace({"link.bytes_per_us": 300.0}), ids)
    hot = int(received.argmax())
    leaving = sum((ids[r] // 2 == hot).sum() for r in range(4) if r != hot) * 256 * 2.0
    assert slow[hot].ingress == pytest.approx((leaving + (ids[hot] // 2 != hot).sum() * 512.0) / 300)
    assert slow[hot].total == slow[hot].ingress + slow[hot].landing
    fast = rank_bounds(flow, NPU.replace({"cube.flops_per_us": 1e3}), ids)
    assert int(np.argmax([b.aic for b in fast])) == hot
    assert fast[hot].total == fast[hot].aic + fast[hot].fill + fast[hot].drain
    assert all(b.fill > 0 and b.drain > 0 for b in fast)


@pytest.mark.parametrize("name", SKEWS)
def test_skewed_routings(name):
    ids = skewed_ids(name, 4, 300, 3, 12, seed=5)
    assert ids.shape == (4, 300, 3) and (np.diff(np.sort(ids)) > 0).all() and 0 <= ids.min() and ids.max() < 12
    loads = np.bincount(ids.reshape(-1), minlength=12)
    ranks = loads.reshape(4, 3).sum(axis=1)
    assert (loads.max() == 1200) == (name == "hot") and (np.sort(ranks)[:2] == 0).all() == (name == "half")
    assert (loads.max() < 1.2 * loads.mean()) == (name == "uniform")


def test_few_tokens_are_compared_with_kernels_of_decoding(capsys):
    few, more = (simulated(capsys, f"--tokens={tokens}", "--row_capacity=all", "--bands=0") for tokens in (512, 520))
    assert few["baseline_ms"] < more["baseline_ms"] - 0.05  # a synchronisation with the host, and layouts
    received = simulated(capsys, "--tokens=520", "--bands=0")
    assert received["baseline_ms"] == more["baseline_ms"]  # empty slots are no burden of what has none
    for tokens, syncs in ((512, 0), (516, 1)):  # kernels of decoding wait for no host
        o = SimpleNamespace(ep=4, tokens=tokens, hidden=64, intermediate=32, experts=8, top_k=2, dtype="bfloat16")
        flow = Layer(o, "forward", hpmoe.machines.ascend_a3, ids_of(o), row_capacity="all").baseline_flow()
        assert sum(op.params.syncs_host for op in flow.ops if op.primitive.is_launch) == syncs
        labels = [op.label for op in flow.ops if op.primitive.is_launch]
        assert ("sort" in labels) == ("permute" in labels) == bool(syncs)
        plan = flow.routes[0]
        assert plan.max_rows == 2 * tokens  # what comes, and no room for all
    assert main(["simulate", *SIZES, "--tokens=512"]) == 0
    assert "unfused, decoding" in capsys.readouterr().out
