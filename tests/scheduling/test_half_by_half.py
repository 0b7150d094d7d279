"""Runs in which slots are finished: each half of what is left, the last with about as many as matrix workers need."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpmoe.scheduling.queue_order import half_by_half


@pytest.mark.parametrize("likely, spare, least", [(512, 3, 8), (96, 8, 4), (33, 3, 2), (40, 0, 24), (5, 1, 8), (1, 0, 1)])
def test_each_run_is_half_of_what_is_left_and_the_last_no_less_than_the_least(likely, spare, least):
    slot = np.arange(likely + spare)
    slots = SimpleNamespace(place=slot, num_likely=likely)
    run = half_by_half(slots, least)
    sizes, left = np.bincount(run[:likely]), likely
    assert (np.diff(run) >= 0).all() and (run[likely:] == run[likely - 1]).all()
    for size in sizes[:-1]:
        assert abs(size - left / 2) <= 1
        left -= size
    assert min(least, likely) <= sizes[-1] + 1 and sizes[-1] <= 2 * least + 1
