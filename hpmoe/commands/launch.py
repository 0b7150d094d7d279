"""hpmoe launch: starts a script as several ranks on this computer."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from absl import flags

from hpmoe.commands import options
from hpmoe.ranks.starting import start_ranks

SUMMARY = "starts a script as several ranks, each a process: hpmoe launch -n 4 script.py its arguments"
NOTES = """\
What follows the script is passed on to it. Each rank has its own number in RANK, LOCAL_RANK and RANK_ID, and how many there
are in WORLD_SIZE; hpmoe.world() reads them. Folder and environment are this process's, cores are divided among ranks.

Where a rank fails, a line on stderr says how. The others go on: they raise an error where they need that rank. Ctrl-C and
SIGTERM reach all. Exits with the status of the first rank that failed, 128 and its number after a signal."""


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "ranks", None, "how many; -n says it shorter", short_name="n")


def run(o: flags.FlagValues, script: Sequence[str]) -> int:
    """`script` is what stands after the flags: a file and its arguments."""
    options.check_flag(o.ranks is not None, "ranks", None, "given, as in -n 4")
    if not script or not os.path.isfile(script[0]):
        raise options.UsageError(f"script {' '.join(script[:1])!r}: it must be a file, after the flags")
    status = start_ranks([sys.executable, *script], o.ranks)
    if o.json:
        print(json.dumps({"status": status}))
    return status
