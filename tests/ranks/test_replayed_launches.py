"""Ranks as processes launch kernels together: bitwise as virtual ranks, and each learns how another one ended."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "support" / "replayed_launches.py"


def ends_of(num_ranks, end, times=3):
    """What the ranks print."""
    command = [sys.executable, "-m", "hpmoe", "launch", "-n", str(num_ranks), str(SCRIPT), str(times), end]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    text = done.stdout + done.stderr
    assert text.count("20 kernels are equal") == num_ranks, text
    return done.returncode, text


@pytest.mark.slow
def test_as_virtual_ranks_and_after_an_error_of_one(num_ranks=2):
    code, text = ends_of(num_ranks, "failed")
    assert code == 0 and text.count(f"rank {num_ranks - 1} failed: a step: ValueError: no tokens") == num_ranks - 1, text
    assert text.count("goes on") == num_ranks, text


@pytest.mark.slow
def test_others_learn_which_rank_died():
    code, text = ends_of(3, "killed")
    assert code != 0 and text.count("rank 2 was killed by SIGKILL during") == 2, text
