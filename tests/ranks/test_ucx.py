"""UCX between hosts: its declarations, and errors of ranks that ask for it but lack it."""

import subprocess
import sys
from pathlib import Path

import needs
from test_hosts import hosts_of

import hpmoe
from hpmoe.kernels import native
from hpmoe.kernels.build_native import find_compiler
from hpmoe.kernels.native import find_library, find_ucx
from hpmoe.ranks.link import ENGINES

ROOT = Path(__file__).parents[2]


def test_declarations_are_those_of_its_headers():
    needs.has_ucx()
    folder = find_ucx()
    includes = [f"-I{path}" for path in (ROOT / "kernels", folder.parent / "include")]
    command = [*find_compiler(), "-std=c++17", "-fsyntax-only", *includes, ROOT / "tests" / "native" / "ucx_layout.cc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_rank_without_ucx_is_an_error_on_all(monkeypatch):
    monkeypatch.setattr(native, "find_ucx", lambda: None)
    run = hosts_of("ucx")
    for error in next(run)(2, lambda link: None):
        assert isinstance(error, hpmoe.LaunchError)
        assert str(error) == ("hpmoe.world: engine=\"ucx\" does not work on rank 0: the package libucx is not installed: "
                              "pip install 'hpmoe[hosts]'.")
    next(run, None)


def test_ranks_with_different_engines_are_an_error_on_all():
    run = hosts_of(lambda rank: ENGINES[0] if rank == 0 else "other")
    errors = next(run)(2, lambda link: None)
    assert str(errors[0]) == ("hpmoe.world: rank 1 passes engine=\"other\" and this rank engine=\"tcp\"; pass the same "
                              "engine on all ranks.")
    assert str(errors[1]).startswith("hpmoe.world: rank 0 passes engine=\"tcp\" and this rank engine=\"other\"")
    next(run, None)


def test_a_folder_without_it_says_so(tmp_path):
    """In a process of its own, as what the first call finds counts."""
    script = "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).hpmoe_ucx_fault; f.restype = ctypes.c_char_p; " \
             "print(f(sys.argv[2].encode()).decode())"
    done = subprocess.run([sys.executable, "-S", "-c", script, find_library(), tmp_path], capture_output=True, text=True,
                          check=True)
    assert "libucp.so.0: cannot open shared object file" in done.stdout
