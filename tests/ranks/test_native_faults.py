"""Ranks that are processes without Python, on one host and on two: kills at any moment, one that is stopped, other ends."""

import functools
import subprocess
from pathlib import Path

import needs
import pytest

from hpmoe.kernels.build_native import find_compiler
from hpmoe.kernels.native import find_ucx

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "kernels"
LIBRARY = KERNELS / "_native.so"
NO_DEBUGGER = 77
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    """`driver(name, num_ranks)` runs a program of `num_ranks` ranks with the installed library."""
    folder = tmp_path_factory.mktemp("drivers")

    @functools.cache
    def compiled(name, num_ranks):
        program = folder / f"{name}_{num_ranks}"
        source, flags = ROOT / f"tests/native/{name}.cc", ("-std=c++17", "-O1", "-pthread", f"-I{KERNELS}")
        subprocess.run([*find_compiler(), *flags, f"-DLAYER_RANKS={num_ranks}", source, LIBRARY,
                        f"-Wl,-rpath,{LIBRARY.parent}", "-o", program], check=True)
        return program

    return compiled


@pytest.mark.parametrize("num_ranks, kills, stopped_s, node_size, engine", [
    (2, 80, 2, 2, "tcp"), (4, 80, 5, 4, "tcp"), (4, 60, 2, 2, "tcp"), (4, 60, 2, 2, "ucx")])
def test_survivors_learn_who_died_and_nothing_is_left(driver, num_ranks, kills, stopped_s, node_size, engine):
    if engine == "ucx":
        needs.has_ucx()
    by = [find_ucx()] if engine == "ucx" else []
    command = [driver("link_driver", num_ranks), str(kills), str(stopped_s), str(node_size), *by]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and f"{kills} kills: told within" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("num_ranks, stride", [(2, 5), (4, 23)])
def test_an_interrupted_meeting_fails_on_all_ranks_or_on_none(driver, num_ranks, stride):
    command = [driver("interrupt_driver", num_ranks), str(num_ranks), str(stride)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode == NO_DEBUGGER:
        pytest.skip("this container lets no process be stepped by another (ptrace), which the test does")
    assert done.returncode == 0 and "instructions from before a meeting to where one goes on" in done.stdout, done.stderr
