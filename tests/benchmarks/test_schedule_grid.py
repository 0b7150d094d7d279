"""schedule_grid.py: drawn layers beside their bounds, other schedules and plans with more room."""

import json
from types import SimpleNamespace

import drawn_layers
import pytest
import rooms
import schedule_grid
import script

import hpmoe
from hpmoe.transforms.assign_queues import POLICIES


@pytest.mark.slow
def test_rooms_of_drawn_layers(capsys, monkeypatch):
    monkeypatch.setattr(drawn_layers, "RANKS", dict.fromkeys(drawn_layers.RANKS, (8,)))
    monkeypatch.setattr(drawn_layers, "TOKENS", dict.fromkeys(drawn_layers.TOKENS, (64,)))
    monkeypatch.setattr(rooms, "FACTORS", {"all": None, "2": 2.0, "0.5": 0.5})
    assert script.main(schedule_grid, ["--rooms", "--layers=2", "--seed=3", "--json"]) == 0
    table = json.loads(capsys.readouterr().out)["rows"]
    assert len(table) == 2  # half of the rows have no room
    assert all(set(r["over_received"]) == {"all", "2", "chosen"} for r in table)
    shown = rooms.text(table, hpmoe.ascend_a3, 3).splitlines()
    assert len(shown) == 2 + 2 + 2 and all(line.split()[-2] == "-" for line in shown[2:])
    assert shown[-1].startswith("uniform, 2 layers: worst") and {r["routing"] for r in table} == {"uniform"}
    assert float(shown[-1].split()[4]) == pytest.approx(max(r["over_received"]["all"] for r in table), abs=1e-3)


def test_grid_of_drawn_layers(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(drawn_layers, "RANKS", dict.fromkeys(drawn_layers.RANKS, (8,)))
    monkeypatch.setattr(drawn_layers, "TOKENS", dict.fromkeys(drawn_layers.TOKENS, (64,)))
    assert [str(c) for c in drawn_layers.cases(5, 3, "bfloat16")] == [str(c) for c in drawn_layers.cases(5, 3, "bfloat16")]
    tables, printed = [], []
    line, closing = schedule_grid.line, schedule_grid.closing
    monkeypatch.setattr(schedule_grid, "line", lambda row: printed.append(capsys.readouterr().out) or line(row))
    monkeypatch.setattr(schedule_grid, "closing", lambda rows: tables.append(rows) or closing(rows))
    assert script.main(schedule_grid, ["--layers=3", "--seed=3"]) == 0
    (table,), lines = tables, [*printed, capsys.readouterr().out]
    assert script.main(schedule_grid, ["--layers=1", "--seed=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == json.loads(json.dumps(table[:1]))
    assert [r["routing"] for r in table] == ["uniform", "uniform", "dirichlet"]
    for r in table:
        assert r["makespan_over_bound"] >= 1 and min(r["others_us"].values()) == pytest.approx(
            r["makespan_us"] / r["over_fastest_other"])
        assert {"round_robin", "stage_order", "expert_barrier", "128 x 256", "64 x 128"} <= set(r["others_us"])
        assert r["chosen_over_fastest_other"] == r["chosen_us"] / min([r["makespan_us"], *r["others_us"].values()])
        assert r["by_ids_over_fastest_other"] < 1.005
        assert r["chosen"][-1].removeprefix("assign_queues(ascend_a3, ").rstrip(")") in POLICIES
    assert lines[0].startswith("ascend_a3, 3 layers drawn with seed 3")
    assert all(row["layer"] in line for row, line in zip(table, lines[1:], strict=True))  # printed before the next is begun
    shown = "".join(lines).splitlines()
    assert len(shown) == 2 + 3 + 2 + 4 and shown[-5].startswith("few rows, skewed: 1 layers")
    least = max(r["chosen_over_fastest_other"] for r in table) - 1
    assert shown[-3].startswith("what choose_schedule takes is behind") and f"at most {max(0, least):.1%}" in shown[-3]
    assert shown[-2].startswith("what it takes by the ids is behind")
    behind = max(table, key=lambda r: r["over_fastest_other"])
    assert shown[-1].startswith(f"the most over the fastest other: {behind['over_fastest_other']:.3f} over ")


def test_a_grid_leaves_out_what_is_too_large_to_simulate(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(drawn_layers, "RANKS", dict.fromkeys(drawn_layers.RANKS, (8,)))
    monkeypatch.setattr(drawn_layers, "TOKENS", dict.fromkeys(drawn_layers.TOKENS, (64,)))
    (case,) = drawn_layers.cases(1, 3, "bfloat16")
    num_tasks = 8 * case.layer(hpmoe.ascend_a3, 3).fused_flow("expert_barrier").num_tasks
    for most, is_there in ((num_tasks, True), (num_tasks - 1, False)):
        monkeypatch.setattr(schedule_grid, "simulate", SimpleNamespace(MOST_TASKS=most))
        (row,) = schedule_grid.rows(1, 3, "bfloat16", hpmoe.ascend_a3, lambda text: None, False)
        assert ("expert_barrier" in row["others_us"]) == is_there and "round_robin" in row["others_us"]
