"""hosts.py: a real run over a cable, what its table says, and where it refuses."""

import importlib.util
import json

import hosts
import pytest
from command_line import run_script
from namespaces import Hosts, NoHostsError

TINY = ["--tokens=24", "--hidden=16", "--intermediate=8", "--experts=8", "--top_k=4", "--repeats=1", "--dtype=float32"]


def case(**more):
    crossing = {"ms": 100.0, "turns_ms": [100.0], "row_bytes": 160_000, "messages": 7, "cable_bytes": 200_000}
    theirs = {"ms": 150.0, "turns_ms": [150.0], "cable_bytes": 400_000}
    sizes = {"tokens": 256, "hidden": 1024, "intermediate": 512, "experts": 16, "top_k": 4}
    sides = {side: dict.fromkeys(hosts.PASSES, of) for side, of in (("node", crossing), ("torch", theirs))}
    return {"rate": 10.0, "ranks": 2, "sizes": sizes, "dtype": "float32", "status": 0, "gbits": 4.0, "wrong": [],
            "errors": {}, "sides": sides, **more}


def test_rows_say_what_crosses_and_how_many_times_longer_pytorch_takes():
    first, second, *_ = hosts.rows(case())
    start = "| 10 | 256 | 1024 | 512 | 16 | 4 | float32 | forward | "
    assert first == f"{start}once to a node | 100.0 | 1.50x | 7 | 0.16 | 0.20 |"
    assert second == f"{start}PyTorch, gloo | 150.0 | 1.00x | - | - | 0.40 |"
    assert first.count("|") == second.count("|") == hosts.HEAD[0].count("|") == hosts.HEAD[1].count("|")


def test_last_come_the_cables_and_what_is_no_measurement():
    sizes = case()["sizes"]
    assert hosts.closing_lines({"cases": [case(), case(wrong=["node"], errors={"node": 0.5}), case(status=3)]}) == [
        "one TCP connection over 10 Gb/s: 4.00 Gb/s",
        f"WRONG: once to a node, error 5.0e-01: {sizes}, float32", f"status 3: {sizes}, float32, 10 Gb/s"]


def test_it_says_why_there_can_be_no_hosts(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    status, _, text = run_script(capsys, hosts, "--peers=none")
    assert status == 2 and "two hosts: no network namespaces: [Errno 2] No such file or directory: 'unshare'" in text


def test_without_pytorch_it_asks_for_none(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, text = run_script(capsys, hosts)
    assert status == 2 and "flag --peers=all: it must be none where PyTorch is not installed" in text


@pytest.mark.parametrize("flags, told", [
    ("--peers=numpy", "flag --peers=numpy: it must be all, none or torch"),
    ("--peers=none --rates=1,none", "flag --rates=1,none: it must be numbers from 0.001 to 1000"),
    ("--peers=none --rates=0", "flag --rates=0: it must be numbers from 0.001 to 1000"),
    ("--peers=none --processes=3", "flag --experts=16: it must be a multiple of 6, the number of ranks"),
])
def test_wrong_flags_are_named(capsys, flags, told):
    status, out, text = run_script(capsys, hosts, *flags.split())
    assert (status, out) == (2, "") and text.startswith(f"hosts.py: {told}")


def test_it_says_what_ucx_lacks(capsys, monkeypatch):
    monkeypatch.setattr(hosts, "ucx_fault", lambda: "the package libucx is not installed")
    status, _, text = run_script(capsys, hosts, "--peers=none", "--engine=ucx")
    assert status == 2 and "flag --engine=ucx: it must be tcp here: the package libucx is not installed" in text


@pytest.mark.slow
def test_two_hosts_are_timed_and_drawn(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    try:
        Hosts().close()
    except NoHostsError as error:
        pytest.skip(str(error))
    flags = [*TINY, "--peers=none", "--rates=1", f"--out={tmp_path / 'x.png'}"]
    status, out, _ = run_script(capsys, hosts, "--json", *flags)
    report = json.loads(out)
    assert status == 0 and report["ok"] and (tmp_path / "x.png").stat().st_size > 1000, report
    (found,) = report["cases"]
    sent = {side: of["forward"]["row_bytes"] for side, of in found["sides"].items()}
    assert sent["node"] < sent["rank"] < sent["direct"] and 0 < found["gbits"] < 1
    for of in (passes[which] for passes in found["sides"].values() for which in passes):
        assert of["ms"] > 0 and of["messages"] > 0 and of["cable_bytes"] > of["row_bytes"] > 0
