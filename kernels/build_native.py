"""Compiles the C++ sources into shared libraries, loaded through ctypes: the runtime of cpu/, the emulator, and the planner.

`pip install` runs the setuptools commands below, which keep what they compile in build/native/ of the source tree and use it
again while compiler and sources are the same. `python -m hpmoe.kernels.build_native` compiles after a source has changed.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Command
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build import build
from setuptools.errors import CompileError, PlatformError

KERNELS = Path(__file__).resolve().parent
# In a source tree this folder lies beside hpmoe/, in an installed one inside it.
PLANNER = next(p for p in (KERNELS.parent / "hpmoe" / "planner", KERNELS.parent / "planner") if p.is_dir())
# For each library, where it lies in the package, the folder it lies in here, and its sources there.
LIBRARIES = {"hpmoe/kernels/_native.so": (KERNELS, ("core/*.cc", "cpu/*.cc", "link/*.cc", "simulator/*.cc")),
             "hpmoe/kernels/_emulator.so": (KERNELS,
                                            ("ascendc/*.cpp", "ascendc/emulator/*.cc", "core/image.cc", "core/stuck.cc",
                                                  "cpu/convert.cc")),
             "hpmoe/planner/_planner.so": (PLANNER, ("*.cc",))}
KEPT = KERNELS.parent / "build" / "native"
SECONDS_EACH = 2.0  # of a source file on one core, for the announcement
FLAGS = ("-std=c++17", "-O3", "-Wall", "-Wextra", "-fPIC", "-pthread")


def find_compiler() -> list[str]:
    """Returns the command of the C++ compiler: CXX, else g++, else clang++; raises PlatformError if there is none."""
    try:
        wanted = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise PlatformError(f"CXX is {os.environ['CXX']}, which is no command: {error}") from None
    for command in [wanted] if wanted else [["g++"], ["clang++"]]:
        if shutil.which(command[0]):
            return command
    missing = f"the compiler named by CXX ({wanted[0]})" if wanted else "a C++ compiler (looked for g++ and clang++)"
    raise PlatformError(
        f"hpmoe compiles its native library at install and cannot find {missing}. "
        "Install g++ or clang++ with C++17, or set CXX to one, then run pip again."
    )


def compile_library(name: str, library: str | Path | None = None, tell: Callable[[str], None] = lambda text: None) -> None:
    """Compiles the library `name` of LIBRARIES into the file `library`, or beside its sources if None.

    Compiles one source per core at a time; `tell` gets a line at the start and after each quarter of the sources. Replaces
    the library in one step, because a running process may have it open.
    """
    folder, patterns = LIBRARIES[name]
    sources = sorted(path for pattern in patterns for path in folder.glob(pattern))
    library = Path(library or folder / Path(name).name)
    library.parent.mkdir(parents=True, exist_ok=True)
    forget_unfinished(library)
    partial = library.with_name(f"{library.name}.{os.getpid()}")
    compiler = find_compiler()
    includes = ["-I", str(folder), "-I", str(folder / "ascendc" / "emulator")]
    try:
        count, cores, begin = len(sources), len(os.sched_getaffinity(0)), time.monotonic()
        estimate = count * SECONDS_EACH / cores
        tell(f"compiling {Path(name).name}: {count} C++ files on {cores} cores, about {estimate:.0f} s if they are idle")
        with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(cores) as pool:
            objects = [Path(scratch, f"{number}.o") for number in range(count)]
            made = pool.map(lambda source, made: run_compiler([*compiler, *FLAGS, *includes, "-c", str(source)], made),
                            sources, objects)
            for done, _ in enumerate(made, 1):
                if done in {count * quarter // 4 for quarter in (1, 2, 3, 4)}:
                    tell(f"{Path(name).name}: {done} of {count} files, {time.monotonic() - begin:.0f} s")
            run_compiler([*compiler, *FLAGS, "-shared", *map(str, objects), "-ldl"], partial)
        partial.replace(library)
    finally:
        partial.unlink(missing_ok=True)


def run_compiler(command: list[str], made: Path) -> None:
    """Prints and runs `command`, which writes the file `made`."""
    command = [*command, "-o", str(made)]
    print(shlex.join(command), flush=True)
    status = subprocess.run(command).returncode
    if status or not made.exists():
        how = f", killed by signal {-status}" if status < 0 else "" if status else ", nothing was written"
        raise CompileError(f"compiling hpmoe's native library failed{how}: {shlex.join(command)}")


def compile_once(name: str, library: Path) -> None:
    """Copies the library `name` from KEPT into the file `library`; compiles it first if compiler or sources have changed."""
    kept = KEPT / f"{Path(name).stem}-{_fingerprint(LIBRARIES[name][0])}.so"
    if kept.exists():
        announce(f"{Path(name).stem}: unchanged since the last installation, not compiled again")
    else:
        compile_library(name, kept, announce)
        for old in set(KEPT.glob(f"{Path(name).stem}-*.so")) - {kept}:
            old.unlink(missing_ok=True)
    library.parent.mkdir(parents=True, exist_ok=True)
    partial = library.with_name(f"{library.name}.{os.getpid()}")
    shutil.copy(kept, partial)
    partial.replace(library)


def _fingerprint(folder: Path) -> str:
    """Returns a hash of the compiler, its version, the flags, and the C++ files below a folder."""
    compiler = find_compiler()
    version = subprocess.run([*compiler, "--version"], capture_output=True).stdout
    found = hashlib.sha256(repr((compiler, version, FLAGS)).encode())
    for path in sorted(p for p in folder.rglob("*") if p.suffix in (".h", ".cc", ".cpp", ".asc")):
        found.update(str(path.relative_to(folder)).encode() + path.read_bytes())
    return found.hexdigest()[:16]


def announce(text: str) -> None:
    """Prints a line on the terminal, if the process has one, because pip hides the output of builds."""
    try:
        with open("/dev/tty", "w") as terminal:
            print(f"\r\033[Khpmoe: {text}", file=terminal)
    except OSError:
        print(f"hpmoe: {text}", flush=True)


def forget_unfinished(library: Path) -> None:
    """Removes what builds left that were killed; their names end in the number of a process."""
    for path in library.parent.glob(f"{library.name}.*"):
        number = path.suffix[1:]
        if number.isdecimal() and not Path("/proc", number).exists():
            path.unlink(missing_ok=True)


class Build(build):
    """The usual build, then the native library."""

    sub_commands = [*build.sub_commands, ("build_native", None)]


class BuildNative(Command):
    """Compiles into the tree being built, or beside the sources for an editable install."""

    user_options = [("build-lib=", "d", "directory to build into")]

    def initialize_options(self) -> None:
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        for name in LIBRARIES:
            beside = LIBRARIES[name][0] / Path(name).name
            compile_once(name, beside if self.editable_mode else Path(str(self.build_lib), name))

    def get_outputs(self) -> list[str]:
        return [str(Path(str(self.build_lib), name)) for name in LIBRARIES]

    def get_output_mapping(self) -> dict[str, str]:
        beside = [str(folder / Path(name).name) for name, (folder, _) in LIBRARIES.items()]
        return dict(zip(self.get_outputs(), beside, strict=True)) if self.editable_mode else {}

    def get_source_files(self) -> list[str]:
        return []  # the sources are package data


class BdistWheel(bdist_wheel):
    """A wheel of one platform and any Python 3: ctypes does not depend on the interpreter's ABI."""

    def finalize_options(self) -> None:
        self.distribution.has_ext_modules = lambda: True
        super().finalize_options()

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


if __name__ == "__main__":
    for each in LIBRARIES:
        compile_library(each)
