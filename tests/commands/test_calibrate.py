"""hpmoe calibrate: what it stores, what cpu(calibrated=True) makes of it, and how predictions are checked."""

import json
import operator
import os
import types

import numpy as np
import pytest
from mindspore import mint
from simulated_layers import plan
from tile_words import kind

import hpmoe
from hpmoe import ArgumentError, ShapeDtypeStruct
from hpmoe.calibration import agreement, bodies, cpu as calibrating_cpu, overheads
from hpmoe.calibration.fit import Samples, fit
from hpmoe.calibration.runs import Run, Runs
from hpmoe.cli import main
from hpmoe.costs.work import Work, core_us
from hpmoe.ir.layout import Layout
from hpmoe.kernels.ascendc import build as ascend_build
from hpmoe.machines import cached_calibration
from hpmoe.machines.machine import Body
from hpmoe.routing.workload import balanced_ids
from hpmoe.support.host import cache_folder

BODIES = (Body("GMM", "float32", 0.2, rows=30, cols=10, inner=5), Body("GMM", "bfloat16", 1.0),
          Body("MAP add", "float32", 1.0),
          Body("WGRAD", "float32", 0.2, 20, 0, 40), Body("PUT", "float32", 0.5, 1, 10))
FIELDS = {**dict.fromkeys((
    "cube.float32_ratio", "vector.copy_bytes_per_us", "l2.bytes", "sync.task_us", "sync.wait_us", "sync.poll_us",
    "sync.signal_us", "host.launch_us"), 1.0), "cube.flops_per_us": 1e6, "vector.bytes_per_us": 1e4, "host.cores": 1.5,
    "l2.bytes_per_us": 1e9, "l2.worker_bytes_per_us": 1e9, "memory.bytes_per_us": 1e9, "memory.worker_bytes_per_us": 1e9,
    "bodies": BODIES}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hpmoe"


def gmm_flow(machine, rows=64):
    tiled = hpmoe.tile_partition(lambda x, w: x @ w, rows=rows, cols=32)
    return hpmoe.assign_queues(tiled, machine=machine).lower(ShapeDtypeStruct((4 * rows, 48), "float32"),
                                                             ShapeDtypeStruct((48, 64), "float32"))


def test_what_is_stored_is_what_cpu_takes(cache):
    path = cached_calibration.store_calibration(FIELDS)
    assert path.parent == cache == cache_folder() and cached_calibration.is_calibrated()
    machine = hpmoe.cpu(3, calibrated=True)
    assert machine.num_queues == 3 and machine.bodies == BODIES and machine.host.cores == 1.5
    assert machine.replace({name: operator.attrgetter(name)(hpmoe.cpu(3)) for name in FIELDS}) == hpmoe.cpu(3)
    assert [p.name for p in cache.iterdir()] == [path.name]


@pytest.mark.parametrize("change, what", [
    (lambda text: text[:-9], "JSONDecodeError"),
    (lambda text: "{}", "KeyError: 'key'"),
    (lambda text: text.replace('"cores"', '"corse"'), "ValueError: it is of"),
    (lambda text: text.replace('"host.cores"', '"host_cores"'),
     "ArgumentError: hpmoe.Machine.replace: 'host_cores' is unknown; it must be the name of a constant."),
    (lambda text: text.replace('"host.cores": 1.5', '"host.cores": -1'),
     "ArgumentError: hpmoe.Machine: host.cores is -1; it must be a number from 0 to 1e+30."),
    (lambda text: text.replace('"host.cores": 1.5', '"host.cores": "many"'),
     "ArgumentError: hpmoe.Machine: host.cores is 'many'; it must be"),
])
def test_a_file_that_cannot_be_used(cache, change, what):
    path = cached_calibration.store_calibration(FIELDS)
    path.write_text(change(path.read_text()))
    with pytest.raises(ArgumentError) as error:
        hpmoe.cpu(calibrated=True)
    assert str(error.value).startswith(f"hpmoe.cpu: the calibration in {path} cannot be used ({what}")
    assert str(error.value).endswith("run `hpmoe calibrate` again.")


def test_what_the_command_refuses(cache, capsys, monkeypatch, tmp_path):
    with pytest.raises(ArgumentError,
                       match="hpmoe.cpu: this CPU is not calibrated: there is no .*json; run `hpmoe calibrate`"):
        hpmoe.cpu(calibrated=True)
    assert main(["calibrate", "--budget=-1"]) == 2
    assert "flag --budget=-1: it must be seconds from 0 to 600" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert main(["calibrate"]) == 2
    assert "; set XDG_CACHE_HOME to a folder that can" in capsys.readouterr().err


@pytest.mark.parametrize("home", ["~", "here"])
def test_without_a_home_folder_nothing_is_kept(monkeypatch, home, capsys):
    """A user whom the system does not know, without HOME."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: home)
    assert not cached_calibration.is_calibrated()
    with pytest.raises(ArgumentError,
                       match="hpmoe.cpu: the calibration cannot be used .OSError: no folder to keep files in is "
                       "known: set HOME or XDG_CACHE_HOME to an absolute path"):
        hpmoe.cpu(calibrated=True)
    with pytest.warns(UserWarning, match="autotune: the times of plans cannot be kept: no folder to keep files in is known"):
        hpmoe.autotune(hpmoe.swiglu, budget=1).lower(ShapeDtypeStruct((8, 6), "float32"))
    assert not ascend_build.is_built({})
    assert main(["calibrate"]) == 2 and "no folder to keep files in is known" in capsys.readouterr().err


def test_a_relative_cache_folder_is_ignored(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", "/home/nobody")
    assert str(cache_folder()) == "/home/nobody/.cache/hpmoe"


def test_bodies_cost_what_they_say():
    machine = hpmoe.cpu(1).replace({**FIELDS, "cube.efficiency": 1.0})
    flow = gmm_flow(machine)
    work = Work(flow, machine).table[0, 0]
    us = work["core_fixed"] + 64 * work["core_row"]
    assert us == pytest.approx(2 * (64 + 30) * (32 + 10) * (48 + 5) / (0.2 * 1e6))
    assert machine.body("MAP exp", "float32") == BODIES[2]  # of what was not measured, the nearest
    assert machine.body("GMM", "float16").kind == "GMM" and machine.body("COL_SUM", "float32") is None


def test_few_rows_go_another_way():
    """The measurement serves tasks of at most its rows, and no other kind or dtype."""
    few = Body("GMM", "float32", 0.4, rows=2, cols=10, inner=5, most_rows=32)
    machine = hpmoe.cpu(1).replace({**FIELDS, "bodies": (*BODIES, few), "sync.task_us": 0.0, "sync.signal_us": 0.0})
    for rows, lost, share in ((32, 2, 0.4), (33, 30, 0.2)):
        span = hpmoe.simulate(gmm_flow(machine, rows), machine).span
        assert span == pytest.approx(4 * 2 * 2 * (rows + lost) * (32 + 10) * (48 + 5) / (share * 1e6), abs=0.02)
    assert machine.body("GMM", "float32") == BODIES[0] and machine.body("GMM", "float32", rows=32) == few
    assert machine.body("GMM", "float32", rows=33) is None and machine.body("WGRAD", "float32", rows=1) is None
    work = Work(gmm_flow(machine), machine).table[0, 0]
    assert list(core_us(np.repeat(work, 3), np.array([0, 32, 33]))) == pytest.approx(
        [0.0, *(work[f"{way}_fixed"] + rows * work[f"{way}_row"] for way, rows in (("few", 32), ("core", 33)))])
    half = hpmoe.tile_partition(lambda x, w: x @ w, rows=8, cols=8).lower(ShapeDtypeStruct((8, 8), "bfloat16"),
                                                                          ShapeDtypeStruct((8, 8), "bfloat16"))
    assert Work(half, machine).table["skinny_rows"].max() == 0


def test_runs_at_another_speed_do_not_count():
    """Takes the fastest run beside quick launches, and others only if these are too few."""
    line = lambda us: types.SimpleNamespace(span=us, begin=np.zeros(1), end=np.full(1, us))  # noqa: E731
    runs, yardstick = Runs(None), types.SimpleNamespace(quiet=10.0)
    runs.all = [Run((line(us),), beside, beside) for us, beside in
                [(100.0 + i, 10.0) for i in range(40)] + [(30.0, 20.0)] * 40]
    lines, speeds = runs.counted(yardstick)
    assert [x.span for x in lines] == [100.0 + i for i in range(10)] and set(speeds) == {1.0}
    assert not runs.is_disturbed(yardstick)
    runs.all = runs.all[:2] + runs.all[40:]
    lines, speeds = runs.counted(yardstick)
    assert len(lines) == 4 and {x.span for x in lines} == {30.0} and set(speeds) == {0.5} and runs.is_disturbed(yardstick)


def test_workers_share_the_cores_there_are():
    one, two, half = (hpmoe.simulate(gmm_flow(hpmoe.cpu(n)), hpmoe.cpu(n).replace({**FIELDS, "host.cores": c})).span
                      for n, c in ((1, 1.0), (2, 2.0), (2, 1.0)))
    assert two == pytest.approx(one / 2, rel=0.05) and half == pytest.approx(one, rel=0.05)


def test_a_fit_finds_what_tasks_were_made_from():
    rng = np.random.default_rng(0)
    rows, cols, inner = (rng.integers(8, 600, 200).astype(float) for _ in range(3))
    us = 2 * (rows + 25) * (cols + 7) * (inner + 60) / 1e5
    us[::50] *= 9  # interrupted
    body, error = fit("GMM", "float32", Samples(2 * rows * cols * inner, rows, cols, inner, us, np.zeros(200)),
                      is_matmul=True)
    assert (body.share, body.rows, body.cols, body.inner) == pytest.approx((1e5, 25, 7, 60), rel=0.02) and error < 0.01


def test_a_fit_knows_what_memory_takes():
    """A task that waits for memory says of its body no more than what it takes at most."""
    rng = np.random.default_rng(0)
    rows, cols = (rng.integers(1, 60, 200).astype(float) for _ in range(2))
    body_us, memory_us = 2 * (rows + 3) * (cols + 7) / 1e2, np.where(np.arange(200) % 2, 40.0, 0.0)
    samples = Samples(2 * rows * cols, rows, cols, np.ones(200), np.maximum(body_us, memory_us), memory_us)
    body, error = fit("GMM", "float32", samples, is_matmul=True)
    assert (body.share, body.rows, body.cols) == pytest.approx((1e2, 3, 7), rel=0.05) and error < 0.01


@pytest.mark.parametrize("function", ["erf", "abs"])
def test_what_a_body_was_measured_by_is_what_it_costs(function):
    """A body that works through more than it moves costs what its samples call their work."""
    f = {"erf": mint.erf, "abs": mint.abs}[function]
    machine = hpmoe.cpu(1).replace({**FIELDS, "bodies": (Body(f"MAP {function}", "float32", 0.5),)})
    flow = hpmoe.tile_partition(f, rows=8, cols=64).lower(ShapeDtypeStruct((8, 64), "float32"))
    measured_by = Work(flow, bodies.UNIT).table[0, 0]["core_row"]
    assert Work(flow, machine).table[0, 0]["core_row"] == pytest.approx(measured_by / (0.5 * 1e4))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(bodies, "LAYERS", bodies.LAYERS[1:3])
    monkeypatch.setattr(bodies, "FLOATS", ("float32",))
    monkeypatch.setattr(calibrating_cpu, "LEAST_ROUNDS", 1)
    monkeypatch.setattr(overheads, "MOST_BYTES", 1 << 16)
    monkeypatch.setattr(overheads, "WEIGHT", (16, 32))
    monkeypatch.setattr(overheads, "NUM_TASKS", 32)
    monkeypatch.setattr(agreement, "SHAPES", tuple(
        {"dtype": "float32", "ep": ep, "tokens": 64, "hidden": 32, "intermediate": 16, "experts": 4, "top_k": 2,
         "direction": d}
        for ep, d in ((1, "forward"), (2, "backward"))))


def test_calibrating_and_checking(cache, small, capsys, monkeypatch):
    """Measured values depend on the machine; the tables and the rule of the exit status do not."""
    assert main(["calibrate", "--budget=0"]) == 0
    text = capsys.readouterr().out
    assert f"stored in         {cache}" in text and "GMM T" in text and "GFLOP/s" in text
    machine = hpmoe.cpu(calibrated=True)
    kinds = {(b.kind, b.dtype) for b in machine.bodies}
    assert {(k, "float32") for k in ("GMM", "WGRAD", "PUT", "SWIGLU_GRAD", "MAP exp")} <= kinds
    assert all(b.share > 0 and min(b.rows, b.cols, b.inner) >= 0 for b in machine.bodies)
    assert 0 < machine.host.cores <= len(os.sched_getaffinity(0))
    for limit, status in ((1e9, 0), (0.0, 1)):
        monkeypatch.setattr("hpmoe.commands.calibrate.LIMIT", limit)
        assert main(["calibrate", "--check", "--budget=0", "--json"]) == status
        out = json.loads(capsys.readouterr().out)
        assert out["ok"] is (status == 0) and [r["ep"] for r in out["rows"]] == [1, 2]
        assert all(r["error"] == pytest.approx(r["simulated_ms"] / r["measured_ms"] - 1) for r in out["rows"])
        assert all(r["spread"] >= 1 for r in out["rows"])
        monkeypatch.setattr("hpmoe.commands.calibrate.agreement", lambda *_, rows=out["rows"]: rows)  # measured once
    assert main(["calibrate", "--check", "--budget=0"]) == 1
    assert "FAILED: 2 of 2 are off by more than 0%" in capsys.readouterr().out


def test_simulated_times_agree_with_measured_ones(request, capsys):
    """Ten layers within 15 %: of an idle machine, so only where it is asked for."""
    if not request.config.getoption("--timings"):
        pytest.skip("needs an idle machine: run pytest --timings tests/commands/test_calibrate.py, or "
                    "hpmoe calibrate --check")
    assert main(["calibrate", "--check"]) == 0, capsys.readouterr().out


def test_rows_of_tasks_are_those_of_the_simulator():
    """The bytes that the simulator counts are those of rows that NumPy counts."""
    for direction in ("forward", "backward"):
        flow, ids = plan(direction=direction), balanced_ids(2, 256, 2, 8)
        layout, table = Layout(flow, [list(ids)] * len(flow.routes), None), Work(flow, flow.machine).table
        line = hpmoe.simulate(flow, routing=ids)
        for rank in range(2):
            rows = layout.task_rows(rank)
            other = flow.peer_orders[0, rank, flow.tasks["peer"]] != rank
            moved = rows * table[flow.tasks["op"], 0]["link_row"] * (flow.tasks["peer"] >= 0)
            assert line.traffic[rank, 2, 0] == pytest.approx((moved * other).sum())
            fixed, row = (sum(table["footprints"][f][flow.tasks["op"], 0, i] for i in range(6)) for f in ("fixed", "row"))
            is_there = (rows > 0) | np.array([kind(op) == "experts" for op in flow.ops])[flow.tasks["op"]]
            assert line.traffic[rank, 0, 0] == pytest.approx(((fixed + rows * row) * is_there + moved * ~other).sum(),
                                                             rel=0.02)
