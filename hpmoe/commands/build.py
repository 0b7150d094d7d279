"""hpmoe build: compiles the kernel of a target that pip does not compile."""

from __future__ import annotations

import json

from absl import flags

from hpmoe.commands import options
from hpmoe.kernels.ascendc import build as ascend_build

SUMMARY = "compiles the Ascend kernel for MindSpore on a machine with CANN; elsewhere, says what is missing"
NOTES = """\
The kernel of the cpu target and the twin of an NPU are compiled by pip. The Ascend kernel is type-checked and executed
functionally on a CPU twin; never compiled by the device compiler, never run on an NPU. Exits with 1 where something is
missing or the compilation fails."""


def define(values: flags.FlagValues) -> None:
    options.define_choice(values, "target", "ascend", "what to compile", ("ascend",))


def run(o: flags.FlagValues) -> int:
    missing = ascend_build.build()
    built = None if missing else str(ascend_build.compiled_path())
    if o.json:
        print(json.dumps({"target": o.target, "library": built, "missing": missing}))
    else:
        print("\n  ".join(["hpmoe build --target=ascend: cannot be built here", *missing]) if missing else f"built {built}")
    return 1 if missing else 0
