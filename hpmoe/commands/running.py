"""Runs a command: parses its flags, prints its help, and turns an error into one line and an exit status.

A command is a module: SUMMARY and NOTES are texts of its help, `define(values)` adds its flags, and `run(o)` returns an
exit status.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Sequence
from types import ModuleType

import mindspore as ms
from absl import flags

from hpmoe.commands.options import UsageError, define_switch, flags_text, parse
from hpmoe.support.errors import ArgumentError, LaunchError, TransformError
from hpmoe.support.interrupts import end_watch


def define(command: ModuleType) -> flags.FlagValues:
    """Returns the flags of a command, not parsed yet."""
    values = flags.FlagValues()
    command.define(values)
    define_switch(values, "json", "print one JSON object instead of text")
    define_switch(values, "help", "print this and exit", short_name="h")
    return values


def help_text(who: str, command: ModuleType, values: flags.FlagValues) -> str:
    """Returns what --help prints: the summary, a line for each flag, and the notes."""
    return "\n\n".join(filter(None, [f"{who}: {command.SUMMARY}", flags_text(values), command.NOTES]))


def run_command(who: str, command: ModuleType, args: Sequence[str]) -> int:
    """Parses the arguments of a command `who`, prints its help or runs it, and returns its exit status."""
    values = define(command)
    options = parse(values, args, getattr(command, "POSITIONAL", ()))
    if options.help:
        print(help_text(who, command, values))
        return 0
    _keep_ctrl_c()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        return command.run(options)


def guarded(who: str, run: Callable[[], int]) -> int:
    """Runs a function and returns its exit status; an error becomes one line on stderr and a status."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  closed by whoever started this
    try:
        status = run()
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _fail(2, f"{who}: {error} See {who} --help.")
    except (ArgumentError, TransformError) as error:  # sizes that are right one by one and not together
        return _fail(2, str(error) if str(error).startswith(who) else f"{who}: {error}")
    except (ImportError, LaunchError, MemoryError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # The reader of stdout has left; text that is still buffered has no destination.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 1
        return _fail(1, f"{who}: {str(error) or 'not enough memory'}")
    except RuntimeError as error:
        if not any(word in str(error).lower() for word in ("memory", "bad_alloc")):
            raise
        return _fail(1, f"{who}: not enough memory for MindSpore: {str(error).splitlines()[0]}")
    except KeyboardInterrupt:
        return _fail(130, f"{who}: interrupted")


def _fail(status: int, text: str) -> int:
    print(text, file=sys.stderr)
    return status


def _keep_ctrl_c() -> None:
    """Gives Ctrl-C back to Python: MindSpore's first operator and first gradient take it, to end the process at once."""
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(RuntimeError):  # no memory for operators, which most commands run without
            ms.grad(lambda x: x * x)(ms.Tensor(1.0)).asnumpy()
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT) or signal.default_int_handler)
    end_watch()
