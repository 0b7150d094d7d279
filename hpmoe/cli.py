"""The command `hpmoe`, and what all of its commands have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence

import mindspore as ms
from absl import flags

from hpmoe.commands import (
    ascend_check,
    bench,
    build,
    calibrate,
    compare,
    demo,
    doctor,
    launch,
    machine,
    memory,
    plan,
    plan_layer,
    show,
    simulate,
    tune,
)
from hpmoe.commands.options import UsageError, define_switch, did_you_mean, flags_text, parse, split_flags
from hpmoe.support.errors import ArgumentError, LaunchError, TransformError
from hpmoe.support.interrupts import end_watch
from hpmoe.support.versions import __version__

COMMANDS = {"demo": demo, "launch": launch, "bench": bench, "show": show, "plan": plan, "simulate": simulate,
            "plan-layer": plan_layer, "compare": compare, "machine": machine, "calibrate": calibrate, "tune": tune,
            "memory": memory, "build": build, "ascend-check": ascend_check, "doctor": doctor}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, that of the process by default, and returns its exit status.

    Returns:
        0; 1 where the command found something wrong; 2 where the command line is.

    Example:
        >>> main(["shwo"])
        2
    """
    args = list(sys.argv[1:] if argv is None else argv)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115  closed by whoever started this
    who = f"hpmoe {args[0]}" if args and args[0] in COMMANDS else "hpmoe"
    try:
        status = _run(args)
        sys.stdout.flush()
        return status
    except UsageError as error:
        return _fail(2, f"{who}: {error} ({who} --help lists what there is)")
    except (ArgumentError, TransformError) as error:  # sizes that are right one by one and not together
        return _fail(2, str(error) if str(error).startswith(who) else f"{who}: {error}")
    except (ImportError, LaunchError, MemoryError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            # Whoever read stdout has left; what is still buffered has nowhere to go.
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


def _run(args: list[str]) -> int:
    if not args or args[0] in ("--help", "-h", "-help", "help"):
        print(help_text())
        return 0
    if args[0] == "--version":
        print(f"hpmoe {__version__}")
        return 0
    name = args[0]
    if name not in COMMANDS:
        raise UsageError(f"unknown {'flag' if name.startswith('-') else 'command'} {name!r}"
                         f"{did_you_mean(name, list(COMMANDS))}")
    values = define(name)
    command = COMMANDS[name]
    own, script = split_flags(values, args[1:]) if command is launch else (args[1:], [])
    options = parse(values, own, getattr(command, "POSITIONAL", ()))
    if options.help:
        print(command_help(name, values))
        return 0
    if command is launch:
        end_watch()
        return launch.run(options, script)
    _keep_ctrl_c()
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
        return command.run(options)


def _keep_ctrl_c() -> None:
    """Gives Ctrl-C back to Python: MindSpore's first operator and first gradient take it, to end the process at once."""
    if threading.current_thread() is threading.main_thread():
        with contextlib.suppress(RuntimeError):  # no memory for operators, which most commands run without
            ms.grad(lambda x: x * x)(ms.Tensor(1.0)).asnumpy()
        signal.signal(signal.SIGINT, signal.getsignal(signal.SIGINT) or signal.default_int_handler)
    end_watch()


def define(name: str) -> flags.FlagValues:
    """The flags of a command, not parsed yet."""
    values = flags.FlagValues()
    COMMANDS[name].define(values)
    define_switch(values, "json", "print one JSON object instead of text")
    define_switch(values, "help", "print this and exit", short_name="h")
    return values


def help_text() -> str:
    commands = "\n".join(f"  hpmoe {name:<13}{command.SUMMARY}" for name, command in COMMANDS.items())
    return ("hpmoe: transforms that turn a pure MoE-FFN written with MindSpore into one persistent kernel\n\n"
            f"{commands}\n\nhpmoe COMMAND --help lists the flags of a command, where - is as good as _, as in --top-k=4;\n"
            "hpmoe --version prints the version.")


def command_help(name: str, values: flags.FlagValues) -> str:
    command = COMMANDS[name]
    return "\n\n".join(filter(None, [f"hpmoe {name}: {command.SUMMARY}", flags_text(values), command.NOTES]))
