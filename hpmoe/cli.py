"""The command `hpmoe`, and what all of its commands have in common."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from absl import flags

from hpmoe.commands import (
    ascend_check,
    build,
    calibrate,
    compare,
    demo,
    doctor,
    launch,
    machine,
    memory,
    running,
    show,
    simulate,
    tune,
)
from hpmoe.commands.options import UsageError, did_you_mean, parse, split_flags
from hpmoe.support.interrupts import end_watch
from hpmoe.support.versions import __version__

COMMANDS = {"demo": demo, "launch": launch, "show": show, "simulate": simulate, "compare": compare, "tune": tune,
            "memory": memory, "machine": machine, "calibrate": calibrate, "build": build, "ascend-check": ascend_check,
            "doctor": doctor}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command line, that of the process by default, and returns its exit status.

    Returns:
        0 on success, 1 if the command failed or found a fault, 2 if the command line is wrong.

    Example:
        >>> main(["shwo"])
        2
    """
    args = list(sys.argv[1:] if argv is None else argv)
    who = f"hpmoe {args[0]}" if args and args[0] in COMMANDS else "hpmoe"
    return running.guarded(who, lambda: _run(args))


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
    if COMMANDS[name] is launch:
        return _launch(args[1:])
    return running.run_command(f"hpmoe {name}", COMMANDS[name], args[1:])


def _launch(args: list[str]) -> int:
    """Runs `hpmoe launch`, whose arguments end with a script and the script's own flags."""
    values = define("launch")
    own, script = split_flags(values, args)
    options = parse(values, own)
    if options.help:
        print(running.help_text("hpmoe launch", launch, values))
        return 0
    end_watch()
    return launch.run(options, script)


def define(name: str) -> flags.FlagValues:
    """Returns the flags of a command by its name, before they are parsed."""
    return running.define(COMMANDS[name])


def help_text() -> str:
    commands = "\n".join(f"  hpmoe {name:<13}{command.SUMMARY}" for name, command in COMMANDS.items())
    return ("hpmoe: transforms that turn a pure MoE-FFN written with MindSpore into one persistent kernel\n\n"
            f"{commands}\n\nhpmoe COMMAND --help lists the flags of a command, where - is as good as _, as in --top-k=4;\n"
            "hpmoe --version prints the version.")
