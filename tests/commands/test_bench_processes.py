"""hpmoe bench --processes: a real run, what follows from its figures, and flags that it refuses."""

import importlib.util
import json

import pytest
from command_line import run

from hpmoe.commands import bench_processes

SIZES = {"tokens": 256, "hidden": 1024, "intermediate": 512, "experts": 16, "top_k": 4}


def case(own=100.0, other=140.0, share=0.04, meeting=1.5, **sizes):
    passes = {which: {"ms": own * k, "turns_ms": [own * k], "communication": share}
              for which, k in (("forward", 1), ("forward + backward", 3))}
    theirs = {which: {**of, "ms": of["ms"] * other / own, "communication": 0.25} for which, of in passes.items()}
    return {"processes": 2, "sizes": {**SIZES, **sizes}, "dtype": "float32", "status": 0, "difference": 1e-6,
            "sides": {"hpmoe": passes, "torch": theirs}, "exchange_us": {"meeting": meeting, "bare": 1.0}}


def test_rows_say_how_many_times_longer_the_peer_takes():
    assert bench_processes.rows(case()) == [
        "| 2 | 256 | 512 | float32 | forward | 100.0 | 140.0 | 1.40x | 4 % | 25 % |",
        "| 2 | 256 | 512 | float32 | forward + backward | 300.0 | 420.0 | 1.40x | 4 % | 25 % |"]
    alone = case()
    del alone["sides"]["torch"]
    assert bench_processes.rows(alone)[0] == "| 2 | 256 | 512 | float32 | forward | 100.0 | - | - | 4 % | - |"


def test_goals_are_higher_where_there_is_more_to_win():
    assert [met for *_, met in bench_processes.goals(case())] == [True] * 4
    assert [met for *_, met in bench_processes.goals(case(tokens=2048))] == [False, True, True, True]
    assert [met for *_, met in bench_processes.goals(case(intermediate=128))] == [False, True, True, True]
    assert [met for *_, met in bench_processes.goals(case(other=110.0, share=0.06, meeting=2.5))] == [False] * 4
    lines = bench_processes.closing_lines({"cases": [case(), case(share=0.2), {**case(), "status": 3}]})
    assert "goal, forward: communication takes at most 5 %: met in 1 of 2, 0.04 .. 0.20" in lines
    assert lines[-1].startswith("status 3: ")


def test_flags_that_it_refuses_are_named(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for flags, words in ((["--experts=9"], "flag --experts=9: it must be a multiple of 2"),
                         (["--peers=numpy"], "flag --peers=numpy: it must be torch, all or none with --processes"),
                         (["--peers=torch"], "flag --peers=torch: it must be none with --processes where PyTorch is not")):
        status, _, text = run(capsys, "bench", "--processes=2", *flags, *(["--peers=none"] if "experts" in flags[0] else []))
        assert status == 2 and words in text, text


@pytest.mark.slow
def test_two_processes_are_timed_and_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    sizes = ["--tokens=24", "--hidden=16", "--intermediate=8", "--experts=4", "--top_k=2"]
    status, out, _ = run(capsys, "bench", "--processes=2", "--peers=none", "--repeats=1", "--json", *sizes,
                         f"--out={tmp_path / 'x.png'}")
    report = json.loads(out)
    assert status == 0 and report["ok"] and (tmp_path / "x.png").stat().st_size > 1000
    for found in report["cases"]:
        assert found["status"] == 0 and 0 < found["exchange_us"]["bare"] and 0 < found["exchange_us"]["meeting"]
        for of in found["sides"]["hpmoe"].values():
            assert of["ms"] > 0 and 0 <= of["communication"] < 1
