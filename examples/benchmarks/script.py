"""Shared code of the scripts in this folder; each script is a command like those of `hpmoe`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from absl import flags
from sides import SIDES

from hpmoe.commands import options, running
from hpmoe.kernels.native import products_name
from hpmoe.support import host
from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.versions import version

DTYPES = {"both": ("float32", "bfloat16"), "float32": ("float32",), "bfloat16": ("bfloat16",)}
assert {d for names in DTYPES.values() for d in names} <= set(FLOATS)


def main(script: ModuleType, args: Sequence[str] | None = None) -> int:
    """Runs a script with these arguments, those of the process by default, and returns its exit status."""
    who = Path(script.__file__ or "").name
    given = sys.argv[1:] if args is None else args
    return running.guarded(who, lambda: running.run_command(who, script, given))


def define_dtypes(values: flags.FlagValues) -> None:
    options.define_choice(values, "dtype", "both", "of everything but the ids", tuple(DTYPES))


def define_picture(values: flags.FlagValues) -> None:
    flags.DEFINE_string("out", None, "where to draw the result, such as bench.png; needs matplotlib", flag_values=values)


def machine() -> Fields:
    """Returns the description of the computer that a report was measured on."""
    packages = sorted({side.package for side in SIDES.values()})
    return {"cpu": host.cpu_name(), "cores": host.num_cores(), "hpmoe_gemm": products_name(),
            "versions": {name: version(name) for name in packages if version(name)}}
