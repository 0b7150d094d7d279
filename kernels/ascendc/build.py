"""Compiling the Ascend kernel and its MindSpore operator on a machine with CANN, and what that takes; loading them."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from hpmoe.support.cached_files import private_folder
from hpmoe.support.host import cache_folder
from hpmoe.support.known import known

KERNELS = Path(__file__).resolve().parents[1]
HOST = KERNELS / "ascendc" / "host"
SOURCES = (KERNELS / "core", KERNELS / "core" / "generated", KERNELS / "ascendc", HOST)
COMMON = (HOST / "mindspore_op.cc", HOST / "graph_op.cc", HOST / "bound_kernel.cc", KERNELS / "core" / "image.cc",
          KERNELS / "core" / "stuck.cc")
LIBRARY = "libhpmoe_ascend.so"
DEVICES = Path("/dev")
NPUS = "davinci[0-9]*"  # among them


class BuildError(Exception):
    """Raised if a compilation fails; the text has the command line and the end of its output."""


@dataclasses.dataclass(frozen=True)
class Operator:
    """The MindSpore operator of a device, as ops.CustomOpBuilder compiles it.

    Attributes:
        name: name of the Python module.
        device: the source that implements device.h.
        backend: MindSpore's name of the device.
        includes: folders of headers besides those of this package.
        link: flags for the linker.
        flags: further flags for the compiler.
    """

    name: str
    device: Path
    backend: str
    includes: tuple[Path, ...] = ()
    link: tuple[str, ...] = ()
    flags: tuple[str, ...] = ("-w",)  # the headers of MindSpore warn

    def folder(self) -> Path:
        """Returns the folder of the build, one for each state of sources, MindSpore, Python and copy of this package."""
        built_for = f"{KERNELS} {importlib.metadata.version('mindspore')} {sys.version_info[:2]}"
        return cache_folder() / self.name / _digest(*SOURCES, besides=built_for)

    def path(self) -> Path:
        return self.folder() / f"{self.name}.so"

    def build(self) -> Path:
        """Compiles what is not yet compiled. Raises BuildError."""
        from mindspore import ops
        folder = self.folder()
        builder = ops.CustomOpBuilder(
            self.name, [str(p) for p in (*COMMON, self.device)], backend=self.backend, build_dir=str(folder),
            include_paths=[str(p) for p in (KERNELS, KERNELS / "ascendc", HOST, *self.includes)],
            cflags=" ".join(self.flags), ldflags=" ".join(self.link))
        with alone_in(folder):
            self._forget_unfinished()
            try:
                return Path(builder.build())
            except (RuntimeError, OSError, ValueError) as error:
                raise BuildError("\n".join(["ops.CustomOpBuilder failed:", *str(error).splitlines()[-20:]])) from None

    def _mark(self) -> Path:
        """Returns the file that MindSpore keeps while it compiles, and whose removal it awaits even if its maker has ended.
        """
        return self.folder() / "build.lock"

    def is_built(self) -> bool:
        """Returns True if the whole build exists; an unfinished or stopped build does not count."""
        return self.path().exists() and not self._mark().exists()

    def _forget_unfinished(self) -> None:
        if self._mark().exists():
            self.path().unlink(missing_ok=True)
            self._mark().unlink()

    @functools.cache  # noqa: B019  one for each device, for as long as the process
    def load(self) -> ModuleType:
        """Returns the operator's module; raises ImportError if it has not been built."""
        path = self.path()
        if not self.is_built():
            raise ImportError(f"{path} is not built: hpmoe build --target=ascend")
        try:
            private_folder(path.parent)
        except OSError as error:
            raise ImportError(f"{path} is not loaded: {error}") from None
        loader = ExtensionFileLoader(self.name, str(path))
        spec = known(importlib.util.spec_from_file_location(self.name, path, loader=loader))
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
        return module


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Holds a folder, which it makes, against other builds; the system lets go of it with the process.

    Raises:
        BuildError: another process holds it, or it cannot be made.
    """
    try:
        private_folder(folder)
        held = open(folder / "held", "a", opener=_without_waiting)
    except OSError as error:
        raise BuildError(f"nothing can be built in {folder}: {error}") from None
    with held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BuildError(f"another build is under way in {folder} ({error})") from None
        yield


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK, 0o600)  # a FIFO in its place would wait for a reader


@functools.cache
def _digest(*folders: Path, besides: str = "") -> str:
    """Returns a digest of the sources in some folders and of `besides`, which identifies a build."""
    files = sorted(p for folder in folders for p in folder.iterdir() if p.suffix in (".h", ".cc", ".cpp", ".asc", ".txt"))
    parts = [besides.encode(), *(p.name.encode() + b"\0" + p.read_bytes() for p in files)]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]


def ascend_operator(environment: Mapping[str, str] = os.environ) -> Operator:
    """Returns the operator on an NPU."""
    shmem, kernel = Path(environment.get("SHMEM_HOME_PATH", "")) / "shmem", compiled_path().parent
    folders = (kernel, shmem / "lib")
    return Operator("hpmoe_ascend", HOST / "cann_device.cc", "Ascend", (shmem / "include",),
                    (*(f"-L{folder} -Wl,-rpath,{folder}" for folder in folders), f"-l:{LIBRARY}", "-lshmem"))


def compiled_path() -> Path:
    """Returns the folder in which the kernel is built."""
    return cache_folder() / "ascend" / _digest(*SOURCES) / LIBRARY


@dataclasses.dataclass(frozen=True)
class KernelOptions:
    """Options of the kernel's compilation.

    Attributes:
        chip: "2201" for A2 and A3, "3510" for a 950.
        bodies: "all", or "moe_ffn" for the operations of a MoE-FFN only, which compile sooner.
        kernel_type: how the kernel says that a block is an AIC and two AIV: "mix" by __mix__(1, 2), "macro" by
            KERNEL_TASK_TYPE_DEFAULT.
    """

    chip: str = "2201"
    bodies: str = "all"
    kernel_type: str = "mix"

    def definitions(self) -> list[str]:
        """Returns the arguments of cmake."""
        chosen = {"HPMOE_ONLY_MOE_FFN": self.bodies == "moe_ffn", "HPMOE_KERNEL_TYPE_MACRO": self.kernel_type == "macro"}
        return [f"-DCMAKE_ASC_ARCHITECTURES=dav-{self.chip}",
                *(f"-D{name}={'ON' if is_on else 'OFF'}" for name, is_on in chosen.items())]


def build(options: KernelOptions) -> list[str]:
    """Compiles kernel and operator; returns what is missing or failed, nothing where both are built."""
    missing = build_needs(os.environ)
    if missing:
        return missing
    try:
        _build_kernel(compiled_path().parent, options)
        ascend_operator().build()
    except (BuildError, OSError) as error:
        return str(error).splitlines()
    return []


def _build_kernel(folder: Path, options: KernelOptions) -> None:
    """Compiles the kernel in a folder. Raises BuildError."""
    with alone_in(folder):
        configure = ["cmake", "-S", str(HOST), "-B", str(folder), *options.definitions()]
        for command in (configure, ["cmake", "--build", str(folder)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr or done.stdout).splitlines()[-20:]
                raise BuildError("\n".join([f"{' '.join(command)} failed:", *said]))


def is_built(environment: Mapping[str, str]) -> bool:
    """Returns True if kernel and operator exist and may be read."""
    try:
        return compiled_path().exists() and ascend_operator(environment).is_built()
    except OSError:
        return False


def build_needs(environment: Mapping[str, str]) -> list[str]:
    """Returns the missing requirements of compilation, one sentence each."""
    missing = []
    for name, what in (("ASCEND_HOME_PATH", "CANN toolkit"), ("ASCEND_OPP_PATH", "operators of CANN"),
                       ("SHMEM_HOME_PATH", "aclshmem")):
        home = environment.get(name)
        if not home:
            missing.append(f"no {what}: {name} is not set")
        elif not Path(home).is_dir():
            missing.append(f"no {what}: {name} is {home}, which is no folder")
    for program, what in (("bisheng", "bisheng compiler"), ("cmake", "cmake"), ("ninja", "ninja"), ("g++", "g++")):
        if shutil.which(program, path=environment.get("PATH", "")) is None:
            missing.append(f"no {what} on PATH")
    return missing


def run_needs(environment: Mapping[str, str], devices: Path) -> list[str]:
    """Returns the missing requirements of running the kernel here, one sentence each."""
    missing = []
    if not is_built(environment):
        missing += build_needs(environment) or ["the kernel is not built: hpmoe build --target=ascend"]
    if not any(devices.glob(NPUS)):
        missing.append(f"no NPU: no {devices}/davinci* device")
    return missing
