"""Which version hpmoe is, and what it says of a MindSpore that is not the tested one."""

import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import hpmoe
from hpmoe.support import versions

PYPROJECT = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")


def test_the_version_is_that_of_the_installed_package():
    assert hpmoe.__version__ == metadata.version("hpmoe")
    assert f'\nversion = "{hpmoe.__version__}"\n' in PYPROJECT


def test_a_copy_that_is_not_installed_has_no_version(monkeypatch):
    def unknown(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", unknown)
    assert versions.version("hpmoe") is None


def test_tests_pin_mindspore_and_newer_ones_install():
    tested = ".".join(map(str, versions.MINDSPORE))
    assert re.findall('"mindspore(.*)"', PYPROJECT) == [f">={tested}", f"=={tested}.*"]


@pytest.mark.parametrize("version, is_tested", [
    ("2.10.0", True), ("2.10.9", True), ("2.10.1rc1", True), ("2.9", True), ("2.10", True),
    ("2.11.0", False), ("2.11.0rc1", False), ("3.0.0", False), ("2.100", False), ("3", False),
])
def test_a_newer_minor_version_is_not_tested(pretended_mindspore, version, is_tested):
    pretended_mindspore(version)
    sentence = f"MindSpore {version} is installed; hpmoe is tested with 2.10"
    assert versions.untested_mindspore() == ("" if is_tested else sentence)


@pytest.mark.parametrize("version, lines", [("2.10.1", 0), ("2.11.0", 1)])
def test_the_import_warns_of_a_newer_mindspore_first(pretended_mindspore, version, lines):
    """The program imports hpmoe first."""
    code = "import sys\nsys.modules['mindspore'] = None\ntry: import hpmoe\nexcept ImportError: pass"
    path = os.pathsep.join([str(pretended_mindspore(version)), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True,
                          env={**os.environ, "PYTHONPATH": path}, timeout=60)
    assert done.stderr == lines * "<string>:3: UserWarning: MindSpore 2.11.0 is installed; hpmoe is tested with 2.10\n"
