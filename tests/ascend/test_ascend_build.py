"""The build of the Ascend kernel: flags that CMake writes with a stand-in for the ASC language, and small builds."""

import re
import shutil
import subprocess

import numpy as np
import pytest
from ascend_helpers import LayerRun, ProgramRun, f32
from helpers import Layer
from mindspore import mint
from mutated_kernel import choose_among

import hpmoe
from hpmoe.kernels.ascendc.build import HOST, KernelOptions
from hpmoe.kernels.ascendc.emulator import native as emulator_library
from hpmoe.support.errors import LaunchError

LANGUAGE = {
    "ASCConfig.cmake": "list(APPEND CMAKE_MODULE_PATH ${CMAKE_CURRENT_LIST_DIR})",
    "CMakeDetermineASCCompiler.cmake": """set(CMAKE_ASC_COMPILER /bin/sh)
        set(CMAKE_ASC_COMPILER_ENV_VAR ASC)
        file(WRITE ${CMAKE_PLATFORM_INFO_DIR}/CMakeASCCompiler.cmake "set(CMAKE_ASC_COMPILER /bin/sh)
        set(CMAKE_ASC_SOURCE_FILE_EXTENSIONS asc)\nset(CMAKE_ASC_OUTPUT_EXTENSION .o)\n")""",
    "CMakeASCInformation.cmake": """set(CMAKE_ASC_COMPILE_OBJECT "<CMAKE_ASC_COMPILER> <DEFINES> <FLAGS> -c <SOURCE>")
        set(CMAKE_ASC_CREATE_SHARED_LIBRARY "<CMAKE_ASC_COMPILER> -o <TARGET> <OBJECTS>")
        include(CMakeCommonLanguageInclude)""",
    "CMakeTestASCCompiler.cmake": "set(CMAKE_ASC_COMPILER_WORKS 1)",
}
VERSION = "#define ACLSHMEM_MAJOR_VERSION {}\n#define ACLSHMEM_MINOR_VERSION {}\n"


def configure(folder, options, version=(1, 1)):
    """Runs CMake as `hpmoe build` does; returns what it did, and the flags that compile the kernel."""
    header = folder / "shmem/include/host/shmem_host_def.h"
    header.parent.mkdir(parents=True, exist_ok=True)
    header.write_text(VERSION.format(*version))
    for name, text in LANGUAGE.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        ["cmake", "-S", HOST, "-B", folder / "out", f"-DASC_DIR={folder}", "-G", "Unix Makefiles", *options.definitions()],
        capture_output=True, text=True, env={"PATH": "/usr/bin:/bin", "SHMEM_HOME_PATH": str(folder)})
    flags = folder / "out/CMakeFiles/hpmoe_ascend.dir/flags.make"
    return done, flags.read_text() if flags.exists() else ""


needs_cmake = pytest.mark.skipif(shutil.which("cmake", path="/usr/bin:/bin") is None, reason="needs cmake in /usr/bin")


@needs_cmake
@pytest.mark.parametrize("options, definitions, chip", [
    (KernelOptions(), set(), "dav-2201"),
    (KernelOptions("3510", "moe_ffn", "macro"), {"-DHPMOE_ONLY_MOE_FFN", "-DHPMOE_KERNEL_TYPE_MACRO"}, "dav-3510"),
])
def test_the_compile_command_has_the_flags(tmp_path, options, definitions, chip):
    done, text = configure(tmp_path, options)
    assert done.returncode == 0, done.stderr
    assert set(re.findall(r"-DHPMOE_\w+", text)) == definitions
    flags = re.search("^ASC_FLAGS = (.*)$", text, re.MULTILINE)[1].strip()
    assert "CMAKE_BUILD_TYPE:STRING=Release" in (tmp_path / "out/CMakeCache.txt").read_text()
    assert flags == (f"--npu-arch={chip} -std=c++17 -O3 -fPIC --cce-auto-sync=off "
                     "-mllvm -cce-aicore-jump-expand=true -mllvm -cce-aicore-stack-size=0x8000 "
                     "-mllvm -cce-aicore-function-stack-size=0x8000 -mllvm -cce-aicore-dcci-insert-for-scalar=false")


@needs_cmake
def test_another_aclshmem_is_refused_by_its_version(tmp_path):
    done, _ = configure(tmp_path, KernelOptions(), (1, 3))
    assert done.returncode and 'aclshmem is "1.3" by' in done.stderr and "expected 1.1" in done.stderr


def test_the_kernel_says_its_type_in_one_place():
    """A compiler that finds both `__mix__` and the macro has no documented choice."""
    text = (HOST / "launch.asc").read_text()
    macro, mix = text[:text.index("#else")], text[text.index("#else"):text.index("#endif")]
    assert "KERNEL_TASK_TYPE_DEFAULT" in macro and "__mix__" not in macro
    assert "__mix__(1, 2)" in mix and "KERNEL_TASK_TYPE_DEFAULT" not in mix


@pytest.mark.slow
def test_a_small_build_runs_layers_and_refuses_the_rest(tmp_path):
    chosen = choose_among((), tmp_path, "-DHPMOE_ONLY_MOE_FFN")
    try:
        chosen(0)
        LayerRun(Layer(ep=2, T=9, H=32, I=16, E=4, K=2), rows=4).assert_close_to_float64()
        other = ProgramRun(hpmoe.trace(lambda x: mint.cumsum(x, 1), f32(4, 16)))
        with pytest.raises(LaunchError, match="CUMSUM"):
            other()
    finally:
        emulator_library.load().hpmoe_emulator_use_kernel(None)
    assert all(np.isfinite(x).all() for x in other())
