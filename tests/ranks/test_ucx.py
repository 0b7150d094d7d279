"""UCX as what carries messages between hosts: what is declared of it, and who asks for it where it is not."""

import subprocess
import sys
from pathlib import Path

import needs
from test_hosts import hosts_of

import hpmoe
from hpmoe.kernels import link as links
from hpmoe.kernels.build_native import find_compiler
from hpmoe.kernels.native import find_library, find_ucx

ROOT = Path(__file__).parents[2]


def test_declarations_are_those_of_its_headers():
    needs.has_ucx()
    folder = find_ucx()
    includes = [f"-I{path}" for path in (ROOT / "kernels", folder.parent / "include")]
    command = [*find_compiler(), "-std=c++17", "-fsyntax-only", *includes, ROOT / "tests" / "native" / "ucx_layout.cc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_it_is_never_replaced_silently(monkeypatch):
    """A rank without it is named on all."""
    monkeypatch.setattr(links, "ucx_fault", lambda: "the package libucx is not installed")
    run = hosts_of("ucx")
    for error in next(run)(2, lambda link: None):
        assert isinstance(error, hpmoe.LaunchError)
        assert str(error) == "rank 0 has no UCX to carry messages: the package libucx is not installed"
    next(run, None)


def test_a_folder_without_it_says_so(tmp_path):
    """In a process of its own, as what the first call finds counts."""
    script = "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).hpmoe_ucx_fault; f.restype = ctypes.c_char_p; " \
             "print(f(sys.argv[2].encode()).decode())"
    done = subprocess.run([sys.executable, "-S", "-c", script, find_library(), tmp_path], capture_output=True, text=True,
                          check=True)
    assert "libucp.so.0: cannot open shared object file" in done.stdout
