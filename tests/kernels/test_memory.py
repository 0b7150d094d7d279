"""The pool behind a launch's buffers: memory comes back only when nothing refers to it, and never grows past a peak."""

import sys

import numpy as np

from hpmoe.kernels.memory import ALIGNMENT, Pool


def test_memory_is_reused_only_when_the_last_view_is_gone():
    pool = Pool()
    first = pool.empty((3, 5), np.float32)
    address, view = first.ctypes.data, first.reshape(5, 3)[1:]
    del first
    assert pool.empty((3, 5), np.float32).ctypes.data != address
    del view
    taken = [pool.empty((3, 5), np.float32) for _ in range(2)]
    assert address in [a.ctypes.data for a in taken]


def test_arrays_are_aligned_distinct_and_of_the_asked_shape():
    pool = Pool()
    arrays = [pool.empty(shape, np.float32) for shape in [(0, 4), (7, 3), (1, 1), (64, 64)]]
    assert [a.shape for a in arrays] == [(0, 4), (7, 3), (1, 1), (64, 64)]
    assert all(a.ctypes.data % ALIGNMENT == 0 for a in arrays)
    for i, a in enumerate(arrays):
        a[...] = i
    assert all((a == i).all() for i, a in enumerate(arrays))
    assert (pool.zeros((5, 5), np.float32) == 0).all()


def test_memories_of_a_lease_come_back_together():
    pool, sizes = Pool(), [300, 1, 70]
    lease = pool.lease(sizes)
    starts = [lease.address(i) for i in range(3)]
    assert [lease.array(i).shape for i in range(3)] == [(n,) for n in sizes] and len(set(starts)) == 3
    view = lease.array(1)
    del lease
    assert pool.lease([300]).address(0) not in starts
    del view
    again = pool.lease(sizes)
    assert [again.address(i) for i in range(3)][1:] == starts[1:] and pool.peak_bytes == 2 * 300 + 71 + 4 * ALIGNMENT


def test_other_sizes_do_not_pile_up():
    pool = Pool()
    for size in range(1, 60):
        pool.empty((size, 1000), np.float32)
    held = sum(b.nbytes for b in (*pool._free, *(block for leased in pool._returned for block in leased.blocks)))
    assert held <= 2 * (60 * 4000 + ALIGNMENT)


def test_a_destructor_runs_no_python():
    """An error of a signal handler in a destructor would be lost, Ctrl-C included."""
    pool, seen = Pool(), []
    arrays = [pool.empty((8,), np.float32) for _ in range(3)]
    sys.setprofile(lambda frame, event, _: seen.append(frame.f_code.co_name) if event == "call" else None)
    arrays.clear()
    sys.setprofile(None)
    assert seen == [] and len(pool._returned) == 3
