"""hpmoe build: compiles the kernel of a target that pip does not compile."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from absl import flags

from hpmoe.commands import options
from hpmoe.commands.ascend import build_needs, library_path, sources

SUMMARY = "compiles the Ascend kernel on a machine with CANN; elsewhere, says what is missing"
NOTES = """\
The kernel of the cpu target and the twin of an NPU are compiled by pip. The Ascend kernel is type-checked and executed
functionally on a CPU twin; never compiled by the device compiler, never run on an NPU. Exits with 1 where something is
missing or the compilation fails."""


def define(values: flags.FlagValues) -> None:
    options.define_choice(values, "target", "ascend", "what to compile", ("ascend",))


def run(o: Any) -> int:
    missing = build_needs(os.environ)
    folder = library_path().parent
    if not missing:
        for command in (["cmake", "-S", str(sources()), "-B", str(folder)], ["cmake", "--build", str(folder)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                missing = [f"{' '.join(command)} failed:", *(done.stderr or done.stdout).splitlines()[-20:]]
                break
    if o.json:
        print(json.dumps({"target": o.target, "library": None if missing else str(library_path()), "missing": missing}))
    else:
        print("\n  ".join(["hpmoe build --target=ascend: cannot be built here", *missing]) if missing else
              f"built {library_path()}")
    return 1 if missing else 0

