"""hpmoe doctor finds the state of a machine, and hpmoe build compiles for an NPU."""

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from command_line import run

from hpmoe import ShapeDtypeStruct, tile_partition, trace
from hpmoe.commands import doctor, doctor_ranks
from hpmoe.ir.program import Builder, Var
from hpmoe.kernels.ascendc import build as ascend_build
from hpmoe.kernels.build_native import find_compiler
from hpmoe.primitives.primitive import REGISTRY
from hpmoe.runtime.targets import find_target
from hpmoe.support.errors import ArgumentError
from hpmoe.tile_ops.functions import Function
from hpmoe.tile_ops.tile_primitive import TilePrimitive


def test_doctor_finds_this_installation_usable(capsys):
    status, out, _ = run(capsys, "doctor", "--json")
    report = json.loads(out)
    assert (status, report["ok"], report["targets"]["cpu"]["usable"]) == (0, True, True)
    assert {"absl-py", "mindspore", "numpy", "optree", "safetensors"} == set(report["packages"])
    assert report["packages"]["numpy"]["fits"] and report["native"]["gemm"] in ("own", "dnnl_sgemm")
    assert report["targets"]["ascend-emulator"]["usable"] and "no CANN toolkit" in report["targets"]["ascend"]["why"][0]
    lines = run(capsys, "doctor")[1].splitlines()
    assert lines[0] == report["verdict"] == "CPU: ready; Ascend: CANN missing" and len(lines) == 2
    text = run(capsys, "doctor", "--verbose")[1]
    assert text.splitlines()[0] == lines[0]
    assert re.search(r"^  cpu +usable$", text, re.MULTILINE)
    assert re.search(r"^  ascend +NOT USABLE$", text, re.MULTILINE)


def test_doctor_reports_what_does_not_fit(capsys, monkeypatch):
    versions = {"numpy": "2.1.0", "optree": None}
    right = doctor.version
    monkeypatch.setattr(doctor, "version", lambda name: versions.get(name, "") if name in versions else right(name))
    status, out, _ = run(capsys, "doctor")
    assert status == 1 and "  numpy 2.1.0: DOES NOT FIT, needs " in out and "  optree missing: DOES NOT FIT, needs " in out
    out = run(capsys, "doctor", "--verbose")[1]
    assert re.search(r"^  numpy +2\.1\.0 +DOES NOT FIT, needs ", out, re.MULTILINE)
    assert re.search(r"^  optree +missing +DOES NOT FIT, needs ", out, re.MULTILINE)


def test_doctor_says_that_mindspore_is_newer_than_what_is_tested(capsys, pretended_mindspore):
    pretended_mindspore("2.11.0")
    status, out, _ = run(capsys, "doctor")
    assert status == 0 and "  mindspore: MindSpore 2.11.0 is installed; hpmoe is tested with 2.10" in out
    out = run(capsys, "doctor", "--verbose")[1]
    assert re.search(r"^  mindspore +2\.11\.0 +ok, needs >=2\.10; NOT TESTED: MindSpore 2\.11\.0 is installed; hpmoe is "
                     r"tested with 2\.10$", out, re.MULTILINE)


def test_doctor_without_the_native_library(capsys, monkeypatch):
    def missing():
        raise ImportError("hpmoe's native library is not beside x")

    monkeypatch.setattr(doctor, "find_library", missing)
    status, out, _ = run(capsys, "doctor")
    assert status == 1 and out.startswith("CPU: the native library does not load; ")
    assert "the native library does not load: hpmoe's native library is not beside x" in out


@pytest.mark.parametrize("target", ["cpu", "ascend", "ascend-emulator"])
def test_doctor_lists_what_a_target_runs_and_refuses(capsys, target):
    """A kernel for the target is packed with each function that it is said to run, and refused with any other."""
    found = json.loads(run(capsys, "doctor", f"--target={target}", "--json")[1])
    runs, refuses = found["runs"], found["refuses"]
    for family, members in (("operations", TilePrimitive.members), ("functions", Function.members)):
        assert sorted([*runs[family], *refuses[family]]) == sorted(members)
    for name in Function.members:
        flow = one_function(name)
        if name in runs["functions"]:
            find_target(target).bodies.check(flow, "doctor")
            continue
        with pytest.raises(ArgumentError, match=f"its function is {name}; it must be one of abs, add"):
            find_target(target).bodies.check(flow, "doctor")
    assert runs["at_most"].get("top_k") == (None if target == "cpu" else 512)
    text = run(capsys, "doctor", f"--target={target}")[1].split()
    assert {*runs["operations"], *runs["functions"], *refuses["operations"], *refuses["functions"]} <= set(text)


def one_function(name):
    """The tiles of one function of elements."""
    builder, x = Builder(), [Var(ShapeDtypeStruct((8, 16), "float32")) for _ in range(Function.members[name].inputs)]
    out = builder.add(REGISTRY["stop_gradient" if name == "copy" else name], *x)
    program = trace(lambda *args: args[0] * 1.0, *(v.aval for v in x))
    return tile_partition.apply_to(program.replace(inputs=tuple(x), equations=tuple(builder.equations), outputs=(out,)))


def test_doctor_says_what_ascend_misses(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    no_device = f"no NPU: no {tmp_path}/davinci* device"
    assert doctor.ascend_target({}, tmp_path) == {"usable": False, "why": [
        "no CANN toolkit: ASCEND_HOME_PATH is not set", "no operators of CANN: ASCEND_OPP_PATH is not set",
        "no aclshmem: SHMEM_HOME_PATH is not set", "no bisheng compiler on PATH", "no cmake on PATH", "no ninja on PATH",
        "no g++ on PATH", no_device]}
    gone = {"ASCEND_HOME_PATH": str(tmp_path / "x"), "PATH": str(tmp_path),
            **dict.fromkeys(("ASCEND_OPP_PATH", "SHMEM_HOME_PATH"), str(tmp_path))}
    for tool in ("bisheng", "cmake", "ninja", "g++"):
        (tmp_path / tool).touch(mode=0o755)
    missing = doctor.ascend_target(gone, tmp_path)["why"]
    assert missing == [f"no CANN toolkit: ASCEND_HOME_PATH is {tmp_path / 'x'}, which is no folder", no_device]
    there = {**gone, "ASCEND_HOME_PATH": str(tmp_path)}
    assert doctor.ascend_target(there, tmp_path)["why"][0] == "the kernel is not built: hpmoe build --target=ascend"
    for built in (ascend_build.compiled_path(), ascend_build.ascend_operator().path()):
        built.parent.mkdir(parents=True)
        built.touch()
    (tmp_path / "davinci0").touch()
    found = doctor.ascend_target({"ASCEND_HOME_PATH": str(tmp_path)}, tmp_path)
    assert found["usable"] and re.match(rf"NPU: of unknown cores, CANN cannot be asked: {tmp_path}/lib64/libascendcl.so: ",
                                        *found["why"])


ACL = """
#include <cstdint>
extern "C" int aclInit(const char*) { return %(init)d; }
extern "C" int aclrtSetDevice(int32_t) { return 0; }
extern "C" const char* aclrtGetSocName() { return "%(chip)s"; }
extern "C" int aclrtGetDeviceInfo(uint32_t, int attribute, int64_t* value) {
  *value = attribute == 102 ? %(aic)d : attribute == 201 ? 2 * %(aic)d : -1;
  return 0;
}
"""


@pytest.mark.parametrize("acl, line", [
    ({"chip": "Ascend910B3", "aic": 20},
     'NPU: Ascend910B3 of 20 AIC and 40 AIV; plan for it with hpmoe.machines.ascend_a2.of_bin("910B3")'),
    ({"chip": "Ascend910_9391", "aic": 24},
     'NPU: Ascend910_9391 of 24 AIC and 48 AIV; plan for it with hpmoe.machines.ascend_a3.of_bin("9391")'),
    ({"chip": "Ascend910B2", "aic": 23},
     "NPU: Ascend910B2 of 23 AIC and 46 AIV; plan for it with hpmoe.machines.ascend_a2.replace(num_aic=23, num_aiv=46)"),
    ({"chip": "Ascend910B2", "aic": 24, "init": 507008}, "NPU: of unknown cores, aclInit of .* returned 507008"),
], ids=str)
def test_doctor_asks_the_npu_for_its_cores(tmp_path, acl, line):
    (tmp_path / "lib64").mkdir()
    source, library = tmp_path / "acl.cc", tmp_path / "lib64" / "libascendcl.so"
    source.write_text(ACL % {"init": 0, **acl})
    subprocess.run([*find_compiler(), "-shared", "-fPIC", source, "-o", library], check=True)
    (tmp_path / "davinci0").touch()
    assert re.fullmatch(line.replace("(", r"\(").replace(")", r"\)"),
                        doctor.ascend_target({"ASCEND_HOME_PATH": str(tmp_path)}, tmp_path)["why"][-1])


def test_build_says_what_is_missing(capsys, monkeypatch):
    monkeypatch.delenv("ASCEND_HOME_PATH", raising=False)
    status, out, _ = run(capsys, "build", "--target=ascend")
    assert status == 1
    assert out.startswith("hpmoe build --target=ascend: cannot be built here\n  no CANN toolkit: ASCEND_HOME")
    assert run(capsys, "build", "--target=tpu")[2].startswith("hpmoe build: flag --target=tpu: ")


def test_build_runs_cmake_then_ninja(capsys, monkeypatch, tmp_path):
    """Programs that record their arguments replace CANN's."""
    for name, text in (("cmake", 'echo "$@" >> "$0.log"'), ("bisheng", ""), ("ninja", ""), ("g++", "")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "SHMEM_HOME_PATH"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = ascend_build.compiled_path().parent
    status, out, _ = run(capsys, "build", "--json")
    assert (status, json.loads(out)) == (0, {"target": "ascend", "library": str(folder / "libhpmoe_ascend.so"),
                                             "missing": []})
    configured, built = (tmp_path / "cmake.log").read_text().splitlines()
    options = "-DCMAKE_ASC_ARCHITECTURES=dav-2201 -DHPMOE_ONLY_MOE_FFN=OFF -DHPMOE_KERNEL_TYPE_MACRO=OFF"
    assert configured == f"-S {ascend_build.HOST} -B {folder} {options}" and built == f"--build {folder}"
    rules = (ascend_build.ascend_operator().folder() / "build.ninja").read_text()
    for flag in ("-DCUSTOM_ASCEND_OP", "-lascendcl", "-l:libhpmoe_ascend.so", "-lshmem", "mindspore_op.cc",
                 "cann_device.cc"):
        assert flag in rules
    (tmp_path / "cmake").write_text("#!/bin/sh\necho no such generator >&2\nexit 3\n")
    status, out, _ = run(capsys, "build")
    assert status == 1 and "failed:\n  no such generator" in out


def test_build_names_what_the_operator_fails_on(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    operator = ascend_build.Operator("nothing", tmp_path / "missing.cc", "CPU")
    with pytest.raises(ascend_build.BuildError, match="missing.cc"):
        operator.build()
    with pytest.raises(ImportError, match="nothing.so is not built: hpmoe build --target=ascend"):
        operator.load()


def test_builds_are_separate_and_a_stopped_one_is_repeated(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    operator = ascend_build.Operator("nothing", tmp_path / "missing.cc", "CPU")
    with ascend_build.alone_in(operator.folder()):
        with pytest.raises(ascend_build.BuildError, match="another build is under way in .*nothing"):
            operator.build()
    left = operator.folder() / "build.lock"
    for file in (left, operator.path()):
        file.write_text("half of it")
    assert not operator.is_built()
    with pytest.raises(ImportError, match="nothing.so is not built"):
        operator.load()
    with pytest.raises(ascend_build.BuildError, match="missing.cc"):  # goes on where MindSpore would wait for ever
        operator.build()
    assert not left.exists() and not operator.path().exists()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(ascend_build.BuildError, match="nothing can be built in .*: .*Not a directory"):
        operator.build()
    assert not operator.is_built() and not ascend_build.is_built({})


def test_an_operator_of_another_copy_of_the_package_is_ignored(monkeypatch, tmp_path):
    """It links to what lies in the package, which may be gone when another copy has the same sources."""
    folder = ascend_build.ascend_operator().folder()
    copy = shutil.copytree(ascend_build.KERNELS, tmp_path / "kernels", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    monkeypatch.setattr(ascend_build, "KERNELS", copy)
    monkeypatch.setattr(ascend_build, "HOST", copy / "ascendc" / "host")
    assert ascend_build.ascend_operator().folder() != folder


@pytest.mark.parametrize("environment, why", [
    ({"CXX": "no-such-compiler -O2"}, "no no-such-compiler on PATH"),
    ({"CXX": sys.executable}, ""),
])
def test_doctor_names_the_compiler(environment, why):
    found = doctor.compiler(environment)
    assert found["why"] == why and (found["path"] is None) == bool(why)


@pytest.mark.parametrize("version, needs, expected", [
    ("1.26.4", "<2,>=1.26", True), ("2.0.0rc1", "<2,>=1.26", False), ("2.10.0", "<2.11,>=2.8", True),
    ("2.9", ">=2.10", False), ("2.0", "==2", True), ("2.1", "!=2.1", False), ("3", "", True),
    ("0.17.0+local", ">=0.17", True),
])
def test_version_bounds(version, needs, expected):
    assert doctor.fits(version, needs) is expected


def test_doctor_says_what_ranks_as_processes_need(capsys, monkeypatch, tmp_path):
    launcher = tmp_path / "msrun"
    launcher.write_text("#!/bin/sh\n")
    launcher.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = doctor_ranks.ranks()
    assert found["launchers"] == {"torchrun": None, "msrun": str(launcher), "mpirun": None, "srun": None}
    text = "\n".join(doctor_ranks.lines(found))
    for line in ("  mpirun        not found",
                 "  pidfd         works: the end of a rank is noticed at once", "  memfd         works"):
        assert line in text.splitlines(), text
    monkeypatch.setattr(os, "pidfd_open", lambda pid: os.open(tmp_path / "none", os.O_RDONLY))
    assert doctor_ranks.limits()["pidfd"].startswith("MISSING: No such file")
