"""Report of a machine fitted to a profile, for a terminal, as JSON, and as comments of the machine's file."""

from __future__ import annotations

import collections
import statistics

from hpmoe.calibration.profile import Calibrated
from hpmoe.machines.constant import units_of
from hpmoe.machines.machine_files import machine_text
from hpmoe.support.cached_files import Fields


def fields(found: Calibrated) -> Fields:
    """name; fitted: name, value, before, low, high, by; unfitted: name, why; kernels: label, work, launches, measured_us,
    simulated_us, error, of products tflops; unused: kind, launches, us, why. Constants in units of hpmoe.Machine."""
    kernels = [{"label": k.label, "work": k.work, "launches": k.launches, "measured_us": k.us, "simulated_us": us,
                "error": us / k.us - 1, **({"tflops": k.flops / k.us / 1e6} if k.flops else {})}
               for k, us in zip(found.kernels, found.simulated, strict=True)]
    return {"name": found.machine.name, "begin_end_us": found.begin_end_us,
            "fitted": [{"name": name, "value": value, "low": low, "high": high, "by": by,
                        "before": found.before[name]} for name, value, low, high, by in found.fitted],
            "unfitted": [{"name": name, "why": why} for name, why in found.unfitted.items()],
            "kernels": kernels,
            "unused": [{"kind": kind, "launches": launches, "us": us, "why": why}
                       for kind, launches, us, why in found.unused]}


def toml(found: Calibrated) -> str:
    """The file of the machine, with the report as its comments."""
    comments = "\n".join(f"# {line}".rstrip() for line in text(found).splitlines())
    return f"{comments}\n\n{machine_text(found.machine)}"


def text(found: Calibrated) -> str:
    said = fields(found)
    parts = [f"{found.machine.name}: {found.before.name} with {len(found.fitted)} constants by a profile",
             _kernels(said), _fitted(found), _unfitted(said), _unused(said)]
    return "\n\n".join(part for part in parts if part)


def _kernels(said: Fields) -> str:
    if not said["kernels"]:
        return ""
    width = max(len(row["work"]) for row in said["kernels"])
    lines = [f"{'kernels':<{width}}{'launches':>10}{'measured':>12}{'simulated':>12}{'error':>8}"]
    for row in said["kernels"]:
        rate = f"  {row['tflops']:.0f} TFLOP/s" if "tflops" in row else ""
        figures = f"{row['launches']:>10}{row['measured_us']:>9.1f} us{row['simulated_us']:>9.1f} us{row['error']:>+8.1%}"
        lines.append(f"{row['work']:<{width}}{figures}{rate}")
    error = statistics.median(abs(row["error"]) for row in said["kernels"])
    return "\n".join([*lines, f"median error {error:.1%}; {said['begin_end_us']:.1f} us of each by the profiler are its "
                              "beginning and end"])


def _fitted(found: Calibrated) -> str:
    lines = [f"{'fitted':28}{'before':>12}{'now':>12}{'from':>12}{'to':>12}"] if found.fitted else []
    for name, value, low, high, by in found.fitted:
        unit, factor = _unit(found, name)
        figures = "".join(f"{x / factor:>12.4g}" for x in (found.before[name], value, low, high))
        lines.append(f"{name:28}{figures} {unit}, by {by}")
    return "\n".join(lines)


def _unfitted(said: Fields) -> str:
    names = collections.defaultdict(list)
    for row in said["unfitted"]:
        names[row["why"]].append(row["name"])
    return "\n".join(["not fitted, as before", *(f"  {', '.join(of_one)}: {why}" for why, of_one in names.items())])


def _unused(said: Fields) -> str:
    lines = [f"  {row['kind'] or 'no type'}, {row['launches']} launches, {row['us']:.0f} us: {row['why']}"
             for row in said["unused"]]
    return "\n".join(["kernels not used", *lines] if lines else [])


def _unit(found: Calibrated, name: str) -> tuple[str, float]:
    known = dict(found.machine.constants).get(name)
    units = units_of(name)
    unit = known.unit if known else next(iter(units))
    return unit, units[unit]
