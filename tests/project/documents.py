"""The documents of the project taken apart, blocks, headings, links and commands, and a page followed step by step."""

import dataclasses
import doctest
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from hpmoe.kernels.build_native import find_compiler

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NOT_OURS = re.compile(r"\.(?!github)|build$|dist$")  # folders that git ignores, and its own
COPIED = ("hpmoe", "transforms", "kernels", "tests", "examples", "pyproject.toml", "README.md")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, and the line it begins in."""

    language: str
    text: str
    line: int

    @property
    def is_session(self):
        return self.language == "python" and self.text.startswith(">>> ")

    @property
    def file(self):
        """The file that the block is, named in its first line; None of another block."""
        named = re.match(r"# ([\w/]+\.(?:py|toml))\n", self.text) if self.language in ("python", "toml") else None
        return named and named[1]

    @property
    def is_step(self):
        """True if it changes a file."""
        return self.language == "diff" or self.file is not None


def documents():
    """Every page of the project, by its path from the root."""
    found = [path.relative_to(ROOT) for path in ROOT.rglob("*.md")]
    return sorted(str(path) for path in found if not any(map(NOT_OURS.match, path.parts)))


def text_of(document):
    return (ROOT / document).read_text(encoding="utf-8")


def blocks_of(document):
    text = text_of(document)
    return [Block(m[2], re.sub(rf"^{m[1]}", "", m[3], flags=re.MULTILINE), text.count("\n", 0, m.start()) + 1)
            for m in FENCE.finditer(text)]


def prose_of(document):
    return FENCE.sub("", text_of(document))


def anchors_of(document):
    """Returns the anchors that GitHub makes of the headings of a document."""
    headings = re.findall(r"^#+ (.*)$", prose_of(document), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def links_of(document):
    """The targets of links and pictures, with the document they are from."""
    return re.findall(r"\]\(([^)\s]+)\)", prose_of(document))


def commands_in(block):
    """The commands of a block of shell, those of one line one by one."""
    lines = block.text.splitlines()
    if block.language == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    return [part.strip() for line in lines for part in line.split("&&")]


def inline_commands(document):
    """The commands of `hpmoe` that stand in sentences and tables."""
    spans = re.findall(r"`([^`]+)`", prose_of(document))
    return [" ".join(span.split()) for span in spans if span.startswith("hpmoe ")]


def outputs_in(block):
    """The commands of a console block with what each must print."""
    return [tuple(part.partition("\n")[::2]) for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]]


def is_like(want, got):
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


class Copy:
    """A copy of the project in which a page is followed: its files written, its changes made, its commands run."""

    def __init__(self, folder):
        self.folder = folder
        for name in COPIED:
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, folder / name)
        for name in ("transforms", "kernels"):
            (folder / "hpmoe" / name).symlink_to(folder / name)
        compiler = folder / "compiler"  # quick to compile is enough here
        compiler.write_text(f'#!/bin/bash\nexec {shlex.join(find_compiler())} "${{@/-O3/-O0}}"\n')
        compiler.chmod(0o755)
        self.environment = {**os.environ, "PYTHONPATH": str(folder), "CXX": str(compiler),
                            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def follow(self, block):
        """Does what a block says, and returns what did not work, an empty text where all did."""
        if block.language == "diff":
            return self._change(block.text)
        if block.file:
            path = self.folder / block.file
            if path.exists():
                return f"{block.file} is there already"
            path.write_text(block.text.partition("\n")[2], encoding="utf-8")
        elif block.is_session:
            session = self.folder / "session.txt"
            session.write_text(block.text, encoding="utf-8")
            return self.run(f"{sys.executable} -m doctest -o ELLIPSIS {session}")
        elif block.language == "sh":
            return "".join(map(self.run, commands_in(block)))
        return ""

    def run(self, command):
        done = subprocess.run(command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True,
                              timeout=300, check=False)
        return f"{command}\n{done.stdout}{done.stderr}" if done.returncode else ""

    def _change(self, diff):
        """Makes the changes of a diff, found by their lines alone; returns what was not found once."""
        for part in re.split(r"^--- ", diff, flags=re.MULTILINE)[1:]:
            name, *hunks = re.split(r"\n@@.*\n", part)
            path = self.folder / name
            text = path.read_text(encoding="utf-8")
            for hunk in hunks:
                lines = [(line[:1], line[1:]) for line in hunk.rstrip("\n").split("\n")]
                before, after = ("".join(f"{line}\n" for sign, line in lines if sign != left_out) for left_out in "+-")
                if text.count(before) != 1:
                    return f"{name} has {text.count(before)} times\n{before}"
                text = text.replace(before, after)
            path.write_text(text, encoding="utf-8")
        return ""
