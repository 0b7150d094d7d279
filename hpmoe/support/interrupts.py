"""Ctrl-C in the command `hpmoe` before its handling is Python's: in the seconds of imports, and while MindSpore takes it.

Importing this starts the watch where the program is the command; `hpmoe` imports it before anything that takes time.
"""

import os
import signal
import sys
import threading
from pathlib import Path

_INTERRUPT = {signal.SIGINT}


class Watch:
    """Ends the process with a line of its own at Ctrl-C, which no other thread takes: not one that MindSpore starts."""

    def __init__(self) -> None:
        self._has_ended = False
        signal.pthread_sigmask(signal.SIG_BLOCK, _INTERRUPT)
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Directs Ctrl-C to this thread's handler from now on."""
        self._has_ended = True
        signal.pthread_kill(self._thread.ident or 0, signal.SIGINT)
        self._thread.join()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _INTERRUPT)

    def _wait(self) -> None:
        signal.sigwait(_INTERRUPT)
        if not self._has_ended:
            os.write(2, b"hpmoe: interrupted\n")
            os._exit(130)


def _is_command() -> bool:
    """Returns True if the program is `hpmoe` or `python -m hpmoe`; the latter imports hpmoe before sys.argv has its name."""
    if sys.argv[:1] == ["-m"]:
        return sys.orig_argv[-len(sys.argv)].removeprefix("-m") == "hpmoe"
    return Path(*sys.argv[:1]).name == "hpmoe"


_watches = [Watch()] if _is_command() and threading.current_thread() is threading.main_thread() else []


def end_watch() -> None:
    """Stops watching for Ctrl-C, which the import of this module starts in the command; does nothing in other programs."""
    while _watches:
        _watches.pop().end()
