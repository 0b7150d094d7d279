"""The scripts of examples/benchmarks as commands: help, flags, and a start from the command line."""

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import run_script

from hpmoe.commands import options, running

FOLDER = Path(__file__).parents[2] / "examples" / "benchmarks"
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if "script.main(" in path.read_text())


def test_the_page_lists_every_script():
    assert len(SCRIPTS) == 12 and re.findall(r"^\| `(\w+)\.py` \|", (FOLDER / "README.md").read_text(), re.MULTILINE) == [
        "layer", "call", "processes", "virtual_ranks", "hosts", "permute", "planning", "paper_table", "validate",
        "predict_operators", "schedule_grid", "ablation"]


@pytest.mark.parametrize("name", SCRIPTS)
def test_help_names_every_flag_and_an_example(capsys, name):
    script = importlib.import_module(name)
    status, out, err = run_script(capsys, script, "--help")
    assert (status, err) == (0, "") and out.startswith(f"{name}.py: {script.SUMMARY}")
    assert set(re.findall(r"^  --(\w+)", out, re.MULTILINE)) == {f for f in running.define(script) if len(f) > 1}
    assert len(out.splitlines()) <= 45 and max(map(len, out.splitlines())) <= 120
    example = re.search(rf"^  python examples/benchmarks/{name}.py (.*)$", out, re.MULTILINE)
    options.parse(running.define(script), example[1].split(), getattr(script, "POSITIONAL", ()))


def test_a_script_runs_from_any_folder(tmp_path):
    command = [sys.executable, FOLDER / "planning.py", "--rown=3"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    told = "planning.py: unknown flag --rown; did you mean --rows? See planning.py --help.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)
