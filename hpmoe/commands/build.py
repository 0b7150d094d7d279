"""hpmoe build: compiles the kernel of a target that pip does not compile."""

from __future__ import annotations

import json

from absl import flags

from hpmoe.commands import options
from hpmoe.kernels.ascendc import build as ascend_build

SUMMARY = "compiles the Ascend kernel for MindSpore on a machine with CANN; elsewhere, says what is missing"
NOTES = """\
pip compiles the kernel of the cpu target and the emulator of an NPU. The Ascend kernel is type-checked and run
functionally by the emulator; no device compiler has compiled it and no NPU has run it. Exits with 1 if something is
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
