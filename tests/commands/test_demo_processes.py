"""hpmoe demo --processes: ranks that are processes are checked, and what each did is printed."""

import json

import pytest
from command_line import run

SMALL = ["--tokens=24", "--hidden=16", "--intermediate=8", "--experts=6", "--top_k=2", "--repeats=1"]


def test_ranks_are_as_many_as_processes(capsys):
    status, _, text = run(capsys, "demo", "--processes=2", "--ep=4", *SMALL)
    assert status == 2 and "flag --ep=4: it must be left out, or as many as --processes" in text
    assert run(capsys, "demo", "--processes=4", *SMALL)[0] == 2  # experts do not divide
    assert run(capsys, "demo", "--processes=1", *SMALL)[0] == 2


@pytest.mark.slow
def test_each_rank_says_what_it_did(capsys, tmp_path):
    status, out, _ = run(capsys, "demo", "--processes=3", "--json", f"--out={tmp_path / 'run.json'}", *SMALL)
    report = json.loads(out)
    assert status == 0 and report["ok"] and report["same_as_virtual"]
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1, 2] and len({r["process"] for r in report["ranks"]}) == 3
    assert sum(rank["rows"] for rank in report["ranks"]) == 3 * 24 * 2
    for rank in report["ranks"]:
        for direction in ("forward", "backward"):
            did = rank[direction]
            assert did["sent_bytes"] > 0 and 0 < did["computing_ms"] + did["moving_ms"] + did["waiting_ms"]
    named = {e["pid"] for e in json.loads((tmp_path / "run.json").read_text())["traceEvents"]}
    assert len(named) >= 3


@pytest.mark.slow
def test_the_report_has_a_row_for_each_rank(capsys):
    status, out, _ = run(capsys, "demo", "--processes=3", *SMALL)
    lines = out.splitlines()
    assert status == 0 and max(map(len, lines)) <= 120
    assert [line.split()[1] for line in lines if line.startswith("  rank ")] == ["0", "1", "2"] * 2
    assert "bit for bit what virtual ranks give: yes" in lines
