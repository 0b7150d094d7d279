"""paper_table.py: the published latencies and micro-benchmarks beside the model."""

import json

import paper_table
import pytest
import script


@pytest.mark.slow
def test_the_table_has_both_sides_of_each_row(capsys, monkeypatch):
    rows, some = {}, [(4, "backward"), (8, "forward"), (16, "forward")]  # all six take four times as long
    monkeypatch.setattr(paper_table, "PAPER", {key: paper_table.PAPER[key] for key in some})
    monkeypatch.setattr(paper_table, "rows", lambda tokens, p, real=paper_table.rows: rows.setdefault(4096, real(4096, p)))
    assert script.main(paper_table, ["--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert [(r["ep"], r["direction"]) for r in out["rows"]] == some
    for row in out["rows"]:
        assert row["speedup"] == pytest.approx(row["baseline_ms"] / row["fused_ms"]) and row["paper_speedup"] > 1
        assert row["baseline_ms"] > row["expert_barrier_ms"] > row["fused_ms"]
    assert script.main(paper_table, []) == 0
    text = capsys.readouterr().out
    assert "simulated" in text and "16,384 rows" in text
