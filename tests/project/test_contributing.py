"""CONTRIBUTING and the changelog name commands, files and versions that there are."""

import importlib.util
import os
import re
import shlex
from pathlib import Path

import pytest

import hpmoe
from hpmoe import cli

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github"
GUIDE = (FOLDER / "CONTRIBUTING.md").read_text(encoding="utf-8")
CHANGES = (FOLDER / "CHANGELOG.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
PROJECT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", GUIDE, re.DOTALL) for line in block.splitlines()]
# Programs that the extras or the machine bring.
TOOLS = {"pytest", "ruff", "clang-format", "find", "xargs", "pip", "python3", "."}


def parts(line):
    """The commands of a line of a shell, each split into words."""
    return [shlex.split(part) for part in re.split(r"&&|\|", line)]


def fault(words):
    """Returns the missing thing that a command of the guide names, or None."""
    program, *arguments = words
    if program == "python":
        return None if importlib.util.find_spec(arguments[1]) else f"no module {arguments[1]}"
    if program == "hpmoe":
        return None if arguments[0] in cli.COMMANDS else f"no command {arguments[0]}"
    if "/" in program:
        return None if os.access(ROOT / program, os.X_OK) else f"{program} cannot be run"
    if program not in TOOLS:
        return f"{program} is not known"
    if program != "pytest":
        return None
    paths = [a for a in arguments if not a.startswith("-")]
    if "-m" in arguments and f'"{(marker := paths.pop(0))}: ' not in PROJECT:
        return f"no marker {marker}"
    missing = [path for path in paths if not (ROOT / path).exists()]
    return f"no {missing}" if missing else None


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_guide_exists(line, request):
    assert [fault(words) for words in parts(line)] == [None] * len(parts(line))
    for flag in re.findall(r"--update-\S+", line):
        assert isinstance(request.config.getoption(flag), bool)


@pytest.mark.parametrize("line", ["pytest tests/nowhere", "pytest -m nowhere", "python -m hpmoe.nowhere", "hpmoe nothing",
                                  ".ci/nothing", "make"])
def test_a_planted_fault_is_found(line):
    assert fault(*parts(line)) is not None


@pytest.mark.parametrize("line", [line for line in COMMANDS if line.startswith(("ruff", "find", ".ci/types"))])
def test_ci_runs_the_same_check(line):
    assert re.search(rf"^ *{re.escape(line)}$", CI, re.MULTILINE)


def test_the_extra_of_the_guide_has_the_tools():
    extras = {name: re.findall('"(.*?)"', needs) for name, needs in re.findall(r"^(\w+) = (\[.*\])$", PROJECT, re.MULTILINE)}
    assert "'.[dev]'" in GUIDE and "lint" in extras["dev"][0] and "test" in extras["dev"][0]
    assert {re.match(r"[\w-]+", need).group() for need in extras["lint"]} == {"ruff", "clang-format", "pyright"}


def test_the_changelog_has_this_version_and_names_that_there_are():
    version = re.search(r'^version = "(.*)"', PROJECT, re.MULTILINE).group(1)
    assert re.findall(r"^## \[(.*?)\]", CHANGES, re.MULTILINE)[:2] == ["Unreleased", version]
    kinds = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}
    assert set(re.findall(r"^### (.*)$", CHANGES, re.MULTILINE)) <= kinds
    for dotted in re.findall(r"`hpmoe\.(\w+)", CHANGES):
        assert hasattr(hpmoe, dotted) or importlib.util.find_spec(f"hpmoe.{dotted}") or dotted in ("program", "taskflow")
