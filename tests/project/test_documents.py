"""Every README does what it says: its blocks run, its commands are commands, its links lead somewhere."""

import doctest
import functools
import importlib.util
import re
import shlex
import sys
import types
from pathlib import Path

import documents
import pytest
from documents import ROOT, blocks_of, is_like

from hpmoe import cli
from hpmoe.commands import options, running

DOCUMENTS = documents.documents()
MOST_BYTES = 12_000
LANGUAGES = {"python", "toml", "sh", "console", "diff", "text"}
FOLLOWED = [d for d in DOCUMENTS if any(block.is_step for block in blocks_of(d))]

# A command is parsed as it is written, and run with these flags after its own, which makes it quick.
SMALL = ["--ep=2", "--tokens=64", "--hidden=32", "--intermediate=16", "--experts=8", "--top_k=2"]
BALANCED = "--imbalance=1"  # the most for these
REDUCED = {
    "demo": [*SMALL, "--repeats=1"],
    "memory": [*SMALL, "--policy=dispatched_rows"],
    "show": [],
    "machine": [],
    "doctor": [],
    "simulate": SMALL,
    "compare": [*SMALL, "--repeats=1"],
    "tune": [*SMALL, "--budget=2"],
}
SMALL_MODEL = ["--model=gpt-oss", "--ranks=4", "--tokens=32", "--layouts=1", "--bands=1"]
# What takes seconds all the same.
SLOW_SESSIONS = ("transforms/README.md", "hpmoe/runtime/README.md", "hpmoe/timelines/README.md", "hpmoe/tuning/README.md")
SLOW = ("hpmoe memory", "hpmoe tune --ep=8 --tokens=4096 --policy=critical_path --budget=8",
        "hpmoe compare unfused fused --ep=8 --experts=64 --hidden=7168 --out=picture.png")
# What takes long, and the test of it.
TESTED_ELSEWHERE = {
    "hpmoe demo --processes=4": "tests/commands/test_demo_processes.py",
    "hpmoe ascend-check --target=ascend-emulator --out=mine.toml": "tests/ascend/test_ascend_check.py",
    "hpmoe calibrate": "tests/commands/test_calibrate.py",
    "hpmoe calibrate --check": "tests/commands/test_calibrate.py",
    "hpmoe calibrate --profile=op_summary_1.csv --out=mine.toml": "tests/commands/test_calibrate_profile.py",
}
COMMANDS = sorted({(document, command) for document in DOCUMENTS if not document.startswith(".github")
                   for block in blocks_of(document) if block.language in ("sh", "console")
                   for command in documents.commands_in(block)})
HPMOE = re.compile(r"(?:python -m )?hpmoe ")
IN_CI = re.findall(r'^(?:JOB|TEST|DOCS|REFERENCE)="(.*)"$', (ROOT / ".ci" / "run").read_text(), re.MULTILINE)


# Blocks.


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_says_what_it_is(document):
    for block in blocks_of(document):
        assert block.language in LANGUAGES, f"{document}:{block.line}"
        assert block.language not in ("python", "toml") or block.is_session or block.file, f"{document}:{block.line}"
        assert block.language != "text" or not re.search(r"^\$? ?(hpmoe|pip|pytest|python)\b", block.text, re.MULTILINE)
    assert documents.text_of(document).count("```") == 2 * len(blocks_of(document))
    assert not re.search(r"^ {4,}(hpmoe|pip|pytest|python3?|>>>) ", documents.prose_of(document), re.MULTILINE)


@pytest.mark.parametrize("document", [
    pytest.param(d, marks=pytest.mark.slow) if d in SLOW_SESSIONS else d
    for d in DOCUMENTS if d not in FOLLOWED and any(b.is_session for b in blocks_of(d))])
def test_sessions_run(document, monkeypatch, tmp_path):
    """The sessions of a document are one; files that it writes go to a folder that is thrown away."""
    text = "\n".join(block.text for block in blocks_of(document) if block.is_session)
    session = doctest.DocTestParser().get_doctest(text, {}, document, document, 0)
    module = types.ModuleType("session")
    monkeypatch.setitem(sys.modules, "session", module)  # a graph compiler looks names up in the module of a function
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session.globs = vars(module)
    report, runner = [], doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    runner.run(session, out=report.append)
    assert session.examples and not runner.failures, "".join(report)


@pytest.mark.slow
@pytest.mark.parametrize("document", FOLLOWED)
def test_a_page_followed_step_by_step_works(document, tmp_path):
    copy = documents.Copy(tmp_path)
    for block in blocks_of(document):
        assert copy.follow(block) == "", f"{document}:{block.line}"


@pytest.mark.parametrize("document, block", [
    (document, block) for document in DOCUMENTS for block in blocks_of(document) if block.language == "console"])
def test_commands_print_what_is_shown(document, block, capfd):
    for command, want in documents.outputs_in(block):
        cli.main(shlex.split(HPMOE.sub("", command, count=1)))
        printed = "".join(capfd.readouterr())
        assert is_like(want, printed), f"{document}:{block.line}: {command}\n{printed}"


# Commands.


def parsed(command):
    """The name and the arguments of a command of hpmoe. Raises UsageError for a flag that is none."""
    name, *args = shlex.split(HPMOE.sub("", command, count=1), comments=True)
    if name != "--version":
        values = cli.define(name)
        own = options.split_flags(values, args)[0] if name == "launch" else args  # the rest is of the script
        options.parse(values, own, getattr(cli.COMMANDS[name], "POSITIONAL", ()))
    return name, args


OURS = sorted({command for _, command in COMMANDS if HPMOE.match(command)})
ON_THEIR_WAY = {command for document, command in COMMANDS if document in FOLLOWED}  # run where the page is followed
SHOWN_TO_FAIL = {command for document in DOCUMENTS for block in blocks_of(document) if block.language == "console"
                 for command, want in documents.outputs_in(block) if want.startswith("hpmoe ")}


@pytest.mark.parametrize("command", [
    pytest.param(command, marks=pytest.mark.slow) if command in SLOW else command
    for command in sorted({*OURS} - {*TESTED_ELSEWHERE} - SHOWN_TO_FAIL - ON_THEIR_WAY)])
def test_a_command_runs(command, capfd, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    name, args = parsed(command)
    balanced = [BALANCED for arg in args if arg.startswith("--imbalance=")]
    small = SMALL_MODEL if any(arg.startswith("--model=") for arg in args) else REDUCED[name]
    assert cli.main([name, *args, *small, *balanced]) == 0, capfd.readouterr().err
    assert capfd.readouterr().out


@pytest.mark.parametrize("command", TESTED_ELSEWHERE)
def test_what_takes_long_is_tested_elsewhere(command):
    assert command in OURS and parsed(command)
    assert command.split()[1] in (ROOT / TESTED_ELSEWHERE[command]).read_text()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_commands_in_sentences_have_known_flags(document):
    for command in documents.inline_commands(document):
        assert parsed(command)


@pytest.mark.parametrize("document, command", [c for c in COMMANDS if not HPMOE.match(c[1])])
def test_other_commands_name_what_there_is(document, command):
    """Examples are run by test_examples.py, the lines of README by .ci/run."""
    written = [block.file for block in blocks_of(document) if block.file]
    if any(command in line for line in IN_CI) or shlex.split(command)[-1] in written:
        return
    match shlex.split(command):
        case ["pip", "install", target]:
            assert target == ".[bench]" and "\nbench = [" in (ROOT / "pyproject.toml").read_text()
        case ["python", "-m", module]:
            assert importlib.util.find_spec(module)
        case ["python", path, *flags] if path.startswith("examples/benchmarks/"):
            assert (ROOT / path).is_file() and options.parse(running.define(importlib.import_module(Path(path).stem)), flags)
        case ["python", path, *flags]:
            source = (ROOT / path).read_text()
            assert path.startswith("examples/") and all(flag in source for flag in flags if flag.startswith("--"))
        case ["pytest", *flags, path]:
            assert (ROOT / path).is_file() and {*flags} <= {"-q", "-s"}
        case _:
            raise AssertionError(f"{document}: nobody runs {command}")


def test_readme_has_the_commands_of_ci():
    shown = [block.text.strip() for block in blocks_of("README.md") if block.language == "sh"]
    assert len(IN_CI) == 4 and {*IN_CI[:3]} <= {*shown}


# Links and sizes.


@functools.cache
def linked(document):
    """The documents that a document leads to. Raises AssertionError for a link that leads nowhere."""
    found, here = set(), (ROOT / document).parent
    for target in documents.links_of(document):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (here / path).resolve() if path else ROOT / document
        assert file.exists() and file.is_relative_to(ROOT), f"{document}: {target}"
        name = str(file.relative_to(ROOT))
        assert not anchor or anchor in documents.anchors_of(name), f"{document}: {target}"
        found.add(name)
    return found


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    assert linked(document) is not None


def test_every_document_is_reached_from_readme():
    reached, ahead = set(), {"README.md"}
    while ahead:
        reached |= ahead
        ahead = {name for document in ahead for name in linked(document) if name.endswith(".md")} - reached
    assert {d for d in DOCUMENTS if not d.startswith(".github")} <= reached


@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d.endswith("README.md")])
def test_a_document_opens_with_a_sentence(document):
    title, empty, opening = documents.text_of(document).split("\n", 2)
    assert title.startswith("# ") and not empty
    sentence = opening.partition("\n\n")[0]
    assert re.match(r"[A-Z`].*[.]$", sentence, re.DOTALL) and not sentence.startswith(("This ", "|"))


def test_every_transform_is_in_the_table():
    rows = re.findall(r"^\| `(\w+)\(f", documents.text_of("transforms/README.md"), re.MULTILINE)
    files = [path.stem for path in (ROOT / "transforms").glob("*.py") if f"def {path.stem}(f" in path.read_text()
             or f"\ndef {path.stem}(" in path.read_text()]
    assert sorted(rows) == sorted([*files, "spmd"])


def test_every_folder_of_the_package_is_in_the_layout():
    shown = {name.split("/")[1] for name in linked("hpmoe/README.md") if name.startswith("hpmoe/")}
    told = documents.text_of("hpmoe/README.md")
    folders = [path.parent.name for path in (ROOT / "hpmoe").glob("*/__init__.py")]
    assert [name for name in folders if name not in shown and f"`{name}`" not in told] == []


def test_readme_is_short():
    assert len(documents.text_of("README.md").encode()) <= MOST_BYTES
