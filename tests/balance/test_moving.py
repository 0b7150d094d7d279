"""Ids go to places, and what is kept for each expert goes along."""

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.balance import move_experts, physical_ids


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_ids_are_mapped_eagerly_and_in_a_kernel(dtype):
    rng = np.random.default_rng(0)
    places = rng.permutation(6).astype(np.int32)
    ids = np.stack([rng.permutation(7)[:3] - 1 for _ in range(10)]).astype(dtype)  # -1 is among them
    expected = np.where(ids < 0, -1, places[ids])
    args = ms.Tensor(ids), ms.Tensor(places)
    kernel = hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(physical_ids, rows=4)))
    assert (ids < 0).any()
    for f in (physical_ids, kernel):
        found = f(*args).asnumpy()
        assert np.array_equal(found, expected) and found.dtype == dtype
    assert np.array_equal(physical_ids(ms.Tensor(np.stack([ids, ids])), args[1]).asnumpy()[1], expected)


@pytest.mark.parametrize("shape", [(6, 2, 3), (6,), (2, 3, 2), (3, 2, 5, 1)])
@pytest.mark.parametrize("dtype", [ms.float32, ms.bfloat16, ms.int32])
def test_experts_are_moved_in_place_bit_for_bit(shape, dtype):
    rng = np.random.default_rng(0)
    before, after = rng.permutation(6), rng.permutation(6)
    value = ms.Tensor(rng.integers(0, 100, shape)).astype(dtype)
    tensor = ms.Parameter(value, name="experts")
    memory, values = tensor.data_ptr(), value.astype(ms.float32).asnumpy().reshape(6, -1)
    move_experts([tensor], before, after)
    moved = tensor.astype(ms.float32).asnumpy().reshape(6, -1)
    for place, expert in enumerate(after):
        assert np.array_equal(moved[place], values[list(before).index(expert)])
    assert tensor.data_ptr() == memory and tensor.shape == shape and tensor.dtype == dtype
