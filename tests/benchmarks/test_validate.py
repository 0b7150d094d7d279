"""validate.py: everything that is published has a row, and errors are summed up from the rows."""

import json

import paper_table
import script
import validate
from published import Published, published

import hpmoe


def test_validation_lists_what_is_published(capsys, monkeypatch):
    few = [row for row in published() if "low-latency combine" in row.work and "sgl" in row.source] + [
        Published("another", "product", 269, "TFLOP/s", lambda: 300.0, missing="clock"),
        Published("it", "w", 1, "us", lambda: 1)]
    monkeypatch.setattr(validate, "published", lambda *args: few)
    monkeypatch.setattr(validate, "without", lambda source: hpmoe.machines.ascend_a3.replace({"memory.bytes_per_us": 3e5}))
    monkeypatch.setattr(paper_table, "PAPER", {(4, "forward"): paper_table.PAPER[4, "forward"]})
    assert script.main(validate, ["--json"]) == 0
    out = json.loads(capsys.readouterr().out)
    assert out["simulated"] and [row["blind"] for row in out["rows"]] == [False] * 2 + [True] * 5
    assert all(set(row) >= {"source", "work", "published", "simulated", "blind"} for row in out["rows"])
    assert out["blind"]["rows"] == 5 and out["blind"]["worst"] == max(abs(row["error"]) for row in out["rows"][2:])
    assert out["blind_without"]["sgl-kernel-npu README, A3"]["rows"] == 2
    left = out["left_out"]
    assert left["it"] == {"rows": 1, "median": 0.0, "worst": 0.0, "refitted": {}}
    paper = left["HyperParallel-MoE (arXiv 2605.23764)"]
    assert paper["refitted"] == {"memory.bytes_per_us": 3e5} and paper["worst"] > out["fitted"]["worst"]
    assert script.main(validate, []) == 0
    text = capsys.readouterr().out
    assert "TFLOP/s; not modelled: clock" in text and "blind: 5 rows, median error" in text


def test_every_published_measurement_is_there():
    rows = list(published())
    sources = {row.source for row in rows}
    assert len(rows) >= 60 and all(row.figure > 0 and row.unit for row in rows)
    for name in ("vendor profile", "sgl-kernel-npu README", "CloudMatrix384", "older README", "PR 400", "PR 809", "PR 771",
                 "Mixture-of-Kittens", "DeepEP V1", "DeepEP hybrid-ep", "DeepGEMM PR 383"):
        assert any(name in source for source in sources), name
    assert not {row.work for row in rows if not row.is_blind} & {f"combine, 4096 tokens, EP {ep}" for ep in (16, 32)}
    assert all(row.missing for row in rows if "older README" in row.source or row.work == "the same, MXFP8")
