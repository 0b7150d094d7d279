"""hpmoe calibrate: measures each kind of task on this CPU for hpmoe.cpu(calibrated=True), checks that, or fits an NPU to a
profile."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
from absl import flags

from hpmoe.calibration.agreement import LIMIT, agreement
from hpmoe.calibration.cpu import Measurement, is_matmul
from hpmoe.calibration.overheads import OVERHEADS
from hpmoe.calibration.profile import calibrate_by_profile
from hpmoe.commands import options, profile_report
from hpmoe.commands.machine import define_machine
from hpmoe.ir.limits import MOST_RANKS
from hpmoe.machines.cached_calibration import calibration_key, calibration_path, store_calibration
from hpmoe.machines.machine_files import load_machine
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

SUMMARY = "measures this CPU for hpmoe.cpu(calibrated=True), or fits the model of an NPU to a profile"
NOTES = """\
The command times task bodies on all cores in turn for --budget seconds, and repeats runs that other programs disturbed
for at most half as long. The speed of a shared machine changes, so a small reference launch runs before and after each
run; the fastest runs between two fast reference launches count. "lost" is the fixed cost of a task in rows: r rows take
as long as r + lost rows at the full rate. The result is cached for this CPU model, number of cores and version of hpmoe
in $XDG_CACHE_HOME/hpmoe, or ~/.cache/hpmoe. --check caches nothing: it runs ten layers in the same rounds and simulates
them, measures all again if one is off by more than 15 %, and exits with 1 if one still is.

hpmoe calibrate --profile=op_summary_1.csv --out=mine.toml fits a machine to a table of kernels: op_summary_*.csv
of msprof, or kernel_details.csv of a framework's profiler. Its lines of MatMul, GroupedMatmul, SwiGlu, Add,
Mul, Sub, MoeDistributeDispatch, MoeDistributeCombine and AllToAll are simulated, and the constants that determine
their times are fitted. A constant that could not be fitted keeps the value of --machine, and is listed with the
reason. --ep is the number of ranks of an exchange if the file does not say it. Without --out the file goes to stdout,
with the report as comments."""


def define(values: flags.FlagValues) -> None:
    options.define_number(values, "budget", 25.0, "seconds to measure for, besides planning and one round to warm up")
    options.define_switch(values, "check", "compare simulated and measured times of ten layers")
    flags.DEFINE_string("profile", None, "a profiler's table of kernels on an NPU, to fit its model to", flag_values=values)
    define_machine(values, "ascend_a3", "with --profile, the NPU that it is like")
    options.define_integer(values, "ep", None, "with --profile, ranks of its exchanges")
    flags.DEFINE_string("out", None, "with --profile, the .toml file to write", flag_values=values)


def run(o: flags.FlagValues) -> int:
    options.check_flag(0 <= o.budget <= 600, "budget", f"{o.budget:g}", "seconds from 0 to 600")
    for name in ("ep", "out"):
        options.check_flag(o[name].value is None or o.profile is not None, name, o[name].value, "given with --profile")
    options.check_flag(not (o.check and o.profile), "check", o.check, "left out with --profile")
    return _profile(o) if o.profile is not None else _check(o) if o.check else _calibrate(o)


def _profile(o: flags.FlagValues) -> int:
    options.check_flag(o.machine != "cpu", "machine", o.machine, "an NPU with --profile")
    options.check_flag(o.ep is None or o.ep <= MOST_RANKS, "ep", o.ep, f"at most {MOST_RANKS}")
    options.check_file("out", o.out, ".toml")
    with Progress("hpmoe calibrate") as progress:
        found = calibrate_by_profile(Path(o.profile), load_machine(o.machine), o.ep, progress)
    toml = profile_report.toml(found)
    if o.out:
        Path(o.out).write_text(toml, encoding="utf-8")
    text = f"{profile_report.text(found)}\n\nwritten to {o.out}" if o.out else toml.removesuffix("\n")
    return options.report(o, {"simulated": True, "toml": toml, **profile_report.fields(found)}, text)


def _calibrate(o: flags.FlagValues) -> int:
    path = _writable_path()
    with Progress("hpmoe calibrate") as progress:
        measurement = Measurement(progress)
        measurement.run(o.budget)
        fields, table = measurement.result()
    store_calibration(fields)
    rates = {k: v for k, v in fields.items() if k != "bodies"}
    return options.report(o, {"path": str(path), **calibration_key(), "machine": rates, "bodies": table},
                          text(fields, table, path))


def _writable_path() -> Path:
    """Returns the path of the result; checked before the work, which would be lost."""
    try:
        path = calibration_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            return path
    except OSError as error:
        raise options.UsageError(f"the result cannot be kept ({error}); set XDG_CACHE_HOME to a folder that can") from None


def _check(o: flags.FlagValues) -> int:
    with Progress("hpmoe calibrate") as progress:
        rows = agreement(o.budget, progress)
    is_ok = all(abs(row["error"]) <= LIMIT for row in rows)
    return options.report(o, {"ok": is_ok, "limit": LIMIT, "rows": rows}, agreement_text(rows), is_ok)


def text(fields: Fields, table: list[Fields], path: Path) -> str:
    """Returns the measured values as text for a terminal."""
    key = calibration_key()
    lines = [f"{key['cpu']}, {key['cores']} cores, hpmoe {key['hpmoe']}", "",
             f"{'task':20}{'dtype':>10}{'full rate':>16}{'lost rows':>11}{'cols':>7}{'inner':>7}{'fit':>7}"]
    for r in table:
        unit = "GFLOP/s" if is_matmul(r["kind"]) else "GB/s"
        kind = f"{r['kind']} to {r['most_rows']} rows" if r["most_rows"] else r["kind"]
        lines.append(f"{kind:20}{r['dtype']:>10}{r['rate'] / 1e3:>8.1f} {unit:<7}{r['rows']:>11.1f}{r['cols']:>7.0f}"
                     f"{r['inner']:>7.0f}{r['error']:>7.0%}")
    lines += ["fit: median of |predicted / measured - 1| of a task", "",
              f"memory            {fields['memory.worker_bytes_per_us'] / 1e3:.1f} GB/s for one core, "
              f"{fields['memory.bytes_per_us'] / 1e3:.1f} for all",
              "us besides work   " + ", ".join(f"{n} {fields[n]:.2f}" for n in OVERHEADS),
              f"stored in         {path}"]
    return "\n".join(lines)


def agreement_text(rows: list[Fields]) -> str:
    """Returns a line for each layer: simulated, measured, error."""
    lines = [f"{'dtype':10}{'direction':>10}" + "".join(f"{letter:>6}" for letter in ("ep", *"THIEK"))
             + f"{'simulated':>13}{'measured':>20}{'error':>8}{'runs':>10}"]
    for r in rows:
        sizes = "".join(f"{r[n]:>6}" for n in ("ep", "tokens", "hidden", "intermediate", "experts", "top_k"))
        runs = f"{r['counted']} of {r['runs']}"
        lines.append(f"{r['dtype']:10}{r['direction']:>10}{sizes}{r['simulated_ms']:>10.2f} ms{r['measured_ms']:>10.2f} ms "
                     f"+-{r['uncertainty']:>4.0%}{r['error']:>+8.1%}{runs:>10}")
    off = sum(abs(r["error"]) > LIMIT for r in rows)
    spread = float(np.median([r["spread"] for r in rows]))
    lines.append(f"FAILED: {off} of {len(rows)} are off by more than {LIMIT:.0%}; the machine must be idle: its load is "
                 f"{os.getloadavg()[0]:.1f}, and the slowest run of a layer took {spread:.1f} times as long as the quickest"
                 if off else f"all within {LIMIT:.0%}")
    return "\n".join(lines)
