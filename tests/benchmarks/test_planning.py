"""planning.py: how long planning takes, step by step."""

import json

import planning
import pytest
from command_line import run, run_script


def test_plan_over_experts_fits_a_slope(capsys, monkeypatch):
    monkeypatch.setattr(planning, "EXPERTS", (2, 4))
    sizes = ["--ep=2", "--tokens=8", "--hidden=8", "--intermediate=4", "--top_k=1", "--runs=1", "--growth"]
    status, out, _ = run_script(capsys, planning, *sizes, "--json")
    planned = json.loads(out)
    (fast, slow), slope = planned["processor_ms"]["forward"], planned["slope"]["forward"]
    assert status == 0 and 2 ** slope == pytest.approx(slow / fast)
    status, out, _ = run_script(capsys, planning, *sizes)
    assert status == 0 and "log-log slope" in out


def test_plan_times_every_step_and_counts_what_it_planned(capsys):
    sizes = ["--ep=4", "--tokens=256", "--hidden=512", "--intermediate=256", "--experts=16", "--top_k=4", "--runs=2"]
    status, out, _ = run_script(capsys, planning, *sizes, "--json", "--profile", "--rows=600")
    planned = json.loads(out)
    assert status == 0 and planned["rows"] == 600 and planned["profile"]
    for direction in ("forward", "backward"):
        ms = planned[direction]["ms"]
        assert set(ms) == {*planning.STEPS, "total", "processor", "read"} and ms["pack"] > 0 and ms["verify"] > 0
        shown = ["--ep=4", *sizes[1:-1], "--machine=ascend_a3", "--stage=queues", f"--direction={direction}", "--json"]
        (stage,) = json.loads(run(capsys, "show", *shown)[1])["stages"]
        assert planned[direction]["tasks"] < stage["tasks"]  # show plans for any routing, that is 1024 rows a rank
    status, out, _ = run_script(capsys, planning, *sizes)
    lines = out.splitlines()
    assert status == 0 and "at most 1024 received rows; median of 2 runs" in lines[0]
    assert [line.split()[0] for line in lines[2:-6]] == [*planning.STEPS, "total", "processor", "read"]
