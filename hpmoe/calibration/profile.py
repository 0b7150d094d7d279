"""A machine from a profile: what a profiler's table of kernels tells of its constants, and what it does not."""

from __future__ import annotations

import dataclasses
import datetime
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import hpmoe
from hpmoe.calibration.profile_fit import CONSTANTS, Fit, Fitted, fit_machine
from hpmoe.calibration.profile_kernels import Timed, Unused, timed_kernels
from hpmoe.calibration.profile_table import Kernel, read_kernels
from hpmoe.machines.constant import Constant, units_of
from hpmoe.machines.hardware import Operators, Sync
from hpmoe.machines.npu_bins import FLOPS_PER_CYCLE
from hpmoe.support.dtypes import FLOATS, numpy_dtype
from hpmoe.support.errors import check_argument

MOST_GAP_US = 1e3  # between two kernels; in a longer one the host did something else
LEAST_GAPS = 8
CLOCKS = 0.2e3, 10e3  # cycles a microsecond that are none of an error
CHOSEN = "chosen, and no time of the hardware"
INSIDE = "it is felt inside of a kernel, of which the table has one line"
NOT_IN_A_TABLE = {
    **dict.fromkeys((*(f"sync.{f.name}" for f in dataclasses.fields(Sync)), "host.prologue_us", "host.expert_us",
                     "host.sort_us", "host.entry_us"), INSIDE),
    **dict.fromkeys((f"operators.{f.name}" for f in dataclasses.fields(Operators)),
                    "the simulator does not read it; formulas of benchmarks do"),
    "memory.write_cost": "it cannot be told from memory.bytes_per_us",
    **dict.fromkeys(("tile_rows", "tile_cols"), CHOSEN),
    **dict.fromkeys(("cube.granule", "cube.accumulator_bytes", "l2.bytes", "link.node_size", "link.near_size"),
                    "a size of the hardware, which documents say"),
    "link.node_bytes_per_us": "the table does not say which ranks are of another node",
    "host.sync_us": "what the host waited for in a gap is not in the table",
    "host.cores": "an NPU's cores are its own",
    "cube.int8_ratio": "products of int8 are not among the kernels that constants are fitted to"}


class Calibrated(NamedTuple):
    """A machine model fitted to a profile."""

    machine: hpmoe.Machine  # the profile's file is the source of each fitted constant
    before: hpmoe.Machine  # the machine before the fit
    fitted: list[Fitted]  # each constant with its range and the measurement that it is from
    unfitted: dict[str, str]  # for each constant that the profile does not determine, the reason
    kernels: list[Timed]  # those that the constants are fitted to
    simulated: list[float]  # microseconds of each of `kernels` on `machine`
    unused: list[Unused]  # the kernels of the profile that the fit leaves out
    begin_end_us: float | None  # microseconds that the profiler adds to each kernel; None if no kernel was fitted to


def calibrate_by_profile(path: Path, machine: hpmoe.Machine, ep: int | None,
                         progress: Callable[[str], None]) -> Calibrated:
    """Fits a machine, like `machine`, to a profile: msprof's op_summary_*.csv or a framework's kernel_details.csv.

    `ep` is the number of ranks of exchanges if the file does not say it.
    """
    check_argument(not machine.unified, "hpmoe calibrate", "machine", machine.name, "one of an NPU, which the profile is of")
    kernels = read_kernels(path)
    known = [*_cores(kernels, machine), *_clock(kernels), *_computing(kernels)]
    told = {fitted.name: fitted for fitted in known if isinstance(fitted, Fitted)}
    start = machine.replace({name: fitted.value for name, fitted in told.items()})
    names, other = [n for n in CONSTANTS if n not in told], "cube.flops_per_us"
    if other not in told:
        names.remove("cube.efficiency")
    timed, unused = timed_kernels(kernels, start, ep, progress)
    fit = fit_machine(start, timed, names, progress) if timed else Fit(start, [], dict.fromkeys(
        names, "the file has no kernel that the model has"), 0.0, [])
    gap = _gap(kernels, fit.begin_end_us)
    found = [*told.values(), *fit.fitted, *([gap] if gap else [])]
    unfitted = {**NOT_IN_A_TABLE, **dict(why for why in known if not isinstance(why, Fitted)), **fit.unfitted}
    unfitted |= {} if other in told else {"cube.efficiency": f"without cycles it cannot be told from {other}"}
    few = f"it has fewer than {LEAST_GAPS} gaps below {MOST_GAP_US:g} us in a stream"
    unfitted |= {} if gap else {"host.launch_us": few}
    return Calibrated(_named(path, machine, fit.machine, found), machine, found,
                      unfitted, timed, fit.simulated, unused,
                      fit.begin_end_us if timed else None)


def _cores(kernels: Sequence[Kernel], machine: hpmoe.Machine) -> Iterable[Fitted | tuple[str, str]]:
    """Blocks are cores in use: of many kernels some will have been on all."""
    is_mix = [kernel.unit.upper().startswith("MIX") for kernel in kernels]
    of_aiv = ["VECTOR" in kernel.unit.upper() or kernel.unit.upper().endswith("AIV") for kernel in kernels]
    blocks = {"num_aic": [k.blocks for k, on_aiv in zip(kernels, of_aiv, strict=True) if not on_aiv],
              "num_aiv": [k.vectors if mix else k.blocks for k, mix, on_aiv in zip(kernels, is_mix, of_aiv, strict=True)
                          if mix or on_aiv]}
    for name, of_kernels in blocks.items():
        most, before = max(of_kernels, default=0), machine[name]
        if before / 2 <= most <= 2 * before:
            yield Fitted(name, most, most, most, f"{of_kernels.count(most)} launches, none of which has more blocks")
        else:
            why = "more than can be cores" if most > before else "which may be all that they needed"
            yield name, f"the largest kernel has {most} blocks, {why}"


def _clock(kernels: Sequence[Kernel]) -> Iterable[Fitted]:
    """Returns the clock from kernels of matrix cores, whose products per cycle are known."""
    clocks = [k.aic_cycles / (k.aic_us * k.blocks) for k in kernels if k.aic_cycles and k.aic_us and k.blocks]
    clocks = sorted(clock for clock in clocks if CLOCKS[0] <= clock <= CLOCKS[1])
    if clocks:
        low, value, high = (FLOPS_PER_CYCLE * c for c in (clocks[0], statistics.median(clocks), clocks[-1]))
        yield Fitted("cube.flops_per_us", value, low, high, f"cycles of {len(clocks)} launches")


def _computing(kernels: Sequence[Kernel]) -> Iterable[Fitted]:
    """SwiGLU alone computes as much for each byte as Machine.vector.bytes_per_us is of."""
    rates = sorted(_moved_bytes(k) / (k.blocks * k.vec_us) for k in kernels
                   if k.kind.lower() == "swiglu" and k.vec_us and k.blocks and k.inputs and k.dtypes[0] in FLOATS)
    if rates:
        yield Fitted("vector.bytes_per_us", statistics.median(rates), rates[0], rates[-1],
                     f"how long {len(rates)} launches of SwiGLU computed")


def _moved_bytes(kernel: Kernel) -> float:
    """Returns the bytes that a kernel reads and writes."""
    return numpy_dtype(kernel.dtypes[0]).itemsize * sum(math.prod(shape) for shape in (*kernel.inputs, *kernel.outputs))


def _gap(kernels: Sequence[Kernel], begin_end_us: float) -> Fitted | None:
    """Returns the time from the end of a kernel to the work of the next one in its stream."""
    last: dict[str, float] = {}
    gaps = []
    for kernel in kernels:
        if kernel.stream in last and 0 <= (gap := kernel.start_us - last[kernel.stream]) <= MOST_GAP_US:
            gaps.append(gap + begin_end_us)
        last[kernel.stream] = kernel.start_us + kernel.us
    if len(gaps) < LEAST_GAPS:
        return None
    low, value, high = statistics.quantiles(gaps, n=4)
    return Fitted("host.launch_us", value, low, high, f"{len(gaps)} gaps between kernels")


def _named(path: Path, before: hpmoe.Machine, fitted: hpmoe.Machine, found: Sequence[Fitted]) -> hpmoe.Machine:
    """The machine with all that was found, and where each number is from."""
    date = datetime.date.fromtimestamp(path.stat().st_mtime).isoformat()
    constants = dict(before.constants)
    for name, value, low, high, by in found:
        unit = constants[name].unit if name in constants else next(iter(units_of(name)))
        constants[name] = Constant(f"{path.name}, by {by}", min(low, value), max(high, value), unit, date)
    values = {name: value for name, value, *_ in found}
    return fitted.replace(values, name=path.stem, constants=tuple(constants.items()))
