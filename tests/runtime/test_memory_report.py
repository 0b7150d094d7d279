"""`f.memory` and `hpmoe memory` equal sums by hand and the pool's allocations."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from helpers import Layer, avals_of, stages, tensors

import hpmoe
from hpmoe import ShapeDtypeStruct, cli, save_for_backward
from hpmoe.commands import memory
from hpmoe.tiling.memory_use import MIB, MemoryUse

LAYER = Layer(ep=2, T=6, H=4, I=3, E=4, K=2)
SIZES = {"ep": 1, "tokens": 256, "hidden": 64, "intermediate": 32, "experts": 4, "top_k": 2, "dtype": "float32", "seed": 0,
         "rank_capacity_factor": None}


def report_of(policy, stage="queues", layer=LAYER):
    f = hpmoe.spmd(stages()[stage](save_for_backward(hpmoe.moe_ffn, policy=policy)), hpmoe.Mesh(layer.ep))
    return f.memory(*tensors(layer.arguments()))


@pytest.mark.parametrize("stage", ["tiles", "overlap", "queues", "fused"])
@pytest.mark.parametrize("policy, saved_cols",
                         [("everything", 4 + 6 + 3), ("recompute_swiglu", 4 + 6), ("dispatched_rows", 4)])
def test_bytes_by_hand(policy, saved_cols, stage):
    r, x = report_of(policy, stage), LAYER
    rows, tokens = x.ep * x.T * x.K, x.ep * x.T
    weights = x.E * (x.H * 2 * x.I + x.I * x.H)
    assert r.saved == r.backward.saved == 4 * rows * saved_cols
    assert r.forward.inputs == 4 * (tokens * (x.H + 2 * x.K) + weights)
    assert r.backward.inputs == 4 * (tokens * (x.H + 2 * x.K) + weights)  # the cotangent in the place of hidden_states
    assert r.forward.outputs == r.inference.outputs == 4 * tokens * x.H
    assert r.backward.outputs == 4 * (tokens * (x.H + x.K) + weights)
    assert r.inference.saved == 0
    expert_rows = {"everything": 0, "recompute_swiglu": x.I, "dispatched_rows": 3 * x.I}[policy]
    assert r.forward.apart == 4 * rows * (expert_rows + x.H + x.H)  # what is not saved, expert outputs, and entries
    assert r.inference.apart == 4 * rows * (x.H + 3 * x.I + x.H + x.H)
    for use in (r.inference, r.forward, r.backward):
        assert use.temporaries <= use.apart
        assert use.peak == use.inputs + use.outputs + use.saved + use.temporaries


def test_each_policy_of_the_table_saves_less_than_the_last():
    saved = [report_of(p).saved for p in ("everything", "recompute_swiglu", "dispatched_rows", lambda e: False)]
    assert saved == sorted(saved, reverse=True) and saved[-1] == 0 and len(set(saved)) == 4


def test_the_rows_received_count_and_not_the_bucket():
    """With all ids the bytes are those of the real rows; without, those of the most rows there can be."""
    f = stages()["fused"](hpmoe.moe_ffn)
    args = tensors(a[0] for a in Layer(ep=1, T=50, H=4, I=3, E=4, K=2).arguments())
    avals = [ShapeDtypeStruct(a.shape, str(a.dtype).lower()) for a in args]
    assert f.memory(*args).saved == 4 * 100 * 13
    assert f.memory(*avals).saved == 4 * 100 * 13
    assert f.memory(*avals[:3], ShapeDtypeStruct((2, 4, 6), "float32"), ShapeDtypeStruct((2, 3, 4), "float32"),
                    mesh=hpmoe.Mesh(2)).saved \
        == 2 * 4 * (2 * 50 * 2) * 13


def test_half_precision_takes_half():
    args = avals_of(LAYER.arguments())
    half = [a if a.dtype == "int32" else ShapeDtypeStruct(a.shape, "bfloat16") for a in args]
    f = stages()["queues"](hpmoe.moe_ffn)
    assert 2 * f.memory(*half).saved == f.memory(*args).saved


def test_the_text_has_a_line_for_each_kernel():
    lines = str(report_of("dispatched_rows")).splitlines()
    assert lines[0].startswith("# moe_ffn | save_for_backward(policy=dispatched_rows) | tile_partition")
    assert lines[1].split()[-7:] == ["inputs", "outputs", "saved", "temporaries", "apart", "symmetric", "peak"]
    assert [line.split()[0] for line in lines[2:]] == ["inference", "forward", "backward"]


@pytest.mark.slow
def test_plan_and_pool_agree_in_a_process_of_its_own():
    out = memory.in_process({**SIZES, "side": "dispatched_rows"})
    rows = SIZES["tokens"] * SIZES["top_k"]
    assert out["saved"]["saved"] == pytest.approx(4 * rows * 64 / MIB)
    assert out["pool"]["forward"] == pytest.approx(out["plan"]["forward"], rel=0.01)
    assert out["pool"]["forward + backward"] == pytest.approx(out["plan"]["forward + backward"], rel=0.25)
    assert all(v >= 0 for v in out["process"].values())


@pytest.mark.slow
def test_a_limit_is_the_plans_capacity_and_an_error_beyond_it():
    asked = {**SIZES, "ep": 4, "tokens": 64, "side": "dispatched_rows"}
    saved = memory.in_process({**asked, "rank_capacity_factor": 1.5})["saved"]["saved"]
    assert saved == pytest.approx(4 * 64 * 2 * 1.5 * 64 * 4 / MIB)  # ranks, rows, room, columns, bytes
    with pytest.raises(OSError, match=r"limit_rows: the number of rows that rank \d receives is \d+; it must be at most 64"):
        memory.in_process({**asked, "rank_capacity_factor": 0.5})


def test_the_command_prints_a_line_for_each_policy(capsys, monkeypatch):
    row = {"saved": {"saved": 1.0}, "temporaries": {"forward": 2.0, "backward": 3.0},
           **{c: {p: 4.0 for p in memory.demo.PASSES} for c in ("plan", "pool", "process")}}
    monkeypatch.setattr(memory, "in_process", lambda asked: row if asked["side"] != memory.OP_BY_OP else
                        {"process": row["process"]})
    assert cli.main(["memory", "--tokens=8"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[4:]] == [*memory.POLICIES, memory.OP_BY_OP]
    assert lines[4].split()[1:] == ["1.0", "2.0", "3.0", *["4.0"] * 6] and lines[-1].split()[-3:] == ["-", "4.0", "4.0"]
    assert cli.main(["memory", "--policy=dispatched_rows", "--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert list(out["mib"]) == ["dispatched_rows", memory.OP_BY_OP] and out["mib"]["dispatched_rows"] == row


@pytest.mark.slow
def test_a_process_that_fails_says_why(capsys):
    with pytest.raises(OSError, match="^the process of nonsense ended with 1: save_for_backward: policy is 'nonsense'"):
        memory.in_process({**SIZES, "side": "nonsense"})


@pytest.mark.slow
def test_the_process_of_a_policy_ends_with_the_command():
    parent = subprocess.Popen([sys.executable, "-m", "hpmoe", "memory", "--policy=everything"],
                              stdout=subprocess.DEVNULL)
    children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
    while not (found := [pid for pid in children.read_text().split()
                         if "answer" in of_process(pid, "cmdline") and "libmindspore" in of_process(pid, "maps")]):
        time.sleep(0.01)
    os.kill(int(found[0]), signal.SIGSTOP)  # or it might end by itself
    parent.terminate()
    parent.wait()
    deadline = time.monotonic() + 60
    while (is_left := bool(of_process(found[0], "cmdline"))) and time.monotonic() < deadline:
        time.sleep(0.05)
    if is_left:
        os.kill(int(found[0]), signal.SIGKILL)
    assert not is_left


def of_process(pid, what):
    """A file that the system has of a process; empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text()
    except OSError:
        return ""


@pytest.mark.slow
def test_sizes_that_no_machine_has_end_in_one_line(capsys):
    assert cli.main(["memory", "--policy=everything", "--tokens=100000", "--hidden=100000000"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("hpmoe memory: the process of everything ended with 1: Unable to allocate")
    assert "Traceback" not in err


def test_training_peak_is_that_of_the_larger_pass():
    report = report_of("everything")
    use = MemoryUse(0, 1, 2, 30, 30, 0)
    small = MemoryUse(0, 3, 2, 4, 4, 0)
    assert report.__class__("f", 1, use, use, small).training_peak == 1 + 2 + 30
    assert report.__class__("f", 1, use, small, use).training_peak == 3 + 2 + (1 + 30)
    assert np.isclose(report.training_peak, report.forward.outputs + report.saved + report.backward.outputs
                      + report.backward.temporaries)
