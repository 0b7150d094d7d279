"""Ranks as processes launch kernels together: bitwise as virtual ranks, and each learns how another one ended."""

from pathlib import Path

import pytest
from forked import start_forked

SCRIPT = Path(__file__).parents[1] / "support" / "replayed_launches.py"


def ends_of(num_ranks, end, times=3):
    """Returns the ranks' output."""
    status, *streams = start_forked([SCRIPT, times, end], num_ranks)
    text = "".join(streams)
    assert text.count("20 kernels are equal") == num_ranks, text
    return status, text


@pytest.mark.slow
def test_as_virtual_ranks_and_after_an_error_of_one(num_ranks=2):
    code, text = ends_of(num_ranks, "failed")
    assert code == 0 and text.count(f"rank {num_ranks - 1} failed: a step: ValueError: no tokens") == num_ranks - 1, text
    assert text.count("goes on") == num_ranks, text


@pytest.mark.slow
def test_others_learn_which_rank_died():
    code, text = ends_of(3, "killed")
    assert code != 0 and text.count("rank 2 was killed by SIGKILL during") == 2, text
