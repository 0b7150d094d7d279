"""hpmoe ascend-check: on the emulator it passes from end to end, and a kernel that is wrong falls off the ladder."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from ascend_helpers import own_targets
from binding_helpers import start_build, targets, wait_for_build
from command_line import run

import hpmoe
from hpmoe.bring_up import basics, bodies, layers, router_bodies
from hpmoe.bring_up.device import CheckFailed, Device
from hpmoe.bring_up.ladder import LADDER, Step
from hpmoe.commands import ascend_check
from hpmoe.kernels.ascendc.build import KERNELS
from hpmoe.kernels.ascendc.device import Npu
from hpmoe.kernels.ascendc.emulator.target import EmulatorTarget
from hpmoe.runtime.targets import register_target


@pytest.mark.slow
def test_the_emulator_climbs_to_the_top_and_writes_a_machine(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    status, out, err = run(capsys, "ascend-check", "--target=ascend-emulator", f"--out={path}", "--json")
    report = json.loads(out)
    assert (status, report["ok"], report["ranks"]) == (0, True, 2), (report, err)
    assert [check["name"] for check in report["checks"]] == list(LADDER)
    measured = {rate["field"] for rate in report["rates"]}
    assert measured == {"host.launch_us", "cube.efficiency", "memory.worker_bytes_per_us", "memory.bytes_per_us",
                        "link.bytes_per_us"}
    machine = hpmoe.load_machine(path)
    constants = dict(machine.constants)
    assert all("on the emulator" in constants[field].source for field in measured)
    assert "on the emulator" not in constants["sync.signal_us"].source and machine.sync == hpmoe.machines.ascend_a3.sync
    assert run(capsys, "simulate", f"--machine={path}", "--ep=2", "--experts=4", "--top-k=1", "--tokens=8")[0] == 0


class Crooked(EmulatorTarget):
    """The emulator, whose outputs are changed."""

    name = "crooked"

    def __init__(self, change):
        self.change = change

    def run(self, *args):
        return self.change(super().run(*args))


def off_by_one_number(outputs):
    last = outputs[-1][0].reshape(-1)
    last[-1:] = (-2 * np.abs(last.astype(np.float32)).max(keepdims=True) - 1).astype(last.dtype)
    return outputs


CAREFUL = (bodies.launches, bodies.identity_products, bodies.float32_products, bodies.weight_gradients, bodies.functions,
           bodies.gathers, router_bodies.routers, router_bodies.guards, router_bodies.int8, layers.one_rank,
           layers.rows_of_ranks, layers.many_launches,
           layers.transformed, layers.relays, layers.all_ranks)


@pytest.mark.parametrize("check", CAREFUL, ids=lambda check: check.__name__)
def test_one_wrong_number_of_one_rank_is_found(check):
    with own_targets():
        register_target(Crooked(off_by_one_number))
        with pytest.raises(CheckFailed):
            check(Device("crooked", hpmoe.machines.ascend_a3.replace(num_aic=1, num_aiv=2), 2))


DAY = ("build", "one core", "counters", "one put", "reachability", "clock", "products with a unit matrix",
       "a layer on one rank", "rows between ranks", "gradients on all ranks", "timing")


def test_the_first_day_has_its_order_and_says_where_to_look():
    names = list(LADDER)
    assert [name for name in names if name in DAY] == list(DAY) and (names[0], names[-1]) == ("build", "timing")
    assert all(len(step.look_at) > 20 for step in LADDER.values())
    for word in {w for step in LADDER.values() for w in re.findall(r"\w+\.(?:h|cc|cpp)\b", step.look_at)}:
        assert any(KERNELS.glob(f"**/{word}")), word


@pytest.mark.parametrize("check", [basics.one_launch, basics.one_put, basics.reachability])
def test_a_wrong_number_of_the_first_hour_is_found(check):
    with own_targets():
        register_target(Crooked(off_by_one_number))
        with pytest.raises(CheckFailed):
            check(Device("crooked", hpmoe.machines.ascend_a3.replace(num_aic=1, num_aiv=2), 2))


def test_the_page_has_the_steps():
    page = (Path(hpmoe.bring_up.__file__).parent / "README.md").read_text()
    assert re.findall(r"^\| (?!step \||---)(.+?) \| .+ \|$", page, re.MULTILINE) == list(LADDER)


def test_a_missing_build_and_a_slow_launch_are_found(monkeypatch):
    class Missing(EmulatorTarget):
        name = "missing"

        def missing(self):
            return ["no CANN toolkit"]

    machine = hpmoe.machines.ascend_a3.replace(num_aic=1, num_aiv=2)
    with own_targets():
        register_target(Missing())
        with pytest.raises(CheckFailed, match="no CANN toolkit"):
            basics.built(Device("missing", machine))
    monkeypatch.setattr(basics, "times_us", lambda *args: [5000.0])
    with pytest.raises(CheckFailed, match="took 5000 us; expected at most 1000"):
        basics.timing(Device("ascend-emulator", machine, is_small=False))


def test_a_timeout_of_another_clock_is_found(monkeypatch):
    """On the emulator a launch that waits in vain ends at once."""
    with pytest.raises(CheckFailed, match="the system counter has another rate"):
        layers.lost_signal(Device("ascend-emulator", hpmoe.machines.ascend_a3, is_small=False))


def test_what_saturates_or_changes_is_found():
    rng = np.random.default_rng(0)

    def saturated(outputs):
        return [[np.minimum(x.astype(np.float32), 1e38).astype(x.dtype) for x in arrays] for arrays in outputs]

    def drawn(outputs):
        return [[(x.astype(np.float32) + rng.random()).astype(x.dtype) for x in arrays] for arrays in outputs]

    with own_targets():
        for change, check in ((saturated, bodies.overflow), (drawn, layers.same_bits), (drawn, layers.bad_ids),
                              (drawn, layers.lost_signal)):
            register_target(Crooked(change))
            with pytest.raises(CheckFailed):
                check(Device("crooked", hpmoe.machines.ascend_a3.replace(num_aic=1, num_aiv=2), 2))


def test_it_stops_at_the_first_that_fails_unless_told_to_go_on(capsys, monkeypatch):
    def failing(device):
        raise CheckFailed("the output of rank 0 at [0] is 1")

    monkeypatch.setattr("hpmoe.bring_up.ladder.LADDER", {
        "a": Step(str, "nothing"), "b": Step(failing, "its header"), "c": Step(str, "nothing")})
    status, out, _ = run(capsys, "ascend-check", "--target=ascend-emulator", "--out=unwritten.toml")
    assert status == 1 and [line.split()[:2] for line in out.splitlines()] == [
        ["1", "ok"], ["2", "FAILED"], ["look", "at:"], ["FAILED"]]
    assert "   look at: its header\n" in out
    status, out, _ = run(capsys, "ascend-check", "--target=ascend-emulator", "--all")
    assert status == 1 and [line.split()[1] for line in out.splitlines()[:4]] == ["ok", "FAILED", "at:", "ok"]


def test_the_target_ascend_names_what_is_missing_here(capsys):
    status, out, err = run(capsys, "ascend-check")
    assert (status, out) == (1, "") and "no CANN toolkit" in err and "--target=ascend-emulator can" in err
    status, _, err = run(capsys, "ascend-check", "--machine=cpu", "--target=ascend-emulator")
    assert status == 2


@pytest.mark.slow
def test_an_npu_climbs_as_far_as_one_rank_reaches(capsys, monkeypatch):
    """Runs the checks of an NPU with the emulator's device instead of CANN."""
    wait_for_build(start_build())
    with own_targets():
        names, heaps = targets(1)
        monkeypatch.setattr(ascend_check, "run_needs", lambda environment, devices: [])
        monkeypatch.setattr(ascend_check, "find_npu", lambda environment: Npu("an emulator", 1, 2))
        monkeypatch.setattr(ascend_check, "Device", lambda target, machine, **options: Device(names[0], machine))
        monkeypatch.setattr(hpmoe.ranks, "synchronize", lambda: [executable.check(kernel, wait=True) for heap in heaps
                                                          for executable, kernel in heap.kernels()])
        monkeypatch.setattr(bodies, "LAUNCHES", 10)
        status, out, err = run(capsys, "ascend-check", "--json")
    report = SimpleNamespace(**json.loads(out))
    assert (status, report.ok, report.ranks) == (0, True, 1), (report, err)
    assert [check["passed"] for check in report.checks] == [None if step.ranks > 1 else True for step in LADDER.values()]
