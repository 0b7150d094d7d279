"""hpmoe ascend-check: the checks of a first day on an NPU, and the machine file that it measures."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from absl import flags
from mindspore import communication

from hpmoe.bring_up.device import Device
from hpmoe.bring_up.ladder import LADDER, Rung, climb
from hpmoe.bring_up.rates import Rate, measured_machine
from hpmoe.commands import options
from hpmoe.commands.machine import load_machine
from hpmoe.kernels.ascendc.build import DEVICES, run_needs
from hpmoe.kernels.ascendc.device import Npu, find_npu
from hpmoe.machines.machine import Machine
from hpmoe.machines.machine_files import machine_text
from hpmoe.ranks.launchers import find_launched
from hpmoe.support.progress import Progress

SUMMARY = "checks the Ascend kernel step by step on an NPU or its emulator, and measures a machine file"
NOTES = f"""\
  hpmoe ascend-check --target=ascend-emulator
{len(LADDER)} checks in the order of a first day, from the build to layers on all ranks; it stops at the first that fails,
says where to look, and exits with 1. Every number is compared with NumPy in float64. On an NPU it runs the library of
hpmoe build, one rank for each process that msrun starts; what needs two ranks is left out without. On
ascend-emulator it executes the source of the kernel on this CPU, two ranks in this process: of an NPU only its rules.
--out writes --machine with the rates that were measured, for hpmoe simulate --machine=FILE."""


def define(values: flags.FlagValues) -> None:
    options.define_choice(values, "target", "ascend", "what to check", ("ascend", "ascend-emulator"))
    flags.DEFINE_string("machine", "ascend_a3", "what kernels are planned for, a name that hpmoe machine lists, or a file",
                        flag_values=values)
    options.define_switch(values, "all", "go on after a check that failed")
    flags.DEFINE_string("out", None, "the .toml file to write what was measured to", flag_values=values)


def run(o: flags.FlagValues) -> int:
    options.check_file("out", o.out, ".toml")
    machine = load_machine(o.machine)
    options.check_flag(not machine.unified, "machine", o.machine, "an NPU, with AIC and AIV")
    device = _emulator(machine) if o.target == "ascend-emulator" else _npu(machine)
    rungs: list[Rung] = []
    with Progress("hpmoe ascend-check") as progress:
        for rung in climb(device, o.all, progress):
            rungs.append(rung)
            if not o.json:
                print(_line(len(rungs), rung), flush=True)
        is_ok = all(rung.passed is not False for rung in rungs)
        rates = _measure(device, o, progress) if o.out and is_ok else []
    fields = {"ok": is_ok, "target": o.target, "ranks": device.num_ranks, "out": o.out if rates else None,
              "checks": [dataclasses.asdict(rung) for rung in rungs], "rates": [dataclasses.asdict(rate) for rate in rates]}
    lines = [*map(_rate_line, rates), *([f"written to {o.out}"] if rates else []), "passed" if is_ok else "FAILED"]
    return options.report(o, fields, "\n".join(lines), is_ok)


def _measure(device: Device, o: flags.FlagValues, progress: Progress) -> list[Rate]:
    measured, rates = measured_machine(device, Path(o.out).stem, progress)
    if not device.rank:
        Path(o.out).write_text(machine_text(measured), encoding="utf-8")
    return rates


def _emulator(machine: Machine) -> Device:
    return Device("ascend-emulator", machine.replace(num_aic=2, num_aiv=4), num_ranks=2)


def _npu(machine: Machine) -> Device:
    """Returns this process's NPU with its cores; raises ImportError if a requirement is missing."""
    missing = run_needs(os.environ, DEVICES)
    if missing:
        raise ImportError("\n  ".join(["--target=ascend cannot run here; --target=ascend-emulator can", *missing]))
    npu, launched = find_npu(os.environ), find_launched()
    if isinstance(npu, Npu):
        machine = machine.replace(num_aic=npu.num_aic, num_aiv=npu.num_aiv)
    if launched is None:
        return Device("ascend", machine, is_small=False)
    communication.init()
    return Device("ascend", machine, launched.size, communication.get_rank(), is_small=False)


def _line(number: int, rung: Rung) -> str:
    word = {True: "ok", False: "FAILED", None: "-"}[rung.passed]
    look_at = f"\n   look at: {rung.look_at}" if rung.look_at else ""
    return f"{number:2} {word:7}{rung.name:32}{rung.says}{look_at}"


def _rate_line(rate: Rate) -> str:
    return f"   {rate.field:32}{rate.value:.4g} ({rate.low:.4g} .. {rate.high:.4g}), {rate.what}"
