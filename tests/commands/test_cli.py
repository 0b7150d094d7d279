"""The command line: what it prints, where, and with which exit status."""

import json
import os
import re
import subprocess
import sys
import time
import warnings

import pytest
from command_line import run
from small_timelines import check_chrome_trace

import hpmoe
from hpmoe import cli
from hpmoe.commands import compare, demo, doctor, options, plan, show
from hpmoe.support import progress as progress_module

SMALL = ["--ep=2", "--tokens=6", "--hidden=8", "--intermediate=4", "--experts=4", "--top_k=2", "--repeats=2"]


# Help and errors.


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
    assert len(out.splitlines()) <= 45 and max(map(len, out.splitlines())) <= 120


@pytest.mark.parametrize("name", [name for name in cli.COMMANDS if name != "build"])  # which takes nothing but its target
def test_help_of_a_command_has_an_example_of_it(capsys, name):
    example = re.search(rf"^[ ]*hpmoe {name} (\S.*?),?$", run(capsys, name, "--help")[1].partition("\n")[2], re.MULTILINE)
    assert example is not None
    words = example[1].partition(" > ")[0].split()
    options.parse(cli.define(name), [word for word in words if word.startswith("--")])


@pytest.mark.parametrize("command", demo.NEXT)
def test_what_demo_ends_with_is_a_command(command):
    program, name, *args = command.split()
    assert program == "hpmoe" and cli.COMMANDS[name]
    options.parse(cli.define(name), [a for a in args if a.startswith("--")])


def test_version(capsys):
    assert run(capsys, "--version")[:2] == (0, f"hpmoe {hpmoe.__version__}\n")


def test_the_package_runs_as_the_command():
    done = subprocess.run([sys.executable, "-m", "hpmoe", "demp"], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr.splitlines()[0][:29]) == (2, "", "hpmoe: unknown command 'demp'")


@pytest.mark.parametrize("args, text", [
    ("demp", "hpmoe: unknown command 'demp'; did you mean demo?"),
    ("--foo", "hpmoe: unknown flag '--foo'"),
    ("demo --toks=3", "hpmoe demo: unknown flag --toks; did you mean --tokens?"),
    ("demo --top-kk=3", "hpmoe demo: unknown flag --top-kk; did you mean --top_k?"),
    ("demo --top-k=33", "hpmoe demo: flag --top_k=33: it must be at most --experts, which is 32"),
    ("demo --top-k", "hpmoe demo: missing value for flag --top_k"),
    ("compare top-k=0 dedup", "hpmoe compare: flag --top_k=0: it must be an integer of at least 1"),
    ("demo --ep=abc", "hpmoe demo: flag --ep=abc: it must be an integer of at least 1"),
    ("demo --ep 0", "hpmoe demo: flag --ep=0: it must be an integer of at least 1"),
    ("demo --seed=-1", "hpmoe demo: flag --seed=-1: it must be an integer of at least 0"),
    ("demo --tokens", "hpmoe demo: missing value for flag --tokens"),
    ("demo --experts=30", "hpmoe demo: flag --experts=30: it must be a multiple of --ep, which is 4"),
    ("demo --top_k=33", "hpmoe demo: flag --top_k=33: it must be at most --experts, which is 32"),
    ("demo --out=no/such/folder/x.json", "hpmoe demo: flag --out=no/such/folder/x.json: it must be a file that can be"),
    ("demo --out=x.gif", "hpmoe demo: flag --out=x.gif: it must be a file whose name ends in .json"),
    ("compare dedup dedup=0 --out=x.gif",
     "hpmoe compare: flag --out=x.gif: it must be a file whose name ends in .html or .png or .svg"),
    ("demo --out=", "hpmoe demo: flag --out=: it must be a file that can be written"),
    ("demo --json=3", "hpmoe demo: flag --json=3: it must be true or false"),
    ("demo --dtype=float64", "hpmoe demo: flag --dtype=float64: it must be one of float32, bfloat16, float16; did you mean"),
    ("demo all", "hpmoe demo: unexpected argument 'all'"),
    ("show --ep=8192 --experts=8192", "hpmoe show: flag --ep=8192: it must be at most 4096"),
    ("show --experts=4194306", "hpmoe show: flag --experts=4194306: it must be at most 4194304"),
    ("show --hidden=1073741824", "hpmoe show: flag --hidden=1073741824: it must be at most 1073741823 with these experts"),
    ("plan-layer --tp=3", "hpmoe plan-layer: flag --tp=3: it must be a power of two that divides --ranks and the model's"),
    ("plan --intermediate=1073741824", "hpmoe plan: flag --intermediate=1073741824: it must be at most 67108863 with these"),
    ("plan --tokens=1073741824", "hpmoe plan: flag --tokens=1073741824: it must be at most 268435455 with these experts"),
    ("simulate --tokens=8388608",
     "hpmoe simulate: flag --tokens=8388608: it must be at most 4194304 with --ep=8 and --top_k=8"),
    ("show --stage=tile", "hpmoe show: flag --stage=tile: it must be one of program, tiles, overlap, queues, kernel, "
                          "all; did you mean tiles?"),
    ("show --stage=kernel --machine=ascend_a2",
     "hpmoe show: flag --machine=ascend_a2: it must be cpu for --stage=kernel; what is packed for an NPU is not shown"),
    ("show --rank_capacity_factor=0", "hpmoe show: flag --rank_capacity_factor=0.0: it must be a positive number"),
    ("memory --rank_capacity_factor=-1", "hpmoe memory: flag --rank_capacity_factor=-1.0: it must be a positive number"),
    ("show --order=random", "hpmoe show: flag --order=random: it must be one of ratr, sequential"),
    ("doctor --tokens=3", "hpmoe doctor: unknown flag --tokens"),
    ("plan --runs=99999999999999999999", "hpmoe plan: flag --runs=99999999999999999999: it must be an integer of at most"),
])
def test_wrong_usage_is_one_line_and_status_2(capsys, args, text):
    status, out, err = run(capsys, *args.split())
    assert (status, out) == (2, "")
    assert err.startswith(text) and err.count("\n") == 1 and "--help" in err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_flag_with_an_underscore_may_have_dashes(name):
    """In every way to write a flag."""
    for flag in (flag for flag in cli.define(name) if "_" in flag):
        dashed, given = flag.replace("_", "-"), {"combine_order": "ratr"}.get(flag, "1")
        for args in (f"--{dashed}={given}", f"--{dashed} {given}", f"-{dashed}={given}", f"--{flag}={given}"):
            value = options.parse(cli.define(name), args.split())[flag].value
            assert value == type(value)(given), args


@pytest.mark.parametrize("args, name, value", [
    ("--policy=critical-path", "policy", None),
    ("--out --top-k", "out", "--top-k"),
    ("--out=--top-k", "out", "--top-k"),
    ("-out a-b.html", "out", "a-b.html"),
    ("--out x --no-dedup", "dedup", False),
    ("--dedup --no-measured", "measured", False),
    ("--dedup --top-k 4", "top_k", 4),
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
    (hpmoe.LaunchError("task t3 waits"), 1, "hpmoe doctor: task t3 waits\n"),
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


def test_a_command_that_fails_leaves_no_empty_file(capsys, monkeypatch, tmp_path):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "layer_inputs", fail)
    status, _, err = run(capsys, "demo", *SMALL, f"--out={tmp_path / 'new.json'}")
    assert (status, err, list(tmp_path.iterdir())) == (130, "hpmoe demo: interrupted\n", [])


def test_a_warning_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "run", lambda _: warnings.warn("nowhere to keep it", stacklevel=1) or 0)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert run(capsys, "doctor") == (0, "", "warning: nowhere to keep it\n")


def test_a_reader_that_leaves_early_is_no_error():
    command = f"{sys.executable} -m hpmoe show --stage=program | head -1"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.startswith("== forward, program") and done.stderr == ""


def test_planning_needs_no_memory_for_operators():
    command = f"ulimit -d 800000; {sys.executable} -m hpmoe show --stage=program"
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout[:18]) == (0, "== forward, progra"), done.stderr


def test_without_a_stdout_a_command_runs(capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)
    assert cli.main(["--version"]) == 0
    sys.stdout.close()


# Progress.


def test_progress_is_silent_when_quick_and_names_the_step_when_not(capsys, monkeypatch):
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


def test_ctrl_c_ends_a_command_that_uses_mindspore():
    code = """
import signal
import sys
import mindspore as ms
from hpmoe import cli
from hpmoe.commands import doctor

def run(_):
    ms.grad(lambda x: x + 1)(ms.Tensor([1.0])).asnumpy()
    signal.raise_signal(signal.SIGINT)

doctor.run = run
sys.exit(cli.main(["doctor"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "hpmoe doctor: interrupted\n")


def command(tmp_path, code):
    """A process of these lines in a file named as the command is, with MindSpore's handler of Ctrl-C in place."""
    script = tmp_path / "hpmoe"
    script.write_text(f"""
import os, signal, sys, time
from hpmoe import cli
from hpmoe.commands import doctor
import mindspore as ms
ms.grad(lambda x: x + 1)(ms.Tensor([1.0])).asnumpy()
{code}
""")
    return subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("program", [["hpmoe"], ["-m", "hpmoe", "doctor"]])
def test_ctrl_c_in_the_imports_of_the_command_is_one_line(tmp_path, monkeypatch, program):
    """Of which MindSpore's, here a module that presses it, takes longest."""
    (tmp_path / "hpmoe").write_text("import hpmoe")
    (tmp_path / "mindspore.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = subprocess.run([sys.executable, *program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "hpmoe: interrupted\n")


@pytest.mark.parametrize("code, text", [
    ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", "hpmoe: interrupted\n"),
    ("doctor.run = lambda _: (os.kill(os.getpid(), signal.SIGINT), time.sleep(30)); sys.exit(cli.main(['doctor']))",
     "hpmoe doctor: interrupted\n"),
])
def test_ctrl_c_is_never_mindspores_in_the_command(tmp_path, code, text):
    with command(tmp_path, code) as process:
        assert (process.communicate(timeout=120)[1], process.returncode) == (text, 130)


# Demo.


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


def test_demo_writes_what_the_timelines_say(capsys, monkeypatch, tmp_path):
    kept = []
    monkeypatch.setattr(demo, "chrome_json", lambda timelines: kept.append(timelines) or chrome_json(timelines))
    chrome_json = hpmoe.timelines.chrome.chrome_json
    path = tmp_path / "timeline.json"
    assert run(capsys, "demo", *SMALL, f"--out={path}")[0] == 0
    check_chrome_trace(path.read_text(), kept[0])


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


def test_nan_is_an_error_too(capsys, monkeypatch, tmp_path):
    right = demo.moe_ffn_op_by_op
    monkeypatch.setattr(demo, "moe_ffn_op_by_op", lambda *a: right(*a) * float("nan"))
    status, out, _ = run(capsys, "demo", *SMALL, f"--out={tmp_path / 't.json'}")
    assert status == 1 and "nan   TOO LARGE" in out


# Show.


def test_show_in_half_precision(capsys):
    status, out, _ = run(capsys, "show", "--dtype=bfloat16", "--stage=program")
    assert status == 0
    assert "{ lambda hidden_states:bf16[8,16] topk_ids:i32[8,2] topk_weights:f32[8,2] gate_up_weight:bf16" in out


def test_show_with_a_limit(capsys):
    status, out, _ = run(capsys, "show", "--rank_capacity_factor=1.5", "--stage=tiles", "--direction=forward")
    assert status == 0 and "# moe_ffn | limit_rows(rank_capacity_factor=1.5) | tile_partition" in out


def test_show_prints_every_stage_of_both_directions(capsys):
    status, out, _ = run(capsys, "show")
    headings = re.findall(r"^== (\w+), (\w+): ", out, re.MULTILINE)
    assert status == 0
    assert headings == [(d, s) for d in ("forward", "backward") for s in show.STAGES]
    for text in ("{ lambda hidden_states:f32[8,16]", "all_to_all", "put[slot 0 -> peer 0]", "queue worker.0",
                 "kernel cpu"):
        assert text in out


def test_show_json_has_the_text_and_the_numbers(capsys):
    status, out, _ = run(capsys, "show", "--json", "--direction=forward", "--stage=queues", "--tile_rows=4",
                         "--machine=ascend_a3", "--order=sequential", "--signal=peer", "--policy=round_robin")
    (stage,) = json.loads(out)["stages"]
    assert status == 0 and (stage["direction"], stage["stage"]) == ("forward", "queues")
    assert f"tasks={stage['tasks']} events={stage['events']} " in stage["text"]
    assert len(stage["queues"]) == 72 and sum(stage["queues"].values()) == stage["tasks"]
    for option in ("rows=4", "order=sequential, signal=peer", "ascend_a3, round_robin"):
        assert option in stage["text"].splitlines()[0]


def test_show_says_that_ascend_has_no_kernel(capsys):
    status, out, _ = run(capsys, "show", "--machine=ascend_a2", "--direction=backward")
    assert status == 0
    assert out.endswith("== backward, kernel: packed for one launch\n"
                        "none for ascend_a2: only what is packed for the cpu is shown\n")


def test_show_of_real_sizes_needs_no_memory(capsys):
    status, out, _ = run(capsys, "show", "--ep=32", "--tokens=4096", "--hidden=7168", "--intermediate=2048",
                         "--experts=256", "--top_k=8", "--stage=program")
    assert status == 0 and "gate_up_weight:f32[8,7168,4096]" in out


# Plan.


def test_plan_over_experts_fits_a_slope(capsys, monkeypatch):
    monkeypatch.setattr(plan, "EXPERTS", (2, 4))
    sizes = ["--ep=2", "--tokens=8", "--hidden=8", "--intermediate=4", "--top_k=1", "--runs=1", "--growth"]
    status, out, _ = run(capsys, "plan", *sizes, "--json")
    planned = json.loads(out)
    (fast, slow), slope = planned["processor_ms"]["forward"], planned["slope"]["forward"]
    assert status == 0 and 2 ** slope == pytest.approx(slow / fast)
    status, out, _ = run(capsys, "plan", *sizes)
    assert status == 0 and "log-log slope" in out


def test_plan_times_every_step_and_counts_what_it_planned(capsys):
    sizes = ["--ep=4", "--tokens=256", "--hidden=512", "--intermediate=256", "--experts=16", "--top_k=4", "--runs=2"]
    status, out, _ = run(capsys, "plan", *sizes, "--json", "--profile", "--rows=600")
    planned = json.loads(out)
    assert status == 0 and planned["rows"] == 600 and planned["profile"]
    for direction in ("forward", "backward"):
        ms = planned[direction]["ms"]
        assert set(ms) == {*plan.STEPS, "total", "processor", "read"} and ms["pack"] > 0 and ms["verify"] > 0
        shown = ["--ep=4", *sizes[1:-1], "--machine=ascend_a3", "--stage=queues", f"--direction={direction}", "--json"]
        (stage,) = json.loads(run(capsys, "show", *shown)[1])["stages"]
        assert planned[direction]["tasks"] < stage["tasks"]  # show plans for any routing, that is 1024 rows a rank
    status, out, _ = run(capsys, "plan", *sizes)
    lines = out.splitlines()
    assert status == 0 and "at most 1024 received rows; median of 2 runs" in lines[0]
    assert [line.split()[0] for line in lines[2:-6]] == [*plan.STEPS, "total", "processor", "read"]
