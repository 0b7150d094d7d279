"""Ranks as threads of one process: run a function on each rank, wait for a listener, and skip waiting times."""

import contextlib
import threading
import time

from hpmoe import LaunchError
from hpmoe.ranks import rendezvous


def names_of(size):
    return [f"rank {rank}" for rank in range(size)]


def size_of(meeting):
    meeting.close()
    return len(meeting.names)


def on_threads(size, f, ranks=None):
    """Calls f(rank) on one thread for each rank; returns its results, or the LaunchErrors that it raises."""
    found = {}

    def run(rank):
        try:
            found[rank] = f(rank)
        except LaunchError as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in (range(size) if ranks is None else ranks)]
    [thread.start() for thread in threads]
    [thread.join(30) for thread in threads]
    assert not any(thread.is_alive() for thread in threads)
    return [found[rank] for rank in sorted(found)]


def listening(point):
    """Waits until a process listens at a point; returns a function that connects to the point."""
    while True:
        with contextlib.suppress(OSError), point.connect(5):
            return lambda: point.connect(5)
        time.sleep(0.01)


class Patience:
    """A clock for rendezvous.py: it stands still until `end` is called, then jumps past every deadline."""

    def __init__(self, monkeypatch):
        self._is_over, self._began, self.sleep = threading.Event(), time.monotonic(), time.sleep
        self.end = self._is_over.set
        monkeypatch.setattr(rendezvous, "time", self)

    def monotonic(self):
        return self._began + 1000 * self._is_over.is_set()
