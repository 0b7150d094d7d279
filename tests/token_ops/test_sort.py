"""The native sort of entries: stable, of any number of entries and experts, and what a launch sorts by."""

import numpy as np
import pytest

from hpmoe.kernels.token_rows import Entries, _order, collect, sorted_places
from hpmoe.routing.capacity import heaviest_first, stable_order


def assert_sorted(keys):
    order = np.full(keys.size, -1, np.int32)
    places = sorted_places(keys, order)
    assert (places[order] == np.arange(keys.size, dtype=np.int32)).all()  # so that each entry comes once
    by_key_and_entry = keys[order] * np.int64(2**32) + order
    assert (by_key_and_entry[1:] > by_key_and_entry[:-1]).all()


@pytest.mark.parametrize("experts", [1, 2, 255, 256, 257, 1024, 70_000])
@pytest.mark.parametrize("entries", [1, 1000, 40_000])
def test_of_every_number_of_experts(entries, experts):
    assert_sorted(np.random.default_rng(entries).integers(-1, experts, entries).astype(np.int32))


@pytest.mark.parametrize("entries", [2**21, pytest.param(2**24, marks=pytest.mark.slow)])
def test_of_millions_of_entries_of_a_thousand_experts(entries):
    assert_sorted(np.random.default_rng(0).integers(0, 1024, entries, np.int32))


@pytest.mark.parametrize("keys", [[], [5], [2**31 - 1, -2**31, 0, -1, 2**31 - 1], [7] * 100_000])
def test_of_odd_keys(keys):
    assert_sorted(np.array(keys, np.int32))


@pytest.mark.parametrize("sort", [stable_order, _order])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_from_the_heaviest_down(dtype, sort):
    drawn = np.random.default_rng(0).standard_normal(3000).round(2)
    weights = np.concatenate([drawn, [0.0, -0.0, np.inf, -np.inf, 1e-300, -1e-300, 6e-8, -6e-8]]).astype(dtype)
    np.testing.assert_array_equal(heaviest_first(weights, sort), np.lexsort([-weights]))


def test_rows_past_four_gigabytes_are_found():
    """The array is sparse: few of its pages are touched."""
    rows = np.zeros((2**21 + 8, 512), np.float32)  # 4.3 GB
    rows[-1], rows[2**20], rows[0] = 3.0, 5.0, 7.0
    places = np.array([len(rows) - 1, 2**20, 0, len(rows) - 1 - 2**20], np.int32)
    out = collect(rows, Entries(places, 2, len(rows), 0), None, "float32")
    np.testing.assert_array_equal(out, np.repeat([[8.0], [7.0]], 512, axis=1))
