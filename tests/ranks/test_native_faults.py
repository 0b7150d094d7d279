"""Ranks that are processes without Python: 300 kills at random moments, a rank that is stopped for 20 s, and other ends."""

import subprocess
from pathlib import Path

import pytest

from hpmoe.kernels.build_native import find_compiler

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("num_ranks, kills, stopped_s", [(2, 150, 2.5), (4, 150, 20)])
def test_survivors_learn_who_died_and_nothing_is_left(tmp_path, num_ranks, kills, stopped_s):
    kernels, driver = ROOT / "kernels", tmp_path / "driver"
    sources = [path for folder in ("core", "cpu", "link") for path in (kernels / folder).glob("*.cc")]
    compiler = [*find_compiler(), "-std=c++17", "-O1", "-pthread", f"-DLAYER_RANKS={num_ranks}", f"-I{kernels}"]
    subprocess.run([*compiler, ROOT / "tests/native/link_driver.cc", *sources, "-ldl", "-o", driver], check=True)
    done = subprocess.run([driver, str(kills), str(stopped_s)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and f"{kills} kills: told within" in done.stdout, done.stdout + done.stderr
