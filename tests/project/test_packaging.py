"""pip builds one package tree with every module and C++ source, and a clear error without a compiler."""

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from setuptools.errors import CompileError, PlatformError

from hpmoe.kernels import build_native
from hpmoe.planner import planner
from hpmoe.support import loading

ROOT = Path(__file__).parents[2]
FOLDERS = {"hpmoe": "hpmoe", "transforms": "hpmoe/transforms", "kernels": "hpmoe/kernels"}
FAKE_COMPILER = '#!/bin/sh\nfor last; do :; done\necho compiled > "$last"\n'


def run_build(call, compiler, folder):
    """Run one hook of the build backend in a copy of the sources, as pip does; a fake compiler keeps it quick."""
    tree = folder / "tree"
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    return call_backend(call, compiler, folder)


def call_backend(call, compiler, folder):
    """Runs one hook of the build backend in the copy of the sources, without a terminal."""
    return subprocess.run(
        [sys.executable, "-c", f"from setuptools import build_meta; build_meta.{call}({str(folder)!r})"],
        cwd=folder / "tree",
        env={**os.environ, "CXX": str(compiler)},
        capture_output=True,
        text=True,
        start_new_session=True,
    )


@pytest.fixture(scope="module")
def fake_compiler(tmp_path_factory):
    path = tmp_path_factory.mktemp("bin") / "c++"
    path.write_text(FAKE_COMPILER)
    path.chmod(0o755)
    return path


def build(call, suffix, compiler, folder):
    done = run_build(call, compiler, folder)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob(f"*{suffix}")
    return path


@pytest.fixture(scope="module")
def wheel(fake_compiler, tmp_path_factory):
    return build("build_wheel", ".whl", fake_compiler, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(fake_compiler, tmp_path_factory):
    return build("build_sdist", ".tar.gz", fake_compiler, tmp_path_factory.mktemp("sdist"))


def source_files():
    """Every source and README in the three folders, relative to the root."""
    kinds = {".py", ".h", ".cc", ".asc", ".md"}
    return [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in kinds]


def test_wheel_holds_every_source_under_hpmoe(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hpmoe"}
    installed = {"/".join((FOLDERS[path.parts[0]], *path.parts[1:])) for path in source_files()}
    assert not installed - names


def test_wheel_is_platform_specific_and_holds_the_libraries(wheel):
    _, _, python, abi, platform = wheel.stem.split("-")
    assert (python, abi) == ("py3", "none") and platform != "any"
    for library in build_native.LIBRARIES:
        assert zipfile.ZipFile(wheel).read(library) == b"compiled\n"


def test_wheel_says_its_license_and_that_it_is_typed(wheel):
    archive = zipfile.ZipFile(wheel)
    (folder,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
    metadata = archive.read(f"{folder}/METADATA").decode().splitlines()
    for line in ("License-Expression: Apache-2.0", "License-File: LICENSE", "Classifier: Typing :: Typed"):
        assert line in metadata
    assert archive.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert archive.read("hpmoe/py.typed") == b""


def test_sdist_says_its_license_and_that_it_is_typed(sdist):
    names = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    assert {"LICENSE", "hpmoe/py.typed"} <= names


def test_sdist_holds_every_source_and_nothing_built(sdist):
    names = {name.partition("/")[2] for name in tarfile.open(sdist).getnames()}
    assert not {path.as_posix() for path in source_files()} - names
    assert not [name for name in names if name.endswith(".so")]


def test_python_started_in_a_clone_says_what_to_do(tmp_path):
    """-S leaves out the packages that would serve hpmoe.kernels here, as after `pip install .`."""
    shutil.copytree(ROOT / "hpmoe", tmp_path / "hpmoe", ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    python = subprocess.run([sys.executable, "-S", "-c", "import hpmoe"], cwd=tmp_path, capture_output=True, text=True)
    assert python.returncode == 1 and python.stderr.splitlines()[-1] == (
        f"ImportError: import hpmoe: found the source folder {tmp_path}/hpmoe, which has no hpmoe.kernels; expected the "
        f"installed package. Start Python outside of {tmp_path}, or install with pip install -e {tmp_path}")


def test_a_second_build_in_a_clone_compiles_nothing(tmp_path, fake_compiler):
    """Until a source or the compiler changes; the lines for the terminal say so."""
    def built(compiler=fake_compiler):
        return call_backend("build_wheel", compiler, tmp_path).stdout

    first = run_build("build_wheel", fake_compiler, tmp_path)
    assert first.returncode == 0 and f"{fake_compiler} " in first.stdout
    again = built()
    assert f"{fake_compiler} " not in again and again.count("not compiled again") == len(build_native.LIBRARIES)
    source = tmp_path / "tree" / "hpmoe" / "planner" / "planner.h"
    source.write_text("// changed\n" + source.read_text())
    changed = built()
    assert "compiling _planner.so: " in changed and changed.count("not compiled again") == len(build_native.LIBRARIES) - 1
    other = fake_compiler.with_name("other")
    shutil.copy(fake_compiler, other)
    assert "not compiled again" not in built(other)
    assert len(list((tmp_path / "tree" / "build" / "native").iterdir())) == len(build_native.LIBRARIES)


def test_build_without_compiler_says_what_to_install(tmp_path):
    done = run_build("build_wheel", "no-such-compiler", tmp_path)
    assert done.returncode != 0
    assert "cannot find the compiler named by CXX (no-such-compiler). Install g++ or clang++" in done.stderr


def test_no_compiler_on_the_path_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PlatformError, match=r"cannot find a C\+\+ compiler \(looked for g\+\+ and clang\+\+\)"):
        build_native.find_compiler()


@pytest.mark.parametrize("compiler, error, text", [
    ("false", CompileError, "compiling hpmoe's native library failed: false -std"),
    ("true", CompileError, "compiling hpmoe's native library failed, nothing was written: true -std"),
    ("sh -c 'kill -9 $$'", CompileError, "compiling hpmoe's native library failed, killed by signal 9: sh -c"),
    ("'g++", PlatformError, "CXX is 'g.., which is no command: No closing quotation"),
])
def test_failed_compilation_keeps_the_library_of_before(monkeypatch, tmp_path, compiler, error, text):
    library = tmp_path / "_native.so"
    library.write_text("before")
    (tmp_path / "_native.so.4194305").write_text("left by a build that was killed")  # no process has this number
    monkeypatch.setenv("CXX", compiler)
    with pytest.raises(error, match=text):
        build_native.compile_library("hpmoe/kernels/_native.so", library)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]


@pytest.mark.parametrize("name", build_native.LIBRARIES)
def test_the_compiler_is_asked_for_warnings(monkeypatch, tmp_path, fake_compiler, capsys, name):
    """In .ci/run they are errors."""
    monkeypatch.setenv("CXX", str(fake_compiler))
    build_native.compile_library(name, tmp_path / "library.so")
    assert {"-Wall", "-Wextra"} <= set(capsys.readouterr().out.split())


@pytest.mark.parametrize("left", [0, 63, 5000, -1])
def test_a_library_that_is_not_whole_is_refused(left, tmp_path):
    """Loading it would kill the process, or say less."""
    compiled = planner.load()._name
    half = tmp_path / "_planner.so"
    half.write_bytes(Path(compiled).read_bytes()[:left])
    with pytest.raises(ImportError,
                       match=r"_planner.so ends too early, after [\d,]+ bytes: install the package again, or in"):
        loading.load_library(half, "hpmoe_planner_abi_version", planner.ABI_VERSION, {})
    half.write_text("no library " * 100)
    with pytest.raises(ImportError, match="hpmoe's native library .*_planner.so.*: install the package again, or in"):
        loading.load_library(half, "hpmoe_planner_abi_version", planner.ABI_VERSION, {})


@pytest.mark.parametrize("path, number", [("hpmoe/planner/planner.h", 12), ("kernels/core/abi.h", 32),
                                          ("kernels/simulator/simulate.h", 1), ("kernels/ascendc/emulator/api.h", 9)])
def test_every_function_of_a_header_is_read(path, number):
    names = ("Rank", "Status", "Failure", "Hosts", "Traffic", "Rows", "Tables", "Flow", "RunRank", "Kernel", "EmulatorRank")
    types = dict.fromkeys([f"Hpmoe{name}" for name in names] + ["emulator::Counts"], ctypes.c_void_p)
    declared = re.findall(r"^\w[\w ]+\*? (hpmoe_\w+)\(", (ROOT / path).read_text(), re.MULTILINE)
    assert list(loading.read_signatures(ROOT / path, types)) == declared and len(declared) == number


@pytest.mark.parametrize("folder", ["transforms", "kernels"])
def test_bare_import_of_a_folder_raises(folder):
    spec = importlib.util.spec_from_file_location(folder, ROOT / folder / "__init__.py")
    with pytest.raises(ImportError, match=f"import hpmoe.{folder} instead"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
