"""hpmoe machine: a model of a machine as a file, with the unit, source and range of every number."""

from __future__ import annotations

from pathlib import Path

from absl import flags

import hpmoe
from hpmoe.commands import options
from hpmoe.machines.cached_calibration import is_calibrated
from hpmoe.machines.machine_files import load_machine, machine_text, preset_names
from hpmoe.machines.npu_bins import BINS
from hpmoe.support.errors import ArgumentError

SUMMARY = "prints a model of a machine as a file to change, which --machine=FILE takes"
NOTES = f"""\
hpmoe machine ascend_a3 > mine.toml, then hpmoe simulate --machine=mine.toml. Those that come with hpmoe:
{', '.join(preset_names())}; and cpu, this one, as hpmoe calibrate measured it if it has.
Of the NPUs there are bins: {', '.join(f'ascend_a2.{name}' for name in list(BINS)[:2])}, ...
A file may be like one of them and hold only what differs: `like = "ascend_a3"`."""
POSITIONAL = ("which",)


class MachineName(flags.ArgumentParser):
    """The name of a machine, or a file that describes one."""

    def parse(self, argument: str) -> str:
        if argument != "cpu":
            try:
                load_machine(argument)
            except ArgumentError as error:
                if argument.endswith(".toml") or argument.partition(".")[0] in preset_names():
                    raise ValueError(str(error)) from None
                names = ["cpu", *preset_names()]
                raise ValueError(f"it must be one of {', '.join(names)}, or the path of a .toml file"
                                 f"{options.did_you_mean(argument, names)}") from None
        return argument


def define_machine(values: flags.FlagValues, default: str, text: str) -> None:
    flags.DEFINE(MachineName(), "machine", default, f"{text}: cpu, a name that hpmoe machine lists, or a .toml file",
                 flag_values=values)


def machine_of(o: options.Options, calibrated: bool = False) -> hpmoe.Machine:
    """Returns the machine of the flag; this CPU with its measurements if they are wanted and stored."""
    return hpmoe.cpu(ep_size=o.ep, calibrated=calibrated) if o.machine == "cpu" else load_machine(o.machine)


def define(values: flags.FlagValues) -> None:
    flags.DEFINE(MachineName(), "which", "ascend_a3", "the machine", flag_values=values)
    flags.DEFINE_string("out", None, "the .toml file to write; stdout where not given", flag_values=values)


def run(o: flags.FlagValues) -> int:
    options.check_file("out", o.out, ".toml")
    machine = hpmoe.cpu(calibrated=is_calibrated()) if o.which == "cpu" else load_machine(o.which)
    text = machine_text(machine)
    if o.out:
        Path(o.out).write_text(text, encoding="utf-8")
    return options.report(o, {"name": machine.name, "toml": text},
                          f"{machine.name}: written to {o.out}" if o.out else text.removesuffix("\n"))
