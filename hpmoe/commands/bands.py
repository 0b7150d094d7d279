"""How sure a simulated figure is: the same schedules on machines whose constants are elsewhere in their ranges."""

from __future__ import annotations

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.costs.start import start_us
from hpmoe.machines.perturbed import at_ends, drawn, uncertain
from hpmoe.support.kept_files import Fields
from hpmoe.support.progress import Progress

SIDES = ("fused", "unfused", "speedup")


def spans(layer: Layer, lines: tuple[hpmoe.Timeline, hpmoe.Timeline], machine: hpmoe.Machine) -> dict[str, float]:
    """Milliseconds of two schedules, fused and unfused, as they are on another machine, and their ratio."""
    fused, unfused = (hpmoe.simulate(line.flow, machine, routing=layer.ids).span for line in lines)
    fused += start_us(lines[0].flow, machine)
    return {"fused": fused / 1e3, "unfused": unfused / 1e3, "speedup": unfused / fused}


def bands(layer: Layer, lines: tuple[hpmoe.Timeline, hpmoe.Timeline], count: int,
          progress: Progress) -> dict[str, tuple[float, float]]:
    """Least and most of each figure, over this machine and those drawn from the ranges; none without such machines."""
    found = [spans(layer, lines, layer.machine)]
    for i, machine in enumerate(drawn(layer.machine, count), 1):
        progress(f"machine {i} of {count} in the ranges of its constants")
        found.append(spans(layer, lines, machine))
    return {side: (min(f[side] for f in found), max(f[side] for f in found)) for side in SIDES} if found[1:] else {}


def sensitivity(layer: Layer, lines: tuple[hpmoe.Timeline, hpmoe.Timeline], progress: Progress) -> list[Fields]:
    """For each constant what the figures are with it alone at either end, those first on which most hinges."""
    out, constants = [], uncertain(layer.machine)
    for name, *ends in at_ends(layer.machine):
        progress(f"{name}, {len(out) + 1} of {len(constants)}")
        low, high = (spans(layer, lines, machine) for machine in ends)
        out.append({"constant": name, "low": constants[name].low, "high": constants[name].high,
                    "source": constants[name].source, "at_low": low, "at_high": high})
    return sorted(out, key=lambda row: -abs(row["at_low"]["speedup"] / row["at_high"]["speedup"] - 1)
                  - abs(row["at_low"]["fused"] / row["at_high"]["fused"] - 1))


def sensitivity_text(rows: list[Fields], nominal: dict[str, float]) -> str:
    """A line for each constant, and the sources of those that move a figure by 2 % at least."""
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
