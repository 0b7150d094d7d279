"""layer.py: its sides really run in processes of their own, are checked, and what becomes of each is said."""

import dataclasses
import importlib.util
import json
import re
import time

import contest
import layer
import layer_report
import numpy as np
import numpy_loop
import pytest
import script
from helpers import assert_close, numpy_moe_ffn
from layer_problem import PASSES, RESULTS, LayerProblem
from process import Process, WorkerError
from sides import SIDES, Side

from hpmoe.commands import options, running

TINY = ["--tokens=6", "--hidden=8", "--intermediate=4", "--experts=4", "--top_k=2", "--repeats=2"]
SIZES = {"ep": 2, "tokens": 6, "hidden": 8, "intermediate": 4, "experts": 8, "top_k": 2}

BODIES = {
    "crash": "import os, sys; print('first', file=sys.stderr); print('out of luck', file=sys.stderr); os._exit(3)",
    "signal": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "hang": "import time; time.sleep(1000)",
    "wrong": "return [r * 1.001 for r in results]",
    "nan": "return [r * float('nan') for r in results]",
    "shape": "return [r[:-1] for r in results]",
    "noisy": "print('this is no answer'); return results",
    "right": "return results",
}


@pytest.fixture
def problem(tmp_path):
    return make_problem(tmp_path)


def make_problem(folder, routing="uniform", seed=0, **sizes):
    made = LayerProblem(folder, dtype="float32", **{**SIZES, **sizes})
    made.write(layer.make_arrays(made, routing, seed))
    return made


def fake_side(folder, body):
    """A side that computes the layer in NumPy and then does something else with it."""
    path = folder / f"{body}_side.py"
    path.write_text("import importlib.util\n"
                    f"spec = importlib.util.spec_from_file_location('numpy_loop', {numpy_loop.__file__!r})\n"
                    "numpy_loop = importlib.util.module_from_spec(spec)\n"
                    "spec.loader.exec_module(numpy_loop)\n"
                    "def entry(problem):\n"
                    "    passes, to_numpy = numpy_loop.layer(problem)\n"
                    "    def changed(f):\n"
                    "        results = f()\n"
                    f"        {BODIES[body]}\n"
                    "    return {p: (lambda f=f: changed(f)) for p, f in passes.items()}, to_numpy\n")
    return Side(f"a {body} side", str(path.with_suffix("")), "entry", "numpy")


def hold(monkeypatch, problem, sides, timeout=60.0):
    monkeypatch.setattr(contest, "SIDES", sides)
    return contest.Contest(repeats=2, threads=1, timeout=timeout, progress=lambda what: None).hold(problem, list(sides))


# The whole script, once, with the sides that this environment has.

PEERS = ("mindspore", "mindspore_jit", "torch", "jax", "numpy")


@pytest.fixture(scope="module", params=[pytest.param(dtype, marks=pytest.mark.slow) for dtype in ("float32", "bfloat16")])
def report(tmp_path_factory, request):
    path = tmp_path_factory.mktemp("bench") / "bench.png"
    with pytest.MonkeyPatch.context() as patch:
        out = []
        patch.setattr("builtins.print", lambda text="", **kwargs: out.append(text) if "file" not in kwargs else None)
        for name in PEERS:
            patch.setitem(SIDES, name, dataclasses.replace(SIDES[name], variants={"default": {}}))
        status = script.main(layer, [*TINY, f"--dtype={request.param}", f"--peers={','.join(PEERS)}", "--json",
                           f"--out={path}"])
    assert status == 0
    return {**json.loads(out[-1]), "picture": path}


@pytest.mark.parametrize("side", ("hpmoe", *PEERS))
def test_every_side_is_checked_and_timed(report, side):
    (case,) = report["cases"]
    dtype = case["dtype"]
    (row,) = [row for row in case["sides"] if row["side"] == side]
    if importlib.util.find_spec(SIDES[side].package) is None:
        assert row["status"] == "not installed" and "pip install" in row["note"]
    elif dtype in SIDES[side].not_in:
        assert row["status"] == "none" and "bfloat16" in row["note"]
    else:
        assert (row["status"], row["note"], list(row["passes"])) == ("ok", "", list(PASSES))
        for which, p in row["passes"].items():
            assert list(p["errors"]) == list(RESULTS if which != "forward" else RESULTS[:1])
            assert all(0 <= e <= contest.TOLERANCE[dtype] for e in p["errors"].values())
            assert 0 < p["min_ms"] <= p["ms"] <= p["max_ms"] and len(p["turns_ms"]) == 2
            assert p["min_ms"] <= p["quartiles_ms"][0] <= p["quartiles_ms"][1] <= p["max_ms"]
            assert p["peak_mib"] > 0 and p["gflops"] > 0 and p["of_ceiling"] is None
        return
    assert row["passes"] == {}


def test_the_report_names_the_machine_and_the_fastest_peer(report):
    assert report["ok"] and report["machine"]["cores"] > 0
    assert {"hpmoe", "mindspore", "numpy", "jax"} <= set(report["machine"]["versions"])
    for case in report["cases"]:
        rows = {r["side"]: r["passes"] for r in case["sides"] if r["passes"]}
        own = rows.pop("hpmoe")
        for which in PASSES:
            fastest = case["fastest_peer"][which]
            assert fastest["ms"] == min(p[which]["ms"] for p in rows.values())
            assert fastest["times_hpmoe"] == fastest["ms"] / own[which]["ms"]


def test_the_text_has_every_number_in_columns(report):
    for case in report["cases"]:
        lines = layer_report.case_lines(case)
        table = [line for line in lines if re.match(r"  \S.* \[.* \.\. .*\]", line)]
        assert len(table) == 2 * sum(bool(r["passes"]) for r in case["sides"])
        assert len({len(line) for line in table}) == 1 and len(table[0]) <= 120
        assert "MindSpore's CPU backend has no bfloat16 matmul" in "\n".join(lines) or case["dtype"] == "float32"
    *table, empty, machine, versions = layer_report.closing_lines({**report, "cases": 2 * report["cases"]})
    assert len(table) == 2 + 2 * 2 and len({line.count("|") for line in table}) == 1 and empty == ""
    assert "medians of 2 turns" in machine and "mindspore 2." in versions


def test_the_picture_is_a_small_png(report):
    data = report["picture"].read_bytes()
    assert data.startswith(b"\x89PNG") and 2000 < len(data) < 100_000


# The layer that all sides compute.

@pytest.mark.parametrize("change", [{}, {"tokens": 1, "ep": 1}, {"routing": "zipf"}, {"experts": 64, "top_k": 1},
                                    {"top_k": 8}, {"experts": 1, "top_k": 1, "ep": 1}])
def test_the_reference_is_the_layer_token_by_token(tmp_path, change):
    made = make_problem(tmp_path, **change)
    arguments = [made.array(name).reshape(1, *made.array(name).shape)
                 for name in ("hidden_states", "topk_ids", "topk_weights", "gate_up_weight", "down_weight", "cotangent")]
    out, grads = numpy_moe_ffn(arguments[:5], arguments[5])
    got = contest.reference(made)["forward + backward"]
    assert_close([got[name][None] for name in RESULTS], [out, *grads], tolerance=1e-12)


def test_routing_has_distinct_experts_and_zipf_is_uneven(tmp_path):
    loads = {}
    for routing in ("uniform", "zipf"):
        made = make_problem(tmp_path, routing, tokens=500, experts=16, top_k=4)
        ids = made.array("topk_ids")
        assert ids.shape == (1000, 4) and all(len(set(row)) == 4 for row in ids.tolist())
        loads[routing] = np.sort(np.bincount(ids.reshape(-1), minlength=16))[::-1] / 250
    assert loads["uniform"].max() < 1.3
    # The first of 1/r experts is in nearly every top 4 of 16; the last in less than a third of an even share.
    assert loads["zipf"][0] > 2 and loads["zipf"][-1] < 0.5
    assert make_problem(tmp_path, seed=1).counts != make_problem(tmp_path, seed=2).counts


def test_flops_are_those_of_the_matmuls(problem):
    rows = 2 * 6 * 2
    assert problem.flops == {"forward": rows * (2 * 8 * 8 + 2 * 4 * 8),
                             "forward + backward": 3 * rows * (2 * 8 * 8 + 2 * 4 * 8)}


# What becomes of sides that misbehave; the others go on.

@pytest.mark.slow
def test_sides_that_end_hang_or_err_are_said_and_the_rest_goes_on(monkeypatch, tmp_path):
    sides = {body: fake_side(tmp_path, body) for body in BODIES if body != "hang"}
    sides["missing"] = Side("a missing side", "numpy_loop", "layer", "no_such_package")
    sides["without"] = Side("another", "numpy_loop", "layer", "numpy", {"float32": "it has no float32"})
    done = {c.name: c for c in hold(monkeypatch, make_problem(tmp_path), sides)}
    said = {name: (c.status, c.note) for name, c in done.items()}
    assert said.pop("missing")[0] == "not installed" and "no_such_package" in done["missing"].note
    assert said == {
        "crash": ("failed", "ended with status 3; its last words: out of luck"),
        "signal": ("failed", "ended with SIGSEGV; it said nothing"),
        "wrong": ("wrong", said["wrong"][1]), "nan": ("wrong", said["nan"][1]), "shape": ("wrong", said["shape"][1]),
        "noisy": ("ok", ""), "right": ("ok", ""),
        "without": ("none", "it has no float32"),
    }
    assert re.search(r"error 1.0e-03, above 1e-05", said["wrong"][1])
    assert "error nan" in said["nan"][1] and "error inf" in said["shape"][1]
    assert all((c.milliseconds("forward") is not None) == (c.status == "ok") for c in done.values())
    assert all(len(done["right"].turns[p]) == 2 for p in PASSES)


@pytest.mark.slow
def test_a_side_that_hangs_is_ended_in_time(monkeypatch, tmp_path, problem):
    begin = time.monotonic()
    (c,) = hold(monkeypatch, problem, {"hang": fake_side(tmp_path, "hang")}, timeout=3.0)
    assert (c.status, c.note) == ("failed", "did not answer in 3 s; it said nothing") and time.monotonic() - begin < 100


@pytest.mark.slow
def test_the_fastest_variant_that_runs_is_chosen(monkeypatch, tmp_path, problem):
    path = tmp_path / "choosy.py"
    path.write_text("import os, time\n"
                    "kind = os.environ['KIND']\n"
                    "assert kind != 'broken', 'no such kind'\n"
                    "import numpy as np\n"
                    "def entry(problem):\n"
                    "    def f(): time.sleep(0.5 if kind == 'slow' else 0); return [np.ones(1)]\n"
                    "    return {'other': f}, np.asarray\n")
    kinds = {kind: {"KIND": kind} for kind in ("slow", "broken", "fast")}
    side = Side("choosy", str(path.with_suffix("")), "entry", "numpy", variants=kinds)
    held = contest.Contest(1, 1, 60.0, lambda what: None)
    assert held._choose(contest.Contestant("choosy", side), problem) == "fast"
    alike = contest.Contestant("another of the package", dataclasses.replace(side, module="none"))
    assert held._choose(alike, problem) == "fast"
    broken = dataclasses.replace(side, package="other", variants={kind: kinds["broken"] for kind in "ab"})
    with pytest.raises(WorkerError, match="ended with status 1; its last words: AssertionError: no such kind"):
        held._choose(contest.Contestant("broken", broken), problem)


def test_a_side_takes_nothing_while_others_run(problem):
    def state():
        with open(f"/proc/{process._child.pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0]

    with Process(SIDES["numpy"], problem.folder, {}, 1, 60.0) as process:
        assert process.ask("build") == {"passes": list(PASSES)}
        deadline = time.monotonic() + 60
        while state() != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert state() == "T"
        assert len(process.ask("turn", which="forward")["ms"]) >= 1
    assert process._child.returncode is not None


def test_a_contest_that_is_interrupted_leaves_no_process(monkeypatch, problem):
    started = []
    original = contest.Process

    def start(*args):
        started.append(original(*args))
        return started[-1]

    def progress(what):
        if what.startswith("round 2"):
            raise KeyboardInterrupt

    monkeypatch.setattr(contest, "Process", start)
    monkeypatch.setattr(contest, "SIDES", {"right": dataclasses.replace(SIDES["numpy"], variants={"": {}})})
    with pytest.raises(KeyboardInterrupt):
        contest.Contest(2, 1, 60.0, progress).hold(problem, ["right"])
    assert len(started) == 1 and started[0]._child.returncode is not None


# What the numbers say.

def contestant(name, forward, backward, peak=(10.0, 20.0)):
    turns = dict(zip(PASSES, ([forward], [backward]), strict=True))
    return contest.Contestant(name, SIDES[name], turns=turns, errors={p: {"output": 0.0} for p in PASSES},
                              peak_mib=dict(zip(PASSES, peak, strict=True)))


def summarized(dtype="float32", **times):
    found = [contestant(name, *pair) for name, pair in times.items()]
    found.append(contest.Contestant("matmul_numpy", SIDES["matmul_numpy"], turns={"matmul": [10.0]}))
    flops = dict(zip(PASSES, (10 ** 9, 3 * 10 ** 9), strict=True))
    return {"name": "x", "sizes": SIZES, "dtype": dtype, "routing": "uniform", "max_over_mean_load": 1.0,
            **layer_report.summary(flops, found)}


def test_ratios_are_of_hpmoes_time():
    case = summarized(hpmoe=(1.0, 3.0), mindspore=(4.0, 12.0), torch=(1.7, 4.5))
    assert {which: (f["side"], f["times_hpmoe"]) for which, f in case["fastest_peer"].items()} == dict(
        zip(PASSES, (("torch", 1.7), ("torch", 1.5)), strict=True))
    share = 1000 / (2 * layer_report.SIZE ** 3 / 1e7)
    assert case["sides"][0]["passes"]["forward"]["of_ceiling"] == pytest.approx(share)
    assert "forward: the fastest peer, PyTorch eager, takes 1.70 times as long as hpmoe" in "\n".join(
        layer_report.case_lines(case))


def test_without_peers_there_is_no_fastest_one():
    assert summarized(hpmoe=(1.0, 1.0))["fastest_peer"] == dict.fromkeys(PASSES)


# Flags.

@pytest.mark.parametrize("args, text", [
    ("--peers=jaxx", "flag --peers=jaxx: it must be all, none, or a list of mindspore, "),
    ("--peers=", "flag --peers=: it must be all, none, or a list of mindspore, "),
    ("--dtype=float64", "flag --dtype=float64: it must be one of both, float32, bfloat16"),
    ("--routing=even", "flag --routing=even: it must be one of uniform, zipf"),
    ("--suite --ep=2", "flag --ep=2: it must be 1 with --suite"),
    ("--suite --routing=zipf", "flag --routing=zipf: it must be uniform with --suite"),
    ("--suite --experts=6", "flag --experts=6: it must be a multiple of 4 with --suite"),
    ("--ep=3", "flag --experts=16: it must be a multiple of --ep, which is 3"),
    ("--out=no/such/folder/x.png", "flag --out=no/such/folder/x.png: it must be a file that can be written"),
    ("--out=x.foo", "flag --out=x.foo: it must be a file whose name ends in .png or .svg"),
    ("--out=picture", "flag --out=picture: it must be a file whose name ends in .png or .svg"),
    ("--repeats=0", "flag --repeats=0: it must be an integer of at least 1"),
])
def test_wrong_usage(capsys, args, text):
    assert script.main(layer, [*args.split()]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"layer.py: {text}") and err.count("\n") == 1


def test_a_picture_needs_matplotlib(capsys, monkeypatch):
    monkeypatch.setattr(options.importlib.util, "find_spec", lambda name: None)
    assert script.main(layer, ["--out=x.png"]) == 2
    assert "it must be left out where matplotlib is not installed; pip install '.[plot]'" in capsys.readouterr().err


def test_the_suite_has_four_cases():
    suite = options.parse(running.define(layer), ["--suite"])
    assert [case["name"] for case in layer.cases(suite)] == [
        "2048 tokens", "64 tokens", "2048 tokens, Zipf", "4 ranks x 512 tokens"]
