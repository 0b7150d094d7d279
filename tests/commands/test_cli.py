"""The command line: what it prints, where, and with which exit status."""

import re
import runpy
import subprocess
import sys
import time
import warnings

import pytest
from command_line import run

import hpmoe
from hpmoe import cli
from hpmoe.commands import compare, doctor, options
from hpmoe.support import progress as progress_module


@pytest.mark.parametrize("args", [(), ("--help",), ("-h",)])
def test_help_names_every_command(capsys, args):
    status, out, err = run(capsys, *args)
    assert (status, err) == (0, "")
    assert all(f"hpmoe {name}" in out for name in cli.COMMANDS)


@pytest.mark.parametrize("name", cli.COMMANDS)
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_of_a_command_names_every_flag(capsys, name, flag):
    status, out, err = run(capsys, name, flag)
    assert (status, err) == (0, "")
    assert set(re.findall(r"^  --(\w+)", out, re.MULTILINE)) == {f for f in cli.define(name) if len(f) > 1}
    assert len(out.splitlines()) <= 51 and max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_of_a_command_has_an_example_of_it(capsys, name):
    example = re.search(rf"^[ ]*hpmoe {name} (\S.*?),?$", run(capsys, name, "--help")[1].partition("\n")[2], re.MULTILINE)
    assert example is not None
    words = example[1].partition(" > ")[0].split()
    options.parse(cli.define(name), [word for word in words if word.startswith("--")])


LAYER = {"ep", "tokens", "hidden", "intermediate", "experts", "top_k", "dtype", "seed"}
SCHEDULE = {"direction", "machine", "imbalance", "routing", "step", "layer", "row_capacity", "replicas", "min_load",
            "scheme",
            "quantize", "tile_rows", "tile_cols", "order", "combine_order", "signal", "put_cols", "returns", "prefetch",
            "policy"}


def test_there_are_twelve_commands():
    assert list(cli.COMMANDS) == ["demo", "launch", "show", "simulate", "compare", "tune", "memory", "machine", "calibrate",
                                  "build", "ascend-check", "doctor"]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_command_has_at_most_10_flags_of_its_own(name):
    values = cli.define(name)
    own = {flag for flag in values if len(flag) > 1} - options.names_of_group(values)
    assert len(own) <= 10


@pytest.mark.parametrize("name, flags", [
    *((name, LAYER) for name in ("demo", "memory")),
    *((name, LAYER | SCHEDULE) for name in ("show", "simulate", "compare", "tune"))])
def test_flags_of_layers_are_identical_and_one_group(capsys, name, flags):
    """In words, values and help; only defaults are a command's own."""
    values, reference = cli.define(name), cli.define("simulate")
    assert options.names_of_group(values) == flags
    for flag in flags:
        assert values[flag].help == reference[flag].help
        assert vars(values[flag].parser) == vars(reference[flag].parser)
    group = run(capsys, name, "--help")[1].partition("\nlayer and schedule\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^  --(\w+)", group, re.MULTILINE)) == flags


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"hpmoe {hpmoe.__version__}\n")


def test_the_package_runs_as_the_command(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["hpmoe", "demp"])
    with pytest.raises(SystemExit) as end:
        runpy.run_module("hpmoe", run_name="__main__")
    out, err = capsys.readouterr()
    assert (end.value.code, out) == (2, "") and err.startswith("hpmoe: unknown command 'demp'")


@pytest.mark.parametrize("args, text", [
    ("--foo", "hpmoe: unknown flag '--foo'"),
    ("launch train.py",
     "hpmoe launch: flag --ranks is not given: it must be a number of ranks, as in hpmoe launch -n 4 train"),
    ("launch -n 2",
     "hpmoe launch: the script is not given; expected a file after the flags, as in hpmoe launch -n 2 script.py"),
    ("launch -n 2 no.py", "hpmoe launch: script 'no.py': it is not a file; expected a file after the flags, as in hpmoe "),
    ("simulate --machine=h200",
     "hpmoe simulate: flag --machine=h200: it must be one of cpu, ascend_950dt, ascend_950pr, ascend_a2, "),
    ("simulate --machine=no.toml",
     "hpmoe simulate: flag --machine=no.toml: hpmoe.load_machine: which is 'no.toml', and there "),
    ("machine ascend_a4",
     "hpmoe machine: flag --which=ascend_a4: it must be one of cpu, ascend_950dt, ascend_950pr, ascend_a2, ascend_a3, "
                          "or the path of a .toml file; did you mean ascend_a3?"),
    ("demo --top-kk=3", "hpmoe demo: unknown flag --top-kk; did you mean --top_k?"),
    ("demo --top-k=33", "hpmoe demo: flag --top_k=33: it must be at most --experts, which is 32"),
    ("demo --top-k", "hpmoe demo: missing value for flag --top_k"),
    ("compare top-k=0 prefetch", "hpmoe compare: flag --top_k=0: it must be an integer of at least 1"),
    ("demo --seed=-1", "hpmoe demo: flag --seed=-1: it must be an integer of at least 0"),
    ("demo --out=x.gif", "hpmoe demo: flag --out=x.gif: it must be a file whose name ends in .json"),
    ("compare prefetch prefetch=0 --out=x.gif",
     "hpmoe compare: flag --out=x.gif: it must be a file whose name ends in .html or .png or .svg"),
    ("demo --out=", "hpmoe demo: flag --out=: it must be a file that can be written"),
    ("demo --dtype=float64", "hpmoe demo: flag --dtype=float64: it must be one of float32, bfloat16, float16; did you mean"),
    ("demo all", "hpmoe demo: unexpected argument 'all'"),
    ("simulate --model=kimi-k2 --tp=3", "hpmoe simulate: flag --tp=3: it must be a power of two that divides --ranks and"),
    ("simulate --model=kimi-k2 --hidden=64", "hpmoe simulate: flag --hidden=64: it must be left out with --model"),
    ("simulate --tp=2", "hpmoe simulate: flag --tp=2: it must be left out without --model"),
    ("simulate --direction=both", "hpmoe simulate: flag --direction=both: it must be forward or backward"),
    ("compare prefetch unfused --direction=both", "hpmoe compare: flag --direction=both: it must be forward or backward"),
    ("show --policy=autotune", "hpmoe show: flag --policy=autotune: it must be one of critical_path, round_robin"),
    ("show --routing=zipf", "hpmoe show: flag --routing=zipf: it must be left out without --replicas or --row_capacity"),
    ("tune --row_capacity=all", "hpmoe tune: flag --row_capacity=all: it must be left out"),
    ("show --intermediate=1073741824", "hpmoe show: flag --intermediate=1073741824: it must be at most"),
    ("show --tokens=1073741824", "hpmoe show: flag --tokens=1073741824: it must be at most 1073741823 with these experts"),
    ("show --stage=tile", "hpmoe show: flag --stage=tile: it must be one of program, tiles, overlap, queues, kernel, "
                          "all; did you mean tiles?"),
    ("show --stage=kernel --machine=ascend_a2",
     "hpmoe show: flag --machine=ascend_a2: it must be cpu for --stage=kernel; what is packed for an NPU is not shown"),
    ("memory --rank_capacity_factor=-1", "hpmoe memory: flag --rank_capacity_factor=-1.0: it must be a positive number"),
    ("show --order=random", "hpmoe show: flag --order=random: it must be one of ratr, sequential"),
    ("doctor --tokens=3", "hpmoe doctor: unknown flag --tokens"),
    ("demo --repeats=99999999999999999999",
     "hpmoe demo: flag --repeats=99999999999999999999: it must be an integer of at most"),
])
def test_wrong_usage_is_one_line_and_status_2(capsys, args, text):
    status, out, err = run(capsys, *args.split())
    assert (status, out) == (2, "")
    assert err.startswith(text) and err.count("\n") == 1 and "--help" in err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_flag_with_an_underscore_may_have_dashes(name):
    """In every way to write a flag."""
    for flag in (flag for flag in cli.define(name) if "_" in flag):
        dashed, given = flag.replace("_", "-"), {"combine_order": "ratr", "row_capacity": "all",
                                                 "put_cols": "tile", "kernel_type": "macro"}.get(flag, "1")
        for args in (f"--{dashed}={given}", f"--{dashed} {given}", f"-{dashed}={given}", f"--{flag}={given}"):
            value = options.parse(cli.define(name), args.split())[flag].value
            assert value == type(value)(given), args


@pytest.mark.parametrize("args, name, value", [
    ("--policy=critical-path", "policy", None),
    ("--out --top-k", "out", "--top-k"),
    ("--out=--top-k", "out", "--top-k"),
    ("-out a-b.html", "out", "a-b.html"),
    ("--out x --no-prefetch", "prefetch", False),
    ("--prefetch --no-measured", "measured", False),
    ("--prefetch --top-k 4", "top_k", 4),
    ("-- --top-k", "a", "--top-k"),
    ("top-k=4", "a", "top-k=4"),
])
def test_dashes_are_underscores_in_names_of_flags_alone(args, name, value):
    values = cli.define("compare")
    if value is None:
        with pytest.raises(options.UsageError, match="flag --policy=critical-path: it must be one of critical_path"):
            options.parse(values, args.split(), compare.POSITIONAL)
    else:
        assert options.parse(values, args.split(), compare.POSITIONAL)[name].value == value


@pytest.mark.parametrize("error, status, text", [
    (hpmoe.LaunchError("task t3 waits"), 1, "hpmoe doctor: task t3 waits.\n"),
    (MemoryError(), 1, "hpmoe doctor: not enough memory\n"),
    (RuntimeError("Allocate memory failed\n\nmindspore/ccsrc/x.cc"), 1,
     "hpmoe doctor: not enough memory for MindSpore: Allocate memory failed\n"),
    (ImportError("hpmoe's native library is older"), 1, "hpmoe doctor: hpmoe's native library is older\n"),
    (KeyboardInterrupt(), 130, "hpmoe doctor: interrupted\n"),
    (RuntimeError("std::bad_alloc"), 1, "hpmoe doctor: not enough memory for MindSpore: std::bad_alloc\n"),
])
def test_a_failed_run_is_one_line(capsys, monkeypatch, error, status, text):
    def fail(_):
        raise error

    monkeypatch.setattr(doctor, "run", fail)
    assert run(capsys, "doctor") == (status, "", text)


def test_a_warning_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "run", lambda _: warnings.warn("nowhere to keep it", stacklevel=1) or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run(capsys, "doctor") == (0, "", "warning: nowhere to keep it\n")


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m hpmoe show --stage=program | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("== forward, program") and done.stderr == ""


@pytest.mark.slow
def test_planning_needs_no_memory_for_operators():
    command = f"ulimit -d 800000; {sys.executable} -m hpmoe show --stage=program"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout[:18]) == (0, "== forward, progra"), done.stderr


def test_without_a_stdout_a_command_runs(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["--version"]) == 0
    sys.stdout.close()


def test_progress_is_silent_when_quick_and_else_names_the_step(capsys, monkeypatch):
    with progress_module.Progress("hpmoe demo") as progress:
        progress("quick")
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_module, "FIRST", 0.01)
    with progress_module.Progress("hpmoe demo") as progress:
        progress("slow")
        until, err = time.monotonic() + 60, ""
        while not err and time.monotonic() < until:
            time.sleep(0.01)
            out, err = capsys.readouterr()
            assert out == ""
    assert re.fullmatch(r"hpmoe demo: +\d+ s  slow\n", err)
