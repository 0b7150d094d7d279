"""`hpmoe demo`: one layer against MindSpore op by op."""

import json
import re
from pathlib import Path

import pytest
from command_line import run

from hpmoe import cli
from hpmoe.commands import demo, options

SMALL = ["--ep=2", "--tokens=6", "--hidden=8", "--intermediate=4", "--experts=4", "--top_k=2", "--repeats=2"]


def test_demo_agrees_with_mindspore_and_writes_a_timeline(capsys, tmp_path):
    path = tmp_path / "timeline.json"
    status, out, _ = run(capsys, "demo", *SMALL, f"--out={path}", "--json")
    report = json.loads(out)
    assert (status, report["ok"]) == (0, True)
    assert list(report["errors"]) == ["output", *demo.GRADIENTS]
    assert all(0 <= e <= 1e-5 for e in report["errors"].values())
    assert all(t["ratio"] == t["op_by_op"] / t["hpmoe"] > 0 for t in report["latency_ms"].values())
    assert report["sizes"]["tokens"] == 6 and report["timeline"] == str(path)
    names = [e["args"]["flow"] for e in json.loads(path.read_text())["traceEvents"] if e.get("cat") in ("aic", "aiv")]
    for direction, name in (("forward", "moe_ffn"), ("backward", "moe_ffn_vjp")):
        assert names.count(name) == 2 * report["schedule"][direction]["tasks"]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_demo_in_half_precision_is_held_against_float32(capsys, tmp_path, dtype):
    status, out, _ = run(capsys, "demo", *SMALL, f"--out={tmp_path / 't.json'}", "--json", f"--dtype={dtype}")
    report = json.loads(out)
    assert (status, report["ok"], report["sizes"]["dtype"]) == (0, True, dtype)
    assert all(1e-6 < e <= report["tolerance"] == demo.TOLERANCES[dtype] < 0.04 for e in report["errors"].values())


def test_demo_writes_no_file_unasked_and_says_how_to_have_one(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    status, out, _ = run(capsys, "demo", *SMALL)
    assert (status, list(tmp_path.iterdir())) == (0, [])
    assert re.search(r"^timeline of one run: --out=FILE writes it ", out, re.MULTILINE)
    assert json.loads(run(capsys, "demo", *SMALL, "--json")[1])["timeline"] is None


def test_demo_says_how_long_it_takes(capsys):
    assert re.search(r"^Takes .* minute", run(capsys, "demo", "--help")[1], re.MULTILINE)


def test_demo_report_is_readable(capsys, tmp_path):
    status, out, _ = run(capsys, "demo", *SMALL, f"--out={tmp_path / 't.json'}")
    lines = out.splitlines()
    assert status == 0 and max(len(line) for line in lines if str(tmp_path) not in line) <= 120
    for start in ("schedule of a rank", "  forward", "  backward", "  d gate_up_weight", "latency, median of 2",
                  "  forward + backward", "timeline of one run"):
        assert any(line.startswith(start) for line in lines), start
    table = [line for line in lines if line.startswith("  ") and (" ms" in line) and "x" in line]
    assert len(table) == 2 and len({len(line) for line in table}) == 1


def test_demo_says_so_where_the_sides_differ(capsys, monkeypatch, tmp_path):
    right = demo.moe_ffn_op_by_op
    monkeypatch.setattr(demo, "moe_ffn_op_by_op", lambda *a: right(*a) * 1.001)
    status, out, _ = run(capsys, "demo", *SMALL, f"--out={tmp_path / 't.json'}")
    assert status == 1
    assert "TOO LARGE" in out and "FAILED: an error is above 1e-05" in out


@pytest.mark.parametrize("command", demo.NEXT)
def test_what_demo_ends_with_is_a_command(command):
    program, name, *args = command.split()
    if program == "python":
        assert (Path(__file__).parents[2] / name).is_file() and not args
        return
    assert program == "hpmoe" and cli.COMMANDS[name]
    options.parse(cli.define(name), [a for a in args if a.startswith("--")])


def test_a_command_that_fails_leaves_no_empty_file(capsys, monkeypatch, tmp_path):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "layer_inputs", fail)
    status, _, err = run(capsys, "demo", *SMALL, f"--out={tmp_path / 'new.json'}")
    assert (status, err, list(tmp_path.iterdir())) == (130, "hpmoe demo: interrupted\n", [])
