"""The JSON of paper_table.py, validate.py and schedule_grid.py has the keys that other programs read."""

import json

import paper_table
import pytest
import sampled_layers
import schedule_grid
import validate
from command_line import run_script
from published import Published

ERRORS = {"rows", "median", "worst"}
OF_PAPER = {"ep", "direction", "baseline_ms", "fused_ms", "speedup", "expert_barrier_ms", "paper_baseline_ms",
            "paper_fused_ms", "paper_speedup"}
OF_MICRO = {"rows", "what", "paper_us", "simulated_us", "memory_mb"}
OF_VALIDATION = {"source", "work", "unit", "published", "simulated", "blind", "error", "missing"}
OF_GRID = {"layer", "rows", "routing", "makespan_us", "bound_us", "makespan_over_bound", "fastest_other",
           "over_fastest_other", "others_us", "chosen", "chosen_us", "chosen_over_fastest_other", "by_ids", "by_ids_us",
           "by_ids_over_fastest_other"}


@pytest.fixture
def small_paper(monkeypatch):
    monkeypatch.setattr(paper_table, "SIZES", {**paper_table.SIZES, "hidden": 256, "intermediate": 128})
    monkeypatch.setattr(paper_table, "PAPER", {(4, "forward"): (16.3, 10.2)})


def printed(capsys, script, *flags):
    status, out, _ = run_script(capsys, script, *flags, "--json")
    found = json.loads(out)
    assert status == 0 and found["simulated"] is True
    return found


def keys_of(rows):
    """The one set of keys that all rows have."""
    (keys,) = {frozenset(row) for row in rows}
    return keys


def test_keys_of_the_papers_table(capsys, small_paper):
    found = printed(capsys, paper_table)
    assert set(found) == {"simulated", "assumed", "rows", "rows_of_16384_received", "micro"}
    assert keys_of(found["rows"]) == keys_of(found["rows_of_16384_received"]) == OF_PAPER
    assert keys_of(found["micro"]) == OF_MICRO


def test_keys_of_the_validation(capsys, monkeypatch, small_paper):
    rows = [Published("first", "x", 2, "us", lambda: 1), Published("second", "y", 2, "us", lambda: 1)]
    monkeypatch.setattr(validate, "published", lambda *args: rows)
    found = printed(capsys, validate)
    assert set(found) == {"simulated", "rows", "fitted", "blind", "blind_without", "left_out"}
    assert keys_of(found["rows"]) == OF_VALIDATION and set(found["fitted"]) == set(found["blind"]) == ERRORS
    assert set(found["blind_without"]) == {"first", "second"} < set(found["left_out"])
    assert keys_of(found["blind_without"].values()) == ERRORS
    assert keys_of(found["left_out"].values()) == ERRORS | {"refitted"}


def test_keys_of_the_grid(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(sampled_layers, "RANKS", dict.fromkeys(sampled_layers.RANKS, (8,)))
    monkeypatch.setattr(sampled_layers, "TOKENS", dict.fromkeys(sampled_layers.TOKENS, (16,)))
    found = printed(capsys, schedule_grid, "--layers=1", "--seed=3")
    assert set(found) == {"simulated", "machine", "seed", "rows"} and keys_of(found["rows"]) == OF_GRID
