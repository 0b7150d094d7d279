"""A clock for the processes of a test that excludes pauses of the machine: a pause of any length counts as 0.05 s."""

import contextlib
import os
import struct
import tempfile
import threading
import time

VARIABLE, TICK_S, LONGEST_TICK_S = "HPMOE_TEST_CLOCK", 0.002, 0.05


def now():
    """Returns seconds: of the test's running_clock in processes that the test started, else of time.monotonic()."""
    if VARIABLE not in os.environ:
        return time.monotonic()
    with open(os.environ[VARIABLE], "rb") as file:
        return struct.unpack("d", file.read())[0]


@contextlib.contextmanager
def running_clock(monkeypatch):
    """Runs the clock, which `now` reads, while the context lasts."""
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
        try:
            yield
        finally:
            is_over.set()
            thread.join()
