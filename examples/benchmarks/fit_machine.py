"""Fits the model of an NPU to a profiler's table of its kernels, and writes it as a machine file."""

from __future__ import annotations

import sys
from pathlib import Path

import profile_report
import script
from absl import flags
from machine_of_profile import calibrate_by_profile

from hpmoe.commands import options
from hpmoe.commands.machine import define_machine
from hpmoe.ir.limits import MOST_RANKS
from hpmoe.machines.machine_files import load_machine
from hpmoe.support.progress import Progress

SUMMARY = "fits the model of an NPU to a profile of its kernels"
NOTES = """\
  python examples/benchmarks/fit_machine.py op_summary_1.csv --out=mine.toml
The file is op_summary_*.csv of msprof, or kernel_details.csv of a framework's profiler. Its lines of MatMul,
GroupedMatmul, SwiGlu, Add, Mul, Sub, MoeDistributeDispatch, MoeDistributeCombine and AllToAll are simulated, and the
constants that determine their times are fitted. A constant that could not be fitted keeps the value of --machine, and
is listed with the reason. --ep is the number of ranks of an exchange if the file does not say it. Without --out the
machine file goes to stdout, with the report as comments."""
POSITIONAL = ("file",)


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("file", None, "a profiler's table of kernels on an NPU", flag_values=values)
    define_machine(values, "ascend_a3", "the NPU that it is like")
    options.define_integer(values, "ep", None, "ranks of its exchanges")
    flags.DEFINE_string("out", None, "the .toml file to write", flag_values=values)


def run(o: flags.FlagValues) -> int:
    options.check_flag(o.file is not None, "file", None, "a profiler's table of kernels")
    options.check_flag(o.machine != "cpu", "machine", o.machine, "an NPU")
    options.check_flag(o.ep is None or o.ep <= MOST_RANKS, "ep", o.ep, f"at most {MOST_RANKS}")
    options.check_file("out", o.out, ".toml")
    with Progress("fit_machine.py") as progress:
        found = calibrate_by_profile(Path(o.file), load_machine(o.machine), o.ep, progress)
    toml = profile_report.toml(found)
    if o.out:
        Path(o.out).write_text(toml, encoding="utf-8")
    text = f"{profile_report.text(found)}\n\nwritten to {o.out}" if o.out else toml.removesuffix("\n")
    return options.report(o, {"simulated": True, "toml": toml, **profile_report.fields(found)}, text)


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
