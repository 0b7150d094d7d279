"""The other end of worker.py: starts a side's process, asks it, and says what became of it when it does not answer."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from sides import Side

from hpmoe.support.cached_files import Fields
from hpmoe.support.known import known

WORKER = Path(__file__).with_name("worker.py")
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class WorkerError(RuntimeError):
    """A side's process ended or did not answer in time; the text has the last line of its stderr."""


class Process:
    """The process of a side, stopped by SIGSTOP whenever it is not asked, so that its threads take nothing from others."""

    def __init__(self, side: Side, folder: Path, variant: Mapping[str, str], threads: int, timeout: float):
        self.timeout = timeout
        self._log = tempfile.TemporaryFile("w+", errors="replace")
        self._child = subprocess.Popen(
            [sys.executable, str(WORKER), str(folder), side.module, side.entry], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self._log, text=True,
            env={**os.environ, **dict.fromkeys(THREADS, str(threads)), **variant})

    def ask(self, do: str, **fields: str) -> Fields:
        """The answer to one command. Raises WorkerError, after which the process is gone."""
        self._child.send_signal(signal.SIGCONT)
        try:
            known(self._child.stdin).write(json.dumps({"do": do, **fields}) + "\n")
            known(self._child.stdin).flush()
        except BrokenPipeError:
            pass  # it has ended; reading finds out how
        answer = self._read_line()
        self._child.send_signal(signal.SIGSTOP)
        return json.loads(answer)

    def _read_line(self) -> str:
        deadline, text = time.monotonic() + self.timeout, b""
        out = known(self._child.stdout).fileno()
        while not text.endswith(b"\n"):
            if not select.select([out], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise self._failed(f"did not answer in {self.timeout:g} s")
            got = os.read(out, 65536)
            if not got:
                raise self._failed(f"ended with {how_it_ended(self._child.wait())}")
            text += got
        return text.decode()

    def _failed(self, what: str) -> WorkerError:
        self._child.kill()
        self._child.wait()
        self._log.seek(0)
        said = [line.strip() for line in self._log if line.strip()]
        self.close()
        return WorkerError(f"{what}; {'its last words: ' + said[-1] if said else 'it said nothing'}")

    def close(self) -> None:
        self._child.kill()
        self._child.wait()
        for stream in (self._child.stdin, self._child.stdout, self._log):
            with contextlib.suppress(BrokenPipeError):
                known(stream).close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def how_it_ended(status: int) -> str:
    """A return code of subprocess in words.

    Example:
        >>> how_it_ended(1), how_it_ended(-11)
        ('status 1', 'SIGSEGV')
    """
    return signal.Signals(-status).name if status < 0 else f"status {status}"
