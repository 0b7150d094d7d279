"""Seconds in which this machine has run, for the processes of a test: of a pause next to nothing counts."""

import contextlib
import os
import struct
import tempfile
import threading
import time

VARIABLE, TICK_S, LONGEST_TICK_S = "HPMOE_TEST_CLOCK", 0.002, 0.05


def now():
    """In the test and in what it has started."""
    with open(os.environ[VARIABLE], "rb") as file:
        return struct.unpack("d", file.read())[0]


@contextlib.contextmanager
def running_clock(monkeypatch):
    """While this lasts there is a `now`."""
    is_over = threading.Event()

    def count():
        ran, last = 0.0, time.monotonic()
        while not is_over.wait(TICK_S):
            at = time.monotonic()
            ran, last = ran + min(at - last, LONGEST_TICK_S), at
            os.pwrite(file.fileno(), struct.pack("d", ran), 0)

    with tempfile.NamedTemporaryFile() as file:
        os.pwrite(file.fileno(), struct.pack("d", 0.0), 0)
        monkeypatch.setenv(VARIABLE, file.name)
        thread = threading.Thread(target=count)
        thread.start()
        yield
        is_over.set()
        thread.join()
