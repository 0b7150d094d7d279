"""Cached files: damaged or foreign files are survived, permissions are private, and no reader finds half a file."""

import itertools
import json
import os
import stat

import pytest

from hpmoe import ArgumentError, cpu
from hpmoe.commands.options import is_writable
from hpmoe.kernels.ascendc import build as ascend_build
from hpmoe.machines import ascend_a3, cached_calibration
from hpmoe.machines.machine import Body
from hpmoe.runtime import cached_plans
from hpmoe.support.cached_files import MOST_BYTES, read_object, write_object
from hpmoe.tuning import cached_trials

RATES = {"sync.task_us": 1.0, "cube.flops_per_us": 1.0, "l2.bytes": 1.0, "host.cores": 1.0,
         "bodies": (Body("GMM", "float32", 0.5, 1, 2, 3),)}


@pytest.fixture
def calibration(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return cached_calibration.store_calibration(RATES)


def in_place(path, make):
    path.unlink()
    make(path)


IN_PLACE = {
    "a FIFO": (os.mkfifo, "it is no regular file"),
    "a folder": (os.mkdir, "it is no regular file"),
    "a device without an end": (lambda path: path.symlink_to("/dev/zero"), "it is no regular file"),
    "a large file": (lambda path: path.write_bytes(b" " * (MOST_BYTES + 1)), "it is larger than 16 MiB"),
    "deep lists": (lambda path: path.write_text("[" * 200_000), "its JSON is nested too deeply"),
    "deep objects": (lambda path: path.write_text('{"a":' * 200_000), "its JSON is nested too deeply"),
    "a list": (lambda path: path.write_text("[]"), "it holds a list, not an object"),
    "no text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "UnicodeDecodeError"),
}


@pytest.mark.parametrize("what", IN_PLACE)
def test_what_is_no_kept_file_is_said_at_once(calibration, what):
    make, text = IN_PLACE[what]
    in_place(calibration, make)
    with pytest.raises(ValueError):
        read_object(calibration)
    with pytest.raises(ArgumentError, match=text):
        cpu(calibrated=True)


NOT_MEASURED = [*itertools.product(RATES, ("-5", "NaN", "Infinity", "true", '"many"', "1" + "0" * 400))]


@pytest.mark.parametrize("name, value", NOT_MEASURED)
def test_numbers_that_nothing_measured_are_refused(calibration, name, value):
    old = "0.5" if name == "bodies" else f'"{name}": 1.0'
    text = calibration.read_text()
    calibration.write_text(text.replace(old, value if name == "bodies" else f'"{name}": {value}'))
    assert calibration.read_text() != text
    with pytest.raises(ArgumentError, match="share is" if name == "bodies" else f"{name} is"):
        cpu(calibrated=True)


@pytest.mark.parametrize("change", [{"share": -5.0}, {"share": float("nan")}, {"share": 0}, {"rows": -1}, {"cols": "2"},
                                    {"most_rows": float("inf")}, {"kind": 3}, {"dtype": None}])
def test_a_body_is_of_numbers_that_can_be(change):
    (name, value), = change.items()
    with pytest.raises(ArgumentError, match=f"hpmoe.machines.machine.Body: {name} is {value!r}; it must be a"):
        ascend_a3.replace(bodies=(Body(**{"kind": "GMM", "dtype": "float32", "share": 0.5, **change}),))


def test_it_is_its_users_alone_and_replaced_in_one_step(tmp_path, monkeypatch):
    path = tmp_path / "new" / "kept.json"
    write_object(path, {"a": 1})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600 and read_object(path) == {"a": 1}
    in_place(path, os.mkfifo)
    write_object(path, {"a": 2})
    assert read_object(path) == {"a": 2}
    with monkeypatch.context() as patch, pytest.raises(ZeroDivisionError):
        patch.setattr(json, "dumps", lambda *args, **options: 1 / 0)
        write_object(path, {"a": 3})
    assert read_object(path) == {"a": 2} and os.listdir(path.parent) == [path.name]


def test_a_fifo_is_no_place_for_a_result(tmp_path):
    os.mkfifo(tmp_path / "held")
    with pytest.raises(ascend_build.BuildError, match="nothing can be built in"), ascend_build.alone_in(tmp_path):
        pass
    os.mkfifo(tmp_path / "out")
    assert not is_writable(tmp_path / "out") and is_writable(tmp_path / "new") and not (tmp_path / "new").exists()


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_cache_folders_are_their_users_alone(tmp_path, monkeypatch):
    """New ones, and those that an earlier version has made for all to read."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tmp_path.chmod(0o755)
    path = tmp_path / "hpmoe" / "plans" / "kept.json"
    write_object(path, {"a": 1})
    assert [mode_of(each) for each in (path.parent, path.parent.parent, tmp_path)] == [0o700, 0o700, 0o755]
    for change in (lambda: write_object(path, {"a": 1}), lambda: read_object(path)):
        path.parent.chmod(0o777)
        change()
        assert mode_of(path.parent) == 0o700


def test_files_of_another_user_are_refused_with_a_warning(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    calibration = cached_calibration.store_calibration(RATES)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    told = f"{tmp_path}/hpmoe belongs to user {os.getuid()}, expected user {os.getuid() + 1}; remove it, or set"
    with pytest.raises(ArgumentError, match=told):
        cpu(calibrated=True)
    with pytest.warns(UserWarning, match=f"autotune: the times of plans cannot be kept: {told}"):
        cached_trials.store("key", {})
    with pytest.warns(UserWarning, match=f"autotune: the times kept before are not read: {told}"):
        assert cached_trials.load("key", ascend_a3) == {}
    with pytest.warns(UserWarning, match="a cached plan cannot be used and is made again: .*belongs to user"):
        (tmp_path / "hpmoe" / "plans").mkdir()
        assert cached_plans._load("key") is None
    with pytest.raises(PermissionError, match=f"{calibration.name} belongs to user"):
        monkeypatch.setattr("hpmoe.support.cached_files._check_folder", lambda folder: None)
        read_object(calibration)
