"""Ranks that are processes without Python, on one host and on two: kills at any moment, one that is stopped, other ends."""

import subprocess
from pathlib import Path

import pytest

from hpmoe.kernels.build_native import find_compiler
from hpmoe.kernels.native import find_ucx, ucx_fault

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("num_ranks, kills, stopped_s, node_size, engine", [
    (2, 150, 2, 2, "tcp"), (4, 150, 20, 4, "tcp"), (4, 100, 2, 2, "tcp"), (4, 40, 2, 2, "ucx")])
def test_survivors_learn_who_died_and_nothing_is_left(tmp_path, num_ranks, kills, stopped_s, node_size, engine):
    if engine == "ucx" and ucx_fault():
        pytest.skip(ucx_fault())
    kernels, driver = ROOT / "kernels", tmp_path / "driver"
    sources = [path for folder in ("core", "cpu", "link") for path in (kernels / folder).glob("*.cc")]
    compiler = [*find_compiler(), "-std=c++17", "-O1", "-pthread", f"-DLAYER_RANKS={num_ranks}", f"-I{kernels}"]
    subprocess.run([*compiler, ROOT / "tests/native/link_driver.cc", *sources, "-ldl", "-o", driver], check=True)
    by = [find_ucx()] if engine == "ucx" else []
    done = subprocess.run([driver, str(kills), str(stopped_s), str(node_size), *by], capture_output=True, text=True,
                          timeout=300)
    assert done.returncode == 0 and f"{kills} kills: told within" in done.stdout, done.stdout + done.stderr
