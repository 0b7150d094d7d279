"""hpmoe compare: two schedules of a layer side by side, simulated or measured on this CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from absl import flags

import hpmoe
from hpmoe.calibration.measured_call import measured_call
from hpmoe.commands import layer_flags, options, simulate
from hpmoe.commands.layer import program
from hpmoe.support.progress import Progress
from hpmoe.support.trees import PyTree
from hpmoe.timelines.html import format_number, html, numbers
from hpmoe.timelines.picture import draw_side_by_side
from hpmoe.timelines.timeline import Timeline

SUMMARY = "lays two schedules side by side: where their time goes, and their ratio"
NOTES = """\
hpmoe compare A B: each is "fused", "unfused", or settings separated by commas, of any flag above, as in
  hpmoe compare policy=critical_path policy=stage_order,signal=peer --ep=4 --tokens=1024 --out=page.html
Flags hold for both. Simulated unless --measured is given, which runs both in turn on this CPU, as virtual ranks that
share its cores; there choose sizes that it can hold. Times of workers are of the mean worker; the ratio is B / A."""
POSITIONAL = ("a", "b")


def define(values: flags.FlagValues) -> None:
    for name in POSITIONAL:
        flags.DEFINE_string(name, None, "settings of a schedule", flag_values=values)
    options.define_switch(values, "measured", "run both on this CPU; --machine is cpu")
    options.define_integer(values, "repeats", 5, "measured runs of each, of which the median counts")
    flags.DEFINE_string("out", None, "also draw both timelines, a .png or .svg picture or .html page", flag_values=values)
    layer_flags.define_simulated(values)


def run(o: flags.FlagValues) -> int:
    names = [o.a, o.b]
    if None in names:
        raise options.UsageError("two schedules are compared, such as policy=critical_path policy=stage_order")
    options.check_file("out", o.out, ".html", ".png", ".svg")
    if _is_picture(o.out):
        options.check_picture(o.out)
    sides = [_side(o, name) for name in names]
    for _, values in sides:
        layer_flags.check_copies(values.min_load, max(side.replicas for _, side in sides))
    with Progress("hpmoe compare") as progress:
        lines = _measured(sides, o.repeats, progress) if o.measured else [_simulated(*side, progress) for side in sides]
        columns = [numbers(line) for line in lines]
        if o.out is not None:
            progress(f"writing {o.out}")
            if _is_picture(o.out):
                draw_side_by_side(lines, names, str(program(o, o.direction)), o.out)
            else:
                Path(o.out).write_text(html(lines, names), encoding="utf-8")
    fields = {"simulated": not o.measured, "a": {"schedule": o.a, **columns[0]}, "b": {"schedule": o.b, **columns[1]},
              "ratio": lines[1].span / max(lines[0].span, 1e-9)}
    return options.report(o, fields, _text(names, lines, columns))


def _is_picture(out: str | None) -> bool:
    return out is not None and Path(out).suffix.lower() != ".html"


def _side(o: flags.FlagValues, settings: str) -> tuple[str, flags.FlagValues]:
    """Parses the settings of a schedule: "fused" or "unfused", and the command's flags with the settings."""
    words = [w.strip() for w in settings.split(",") if w.strip()]
    kind = "unfused" if "unfused" in words else "fused"
    options.check_flag(kind == "fused" or not o.measured, "measured", "true", "false where a schedule is unfused")
    values = flags.FlagValues()
    layer_flags.define_simulated(values)
    common = [f"--{name}={o[name].value}" for name in values if not o[name].using_default_value]
    machine = ["--machine=cpu", "--dtype=float32"] if o.measured else []
    options.parse(values, [*machine, *common, *(f"--{w}" for w in words if w not in ("fused", "unfused"))])
    options.check_flag(not o.measured or values.machine == "cpu", "machine", values.machine, "cpu where runs are measured")
    options.check_flag(not o.measured or values.policy != "autotune", "policy", "autotune",
                       "another where runs are measured")
    layer_flags.check_schedule(values)
    layer_flags.check_one_pass(values)
    return kind, values


def _simulated(kind: str, o: flags.FlagValues, progress: Callable[[str], None]) -> Timeline:
    progress(f"simulating {o.policy if kind == 'fused' else kind}")
    layer = layer_flags.layer_of(o)
    return simulate.fused(o, layer) if kind == "fused" else layer.baseline(o.scheme)


def _measured(sides: list[tuple[str, flags.FlagValues]], repeats: int, progress: Callable[[str], None]) -> list[Timeline]:
    """Returns the median run of each schedule; schedules take turns, after one run that does not count."""
    calls = [_call(o) for _, o in sides]
    runs: list[list[Timeline]] = [[] for _ in sides]
    for i in range(repeats + 1):
        for (_, o), call, mine in zip(sides, calls, runs, strict=True):
            progress(f"run {i} of {repeats}")
            _, timelines = hpmoe.measure(call)
            if i > 0:
                mine.append(timelines[o.direction == "backward"])
    return [sorted(mine, key=lambda line: line.span)[repeats // 2] for mine in runs]


def _call(o: flags.FlagValues) -> Callable[[], PyTree]:
    layer = layer_flags.layer_of(o)
    f = layer.with_copies(hpmoe.moe_ffn)
    f = hpmoe.send_rows(f, scheme=o.scheme) if o.scheme != "direct" else f
    f = layer.with_quantised_rows(f)
    return measured_call(o, layer.machine, layer.ids, o.policy, f, order=o.order, signal=o.signal,
                         combine_order=o.combine_order)


def _text(names: list[str], lines: list[Timeline], columns: list[dict[str, float]]) -> str:
    kind = "simulated" if lines[0].is_simulated else "measured"
    keys = list(dict.fromkeys(k for c in columns for k in c))
    keys.sort(key=lambda k: (k.startswith("critical path"), k.startswith("after"), k.startswith("waiting")))
    width = max(map(len, keys))
    out = [f"{side} = {settings}: {kind} {line.summary().removeprefix('simulated ')}"
           for side, settings, line in zip("AB", names, lines, strict=True)]
    out += ["", f"{kind:<{width}}{'A':>12}{'B':>12}{'B / A':>9}"]
    for key in keys:
        a, b = (c.get(key) for c in columns)
        ratio = f"{b / a:9.3f}" if a and b is not None else f"{'-':>9}"
        out.append(f"{key:<{width}}{format_number(a):>12}{format_number(b):>12}{ratio}")
    return "\n".join(out)
