"""permute.py --styles: both ways to write a layer give the same bytes and tasks, and another function is an error."""

import json

import permute
import pytest
import styles
from command_line import run_script

import hpmoe
from hpmoe.support.errors import LaunchError

TINY = ["--styles", "--tokens=16", "--hidden=8", "--intermediate=8", "--experts=4", "--top_k=2", "--repeats=1"]


def test_both_styles_move_the_same_bytes(capsys):
    status, out, _ = run_script(capsys, permute, *TINY, "--json")
    report = json.loads(out)
    assert status == 0 and [case["dtype"] for case in report["cases"]] == ["float32", "bfloat16"]
    for case in report["cases"]:
        first, second = case["moved"].values()
        row = 8 * (4 if case["dtype"] == "float32" else 2)
        assert first == second and first["bytes"][0] == 2 * 4 * 16 * 2 * row  # there and back
        assert case["sizes"]["ep"] == 4 and all(ratio > 0 for ratio in case["ratio"].values())


def test_its_text(capsys):
    out = run_script(capsys, permute, *TINY, "--ep=1", "--dtype=float32")[1]
    assert "1 ranks x 16 tokens" in out and "tasks, backward" in out and "equal to the last bit" in out


def test_sizes_that_do_not_fit_are_refused(capsys):
    assert "--experts=4: it must be a multiple of --ep, which is 3" in run_script(capsys, permute, *TINY, "--ep=3")[2]


def test_another_function_is_an_error(monkeypatch):
    monkeypatch.setitem(styles.SIDES, "dispatch, combine", lambda *args: hpmoe.moe_ffn(*args) * 2.0)
    sizes = {"ep": 1, "tokens": 4, "hidden": 8, "intermediate": 8, "experts": 2, "top_k": 1}
    with pytest.raises(LaunchError, match="permute, exchange and dispatch, combine compute different results"):
        styles.measured(sizes, "float32", 0, 1)
