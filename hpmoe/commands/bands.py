"""Bands of simulated figures: the schedules on machines with other constants within their ranges."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.costs.start import start_us
from hpmoe.machines.perturbed import at_ends, drawn, uncertain
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

SIDES = ("fused", "unfused", "speedup")
AT_ONCE = 2  # simulations, whose times take memory while they run
Flows = tuple[hpmoe.rewriting.Taskflow, hpmoe.rewriting.Taskflow]  # fused, unfused


def digits(value: float, within: tuple[float, float] | None = None) -> str:
    """Returns a figure as text with at most three digits; the last digit is below half of the width of its band.

    Example:
        >>> digits(11.83, (10.6, 13.1)), digits(1.842, (1.81, 1.87)), digits(11.83), digits(4321.0, (3900.0, 4700.0))
        ('12', '1.84', '11.8', '4300')
    """
    if value <= 0:
        return "0"
    last = math.floor(math.log10(value)) - 2
    if within and within[1] > within[0]:
        last = max(last, math.floor(math.log10((within[1] - within[0]) / 2)))
    return f"{round(value, -last):.{max(0, -last)}f}"


def spans(layer: Layer, flows: Flows, machine: hpmoe.Machine) -> dict[str, float]:
    """Returns the milliseconds of two schedules, fused and unfused, on another machine, and their ratio."""
    fused, unfused = (layer.outline(flow, machine).span for flow in flows)
    fused += start_us(flows[0], machine)
    return {"fused": fused / 1e3, "unfused": unfused / 1e3, "speedup": unfused / fused}


def bands(layer: Layer, flows: Flows, nominal: dict[str, float], count: int,
          progress: Progress) -> dict[str, tuple[float, float]]:
    """Returns (least, most) of each figure, over `nominal` and `count` machines sampled from the ranges of the constants.

    Returns {} if `count` is 0 or no constant of the machine has a range.
    """
    found = [nominal]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for i, other in enumerate(pool.map(lambda machine: spans(layer, flows, machine), drawn(layer.machine, count)), 1):
            progress(f"machine {i} of {count} in the ranges of its constants")
            found.append(other)
    return {side: (min(f[side] for f in found), max(f[side] for f in found)) for side in SIDES} if found[1:] else {}


def sensitivity(layer: Layer, flows: Flows, progress: Progress) -> list[Fields]:
    """Yields for each constant the figures with only this constant at either end, the most sensitive constants first."""
    out, constants = [], uncertain(layer.machine)
    for name, *ends in at_ends(layer.machine):
        progress(f"{name}, {len(out) + 1} of {len(constants)}")
        low, high = (spans(layer, flows, machine) for machine in ends)
        out.append({"constant": name, "low": constants[name].low, "high": constants[name].high,
                    "source": constants[name].source, "at_low": low, "at_high": high})
    return sorted(out, key=lambda row: -abs(row["at_low"]["speedup"] / row["at_high"]["speedup"] - 1)
                  - abs(row["at_low"]["fused"] / row["at_high"]["fused"] - 1))


def sensitivity_text(rows: list[Fields], nominal: dict[str, float]) -> str:
    """Returns a line for each constant, and the sources of the constants that move a figure by at least 2 %."""
    lines = ["simulated, with one constant at a time at either end of its range; the schedules stay as they are",
             f"{'':28}{'from':>11}{'to':>11}{'fused, %':>16}{'unfused, %':>16}{'speed-up':>16}",
             f"{'as the machine says':50}{nominal['fused']:13.3f} ms{nominal['unfused']:13.3f} ms{nominal['speedup']:16.2f}"]
    for row in rows:
        low, high = row["at_low"], row["at_high"]
        moved = "".join(f"{low[s] / nominal[s] * 100 - 100:+9.1f}{high[s] / nominal[s] * 100 - 100:+7.1f}"
                        for s in ("fused", "unfused"))
        lines.append(f"{row['constant']:28}{row['low']:11.4g}{row['high']:11.4g}{moved}{low['speedup']:9.2f}"
                     f"{high['speedup']:7.2f}")
    matter = [row for row in rows if any(abs(row[end][side] / nominal[side] - 1) >= 0.02
                                         for end in ("at_low", "at_high") for side in SIDES)]
    sources = [f"  {row['constant']}: {row['source']}" for row in matter]
    return "\n".join([*lines, "", "what moves a figure by 2 % or more hinges on", *sources] if matter else lines)
