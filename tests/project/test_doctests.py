"""Every example in a docstring runs as written; those of documents are in test_documents.py."""

import doctest
import importlib.util
import pkgutil
import types
from pathlib import Path

import pytest

PACKAGES = ("hpmoe", "hpmoe.transforms", "hpmoe.kernels")
NOT_MODULES = {
    "hpmoe.kernels._native", "hpmoe.kernels._emulator",
    "hpmoe.planner._planner",  # shared libraries for ctypes, suffixed like modules
}
BENCHMARKS = Path(__file__).parents[2] / "examples" / "benchmarks"
NEED_PYTORCH = {"pytorch_loop", "pytorch_ranks"}  # which only the extra `bench` brings


def module_names():
    """All modules with examples by dotted name: a path would import transforms/ and kernels/ a second time."""
    names = set(PACKAGES)
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        names.update(module.name for module in pkgutil.walk_packages(path, f"{package}."))
    benchmarks = {path.stem for path in BENCHMARKS.glob("*.py")} - NEED_PYTORCH
    return sorted(name for name in (names - NOT_MODULES) | benchmarks if ">>> " in source_of(name))


def source_of(name):
    return Path(importlib.util.find_spec(name).origin).read_text(encoding="utf-8")


def assert_examples_hold(doctests):
    report = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in doctests:
        runner.run(test, out=report.append)
    assert not runner.failures, "".join(report)


@pytest.mark.parametrize("name", module_names())
def test_docstring_examples_run(name, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert_examples_hold(doctest.DocTestFinder().find(importlib.import_module(name)))


def test_wrong_example_is_reported():
    module = types.ModuleType("wrong", ">>> 1 + 1\n3\n")
    with pytest.raises(AssertionError, match=r"Expected:\s+3\s+Got:\s+2"):
        assert_examples_hold(doctest.DocTestFinder().find(module))
