"""processes.py: a real run, what follows from its figures, and flags that it refuses."""

import importlib.util
import json

import numpy as np
import processes
import pytest
import ranks_contest
from command_line import run_script

TINY = ["--tokens=24", "--hidden=16", "--intermediate=8", "--experts=4", "--top_k=2", "--repeats=1"]
SIZES = {"tokens": 256, "hidden": 1024, "intermediate": 512, "experts": 16, "top_k": 4}


def case(own=100.0, other=140.0, share=0.04, **sizes):
    passes = {which: {"ms": own * k, "turns_ms": [own * k], "communication": share, "skew": 0.1}
              for which, k in (("forward", 1), ("forward + backward", 3))}
    theirs = {which: {**of, "ms": of["ms"] * other / own, "communication": 0.25} for which, of in passes.items()}
    gathered = {"forward": {"ms": 2 * other, "turns_ms": [2 * other]}}
    sides = {"hpmoe": passes, "torch": theirs, "mindspore": gathered}
    return {"processes": 2, "sizes": {**SIZES, **sizes}, "dtype": "float32", "status": 0, "sides": sides, "wrong": [],
            "errors": dict.fromkeys(sides, 1e-6)}


def test_rows_say_how_many_times_longer_each_peer_takes():
    assert processes.rows(case()) == [
        "| 2 | 256 | 512 | float32 | forward | 100.0 | 140.0 | 1.40x | 280.0 | 2.80x | 4 %, 10 % | 25 %, 10 % |",
        "| 2 | 256 | 512 | float32 | forward + backward | 300.0 | 420.0 | 1.40x | - | - | 4 %, 10 % | 25 %, 10 % |"]
    alone = case()
    del alone["sides"]["torch"], alone["sides"]["mindspore"]
    assert processes.rows(alone)[0] == "| 2 | 256 | 512 | float32 | forward | 100.0 | - | - | - | - | 4 %, 10 % | - |"
    assert all(row.count("|") == processes.HEAD[1].count("|") for row in processes.rows(alone))


def test_closing_lines_name_what_is_no_measurement():
    lines = processes.closing_lines({"cases": [case(), {**case(), "wrong": ["torch"]}, {**case(), "status": 3}]})
    assert lines[0].startswith("WRONG: torch, error 1.0e-06: ") and lines[1].startswith("status 3: ") and len(lines) == 2


def test_communication_is_beyond_the_rank_that_computes_most():
    assert ranks_contest.shares_of(np.array([2.0, 6.0]), 8.0) == (0.25, 0.25)
    assert ranks_contest.shares_of(np.array([8.0, 8.0]), 8.0) == (0.0, 0.0)


def test_a_result_that_is_no_number_is_wrong():
    right = [np.array([1.0, 2.0]), np.array([4.0])]
    assert ranks_contest.worst_error([np.array([1.0, 2.5])], right) == 0.25  # forward alone
    assert ranks_contest.worst_error([np.array([1.0, np.nan]), np.array([4.0])], right) == np.inf


def test_mindspore_takes_part_in_float32_alone():
    assert processes.sides_of("mindspore", "float32") == ["hpmoe", "mindspore"]
    assert processes.sides_of("mindspore", "bfloat16") == ["hpmoe"]


def test_flags_that_it_refuses_are_named(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for flags, words in ((["--experts=9", "--peers=none"], "flag --experts=9: it must be a multiple of 2"),
                         (["--peers=numpy"], "flag --peers=numpy: it must be all, none, or of torch,mindspore"),
                         (["--peers=torch"], "flag --peers=torch: it must be without torch where PyTorch is not")):
        status, _, text = run_script(capsys, processes, *flags)
        assert status == 2 and words in text, text


@pytest.mark.slow
def test_results_that_are_wrong_are_no_measurement(capsys, monkeypatch):
    monkeypatch.setattr(processes, "TOLERANCE", {"float32": 0.0})
    status, out, _ = run_script(capsys, processes, "--peers=none", "--dtype=float32", *TINY)
    assert status == 1 and "WRONG: hpmoe, error " in out


@pytest.mark.slow
def test_two_processes_are_timed_and_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    flags = [*TINY, "--peers=mindspore", f"--out={tmp_path / 'x.png'}"]
    status, out, _ = run_script(capsys, processes, "--json", *flags)
    report = json.loads(out)
    assert status == 0 and report["ok"], report
    assert (tmp_path / "x.png").stat().st_size > 1000
    for found in report["cases"]:
        assert found["status"] == 0
        for of in found["sides"]["hpmoe"].values():
            assert of["ms"] > 0 and 0 <= of["communication"] <= 1 and 0 <= of["skew"] <= 1
        assert found["wrong"] == [] and found["errors"]["hpmoe"] < 0.03
        assert ("mindspore" in found["sides"]) == (found["dtype"] == "float32")
