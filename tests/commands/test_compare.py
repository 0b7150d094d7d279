"""hpmoe compare: two schedules side by side, simulated and measured."""

import json

import pytest
from command_line import run

SMALL = ["--ep=2", "--tokens=256", "--hidden=256", "--intermediate=128", "--experts=8", "--top_k=2"]


def test_two_simulated_schedules(capsys, tmp_path):
    page = tmp_path / "page.html"
    args = ["compare", "policy=critical_path", "policy=stage_order,signal=peer", *SMALL, "--imbalance=1.5"]
    status, out, err = run(capsys, *args, "--json", f"--out={page}")
    report = json.loads(out)
    assert (status, err, report["simulated"]) == (0, "", True)
    assert report["ratio"] == report["b"]["span us"] / report["a"]["span us"]
    for side in (report["a"], report["b"]):
        path = sum(v for k, v in side.items() if k.startswith("critical path"))
        assert path == pytest.approx(side["span us"]) and 0 < side["aic busy, share of span"] < 1
    text = page.read_text()
    assert "policy=stage_order,signal=peer" in text and "http" not in text and text.count("<h2>") == 4
    status, out, _ = run(capsys, *args)
    lines = out.splitlines()
    assert status == 0 and lines[0].startswith("A = policy=critical_path: simulated ") and lines[3].startswith("simulated ")
    assert len({len(row) for row in lines[3:]}) == 1


def test_a_picture_of_the_layer_and_both_schedules(capsys, tmp_path):
    status, *_ = run(capsys, "compare", "unfused", "fused", *SMALL, "--json", f"--out={tmp_path / 'both.svg'}")
    text = (tmp_path / "both.svg").read_text()
    assert status == 0 and all(f"<!-- {name}: " in text for name in ("unfused", "fused"))
    assert "dispatch hidden_states a" in text and text.count("<!-- matrix products -->") == 1


def test_equal_schedules_are_equal_and_settings_are_per_side(capsys):
    same = json.loads(run(capsys, "compare", "policy=round_robin", "policy=round_robin", *SMALL, "--json")[1])
    assert same["ratio"] == 1 and {k: v for k, v in same["a"].items()} == same["b"]
    longer = json.loads(run(capsys, "compare", "tokens=256", "tokens=2048", *SMALL, "--json")[1])
    other = json.loads(run(capsys, "compare", "tokens=256", "unfused", *SMALL, "--json")[1])
    assert longer["a"]["span us"] == other["a"]["span us"]
    assert longer["ratio"] > 1


def test_rows_sent_once_are_a_setting_of_a_side(capsys):
    """Fused, unfused and measured; what is sent once is less, and where all ranks share a link it is faster."""
    for kind in ("", "unfused,"):
        report = json.loads(run(capsys, "compare", f"{kind}scheme=deduplicated", f"{kind}scheme=direct", *SMALL, "--top_k=4",
                                "--json")[1])
        assert report["a"] != report["b"]
    a, b = (json.loads(run(capsys, "compare", f"scheme={a}", f"scheme={b}", *SMALL, "--json")[1])
            for a, b in (("deduplicated", "direct"), ("direct", "deduplicated")))
    assert a["ratio"] == pytest.approx(1 / b["ratio"])
    args = ["compare", "scheme=deduplicated", "", *SMALL, "--measured", "--repeats=1", "--json"]
    report = json.loads(run(capsys, *args)[1])
    assert not report["simulated"] and report["a"]["span us"] > 0


def test_two_measured_schedules(capsys):
    args = ["compare", "policy=critical_path", "tile_rows=64", *SMALL, "--measured", "--direction=backward", "--repeats=1"]
    status, out, _ = run(capsys, *args, "--json")
    report = json.loads(out)
    assert (status, report["simulated"]) == (0, False) and report["a"]["span us"] > 0 and report["b"]["span us"] > 0
    out = run(capsys, *args)[1]
    assert "simulated" not in out and out.splitlines()[0].startswith("A = policy=critical_path: measured ")


@pytest.mark.parametrize("args, text", [
    (["policy=critical_path"], "two schedules are compared, such as policy=critical_path policy=stage_order"),
    (["a", "b", "c"], "unexpected argument 'c'"),
    (["policy=critcal", "unfused"], "flag --policy=critcal: it must be one of"),
    (["polcy=critical_path", "unfused"], "unknown flag --polcy; did you mean --policy?"),
    (["unfused", "policy=round_robin", "--measured"], "flag --measured=true: it must be false where a schedule is unfused"),
    (["", "machine=ascend_a3", "--measured"], "flag --machine=ascend_a3: it must be cpu where runs are measured"),
    (["", "", "--out=no/such/folder/x.html"], "flag --out=no/such/folder/x.html: it must be a file that can be written"),
])
def test_wrong_usage(capsys, args, text):
    status, out, err = run(capsys, "compare", *args)
    assert (status, out) == (2, "") and err.startswith(f"hpmoe compare: {text}")
