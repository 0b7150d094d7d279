"""Calls of a group of processes; here each rank is a thread with its own connections."""

import os
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from failing_calls import RANKS, assert_errors_of_all, failing_calls
from rank_threads import names_of, on_threads

from hpmoe import LaunchError
from hpmoe.kernels.link import Link
from hpmoe.kernels.link_native import leave_links
from hpmoe.ranks.hosts import meet_all
from hpmoe.ranks.launchers import Launched
from hpmoe.support.dtypes import numpy_dtype


@pytest.fixture
def run_ranks():
    """Runs f(link) on each rank and returns the results or errors."""
    opened = []

    def run(size, f, timeout=20.0):
        run_of = secrets.token_bytes(32)

        def rank_of(rank):
            _, group = meet_all(Launched("threads", rank, size, run_of), names_of(size), 10)
            opened.append(group)
            opened.append(link := Link(group, timeout=timeout, heap_bytes=1 << 24))
            return f(link)
        return on_threads(size, rank_of)

    def close():
        [each.close() for each in opened]
        opened.clear()

    run.close = close
    yield run
    close()


def test_ranks_give_each_other_bytes_many_times(run_ranks):
    def f(link):
        return [link.meet("bytes", bytes([link.rank, step])) for step in range(50)]

    for found in run_ranks(3, f):
        assert found == [[bytes([r, step]) for r in range(3)] for step in range(50)]


def test_a_link_that_is_closed_has_nothing_open(run_ranks):
    def num_open():
        return len(os.listdir("/proc/self/fd")), Path("/proc/self/maps").read_text().count("memfd:hpmoe")

    before = num_open()
    run_ranks(4, lambda link: link.meet("a name", link.pool.zeros((3,), np.int64).tobytes()))
    files, maps = (now - then for now, then in zip(num_open(), before, strict=True))
    assert files == 6 + 12 + 4 * 5 and maps >= 4 * 4  # ends of connections, and of each rank its heap and pidfds
    run_ranks.close()
    assert num_open() == before


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_sums_are_float32_in_rank_order_and_rounded_once(run_ranks, dtype):
    rng = np.random.default_rng(0)
    parts = [[(rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(numpy_dtype(dtype)) for n in (1001, 0, 3)]
             for _ in range(3)]
    wanted = []
    for column in zip(*parts, strict=True):
        total = np.zeros(len(column[0]), np.float32)
        for part in column:
            total = total + part.astype(np.float32)
        wanted.append(total.astype(numpy_dtype(dtype)))
    for found in run_ranks(3, lambda link: link.sum(parts[link.rank])):
        assert [a.tobytes() for a in found] == [a.tobytes() for a in wanted]


def test_an_error_reaches_all_ranks_and_the_next_call_is_fresh(run_ranks):
    assert_errors_of_all(run_ranks(RANKS, failing_calls))


def test_an_error_after_the_barrier_belongs_to_the_same_call(run_ranks):
    def f(link):
        told = []
        for step in range(5):
            try:
                with link.calling("a layer"):
                    link.meet("all", b"")
                    if (step, link.rank) in ((1, 0), (3, 1)):
                        raise ValueError(f"late {step}")
            except (ValueError, LaunchError) as error:
                told.append((step, str(error)))
        return told, link.meet("last", bytes([link.rank]))

    both = [b"\0", b"\1"]
    assert run_ranks(2, f) == [
        ([(1, "late 1"), (3, "rank 1 failed: a layer: ValueError: late 3.")], both),
        ([(1, "rank 0 failed: a layer: ValueError: late 1."), (3, "late 3")], both)]


def test_ranks_that_are_a_call_apart_never_mix(run_ranks):
    def f(link):
        link._calls += link.rank  # as where an interrupt comes while a call ends
        for _ in range(2):
            with pytest.raises(LaunchError, match="at all, its call .* once more than the other"), link.calling("a layer"):
                link.meet("all", b"")

    assert run_ranks(2, f) == [None, None]


class Turn:
    """A lock that tells of a thread that has found it taken."""

    def __init__(self):
        self.is_wanted, self._lock = threading.Event(), threading.Lock()
        self.release = self._lock.release

    def acquire(self, blocking=True):
        is_mine = self._lock.acquire(blocking)
        if not is_mine:
            self.is_wanted.set()
        return is_mine


def test_calls_of_two_threads_at_once_are_refused_on_all_ranks(run_ranks):
    def f(link):
        link._turn = Turn()
        with ThreadPoolExecutor(1) as other:
            with link.calling("a layer"):
                if link.rank == 0:
                    second = other.submit(call, link)
                    link._turn.is_wanted.wait(20)
                link.meet("all", b"")
            if link.rank == 1:
                second = other.submit(call, link)
            error = second.exception()
        return str(error).partition(":")[0], link.meet("last", b"x")

    def call(link):
        with link.calling("another"):
            link.meet("all", b"")

    words = "another began on one thread while another one's call was under way"
    assert run_ranks(2, f) == [(words, [b"x", b"x"]), ("rank 0 failed", [b"x", b"x"])]


def test_a_forked_child_is_no_rank_and_its_end_is_none_of_one(run_ranks):
    def f(link):
        link.meet("before", b"")
        child = os.fork()
        if child == 0:
            try:
                with link.calling("a layer"):
                    os._exit(1)
            except LaunchError as error:
                with pytest.raises(LaunchError, match="forked from rank"):
                    link.meet("of a child", b"")
                leave_links()  # as sys.exit does
                os._exit(0 if str(error).startswith(f"this process was forked from rank {link.rank} and is no") else 2)
        assert os.waitpid(child, 0)[1] == 0
        return link.meet("after", bytes([link.rank]))

    assert run_ranks(2, f) == [[b"\0", b"\1"]] * 2


def test_ranks_that_do_different_things_are_told_and_go_on(run_ranks):
    def f(link):
        with pytest.raises(LaunchError) as error:
            link.meet(("a layer", "a sum")[link.rank], b"")
        with pytest.raises(LaunchError, match=f"rank {1 - link.rank} calls a layer with other shapes than this"):
            link.meet("a layer", b"", key=bytes([link.rank]))
        return str(error.value), error.value.status, link.meet("last", b"x")

    assert run_ranks(2, f) == [
        ("rank 1 is at a sum where this rank is at a layer.", {"rank": 1}, [b"x", b"x"]),
        ("rank 0 is at a layer where this rank is at a sum.", {"rank": 0}, [b"x", b"x"])]


def test_waits_are_of_the_rank_that_came_last(run_ranks):
    def f(link):
        for _ in range(20 * (link.rank == 1)):
            time.sleep(0.01)  # often, as a pause of the machine is one of them: the others look for it meanwhile
        link.meet("all", b"")
        return link.waits

    waits = run_ranks(3, f)
    assert [int(np.argmax(w)) for w in (waits[0], waits[2])] == [1, 1] and waits[1][1] == 0 < waits[0][1]


def test_a_rank_that_does_not_come_is_named(run_ranks):
    def f(link):
        if link.rank == 1:
            return "elsewhere"
        return link.meet("all", b"")

    assert list(map(str, run_ranks(2, f, 0.3))) == ["rank 1 has not come to all in time.", "elsewhere"]
