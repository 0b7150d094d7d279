"""Progress: a line on stderr after two seconds and then every five, so that what is quick stays silent."""

from __future__ import annotations

import sys
import threading
import time

FIRST, PERIOD = 2.0, 5.0


class Progress:
    """Shows on stderr what a command does while the block runs; `progress("what")` names the next step.

    Example:
        >>> with Progress("hpmoe demo") as progress:
        ...     progress("warming up")
    """

    def __init__(self, who: str):
        self._who, self._what, self._begin = who, "starting", time.monotonic()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._report, daemon=True)

    def __call__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._done.set()
        self._thread.join()

    def _report(self) -> None:
        pause = FIRST
        while not self._done.wait(pause):
            pause = PERIOD
            print(f"{self._who}: {time.monotonic() - self._begin:3.0f} s  {self._what}", file=sys.stderr, flush=True)
