"""hpmoe simulate: a MoE-FFN layer on a model of a machine, fused and unfused, beside its bound."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from absl import flags

import hpmoe
from hpmoe.balance.relocation import relocated
from hpmoe.commands import layer_flags, model_layouts, options, routing_flag
from hpmoe.commands.bands import Flows, bands, digits, sensitivity, sensitivity_text
from hpmoe.commands.layer import MOST_DECODED, Layer, sent_bytes, utilisation
from hpmoe.commands.layer_flags import layer_of
from hpmoe.costs.start import start_us
from hpmoe.machines.cached_calibration import is_calibrated
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

SUMMARY = "predicts (simulates) a layer's time on a model of a machine, fused and unfused"
NOTES = f"""\
Prints milliseconds, all simulated, and the band ("x to y") that the ranges of the machine's constants leave.
  hpmoe simulate --ep=8 --tokens=1024 --experts=64 --imbalance=2
With --model it prints both passes of a known model's layer: hpmoe simulate --model=qwen3-235b --ranks=16
{routing_flag.NOTES}"""

BANDS, MOST_BANDED = 8, 2**22  # machines; tasks of all ranks that are simulated on each of them unasked

# Flags without which a layer is simulated again, by the name of what is left out and the change of the Layer.
WITHOUT: dict[str, tuple[str, Fields]] = {
    "replicas": ("copies", {"replicas": 0}), "scheme": ("scheme", {"scheme": "direct"}),
    "quantize": ("quantize", {"quantize": None})}
REPLICAS = 0, 1, 2, 4  # slots of a rank, for --advise


def define(values: flags.FlagValues) -> None:
    model_layouts.define(values)
    options.define_integer(values, "bands", None, f"machines of a band; by default {BANDS}, 0 for over "
                           f"{MOST_BANDED} tasks, {model_layouts.BANDS} with --model", least=0)
    options.define_switch(values, "sensitivity", "which constants of the machine the figures hinge on")
    options.define_switch(values, "advise", "what relocated experts and replicas would gain on this routing")
    layer_flags.define_simulated(values)


def run(o: flags.FlagValues) -> int:
    model_layouts.check(o)
    if o.model is not None:
        return model_layouts.run(o)
    layer_flags.check_schedule(o)
    layer_flags.check_one_pass(o)
    layer_flags.check_copies(o.min_load, o.replicas)
    with Progress("hpmoe simulate") as progress:
        result = simulated(o, progress)
    return options.report(o, {"simulated": True, **result}, text(o, result))


def fused(o: flags.FlagValues, layer: Layer) -> hpmoe.Timeline:
    return layer.run(fused_flow(o, layer))


def fused_flow(o: flags.FlagValues, layer: Layer) -> hpmoe.rewriting.Taskflow:
    if o.policy == "autotune":
        return layer.autotuned_flow()
    comm = {"order": o.order, "signal": o.signal, "combine_order": o.combine_order, "put_cols": layer_flags.put_cols_of(o),
            "returns": o.returns or None}
    if o.policy == "expert_barrier" and o["signal"].using_default_value:
        del comm["signal"]
    return layer.fused_flow(o.policy, **comm)


def simulated(o: flags.FlagValues, progress: Progress) -> Fields:
    """Returns makespan, baseline and bound of the configuration in milliseconds, and shares in use."""
    progress("planning")
    layer = layer_of(o)
    flows = fused_flow(o, layer), layer.baseline_flow()
    progress(f"simulating {_tasks(flows):,} tasks of all ranks")
    with ThreadPoolExecutor(1) as beside:  # the simulator is native, and bounds are Python
        running = beside.submit(_looked_at, layer, flows[0])
        baseline, bound = layer.outline(flows[1]).span / 1e3, layer.least_us(flows[0]) / 1e3
        ran = running.result()
    makespan = ran["makespan_ms"]
    without = {}
    for name, (label, change) in WITHOUT.items():
        if getattr(o, name):
            progress(f"without {label}")
            other = _looked_at(layer, fused_flow(o, dataclasses.replace(layer, **change)))
            without |= {name: getattr(o, name), f"without_{name}_ms": other["makespan_ms"]}
            without |= {"without_quantize_sent_mb": other["sent_mb"]} if name == "quantize" else {}
    nominal = {"fused": makespan, "unfused": baseline, "speedup": baseline / makespan}
    sure: Fields = {"tasks": _tasks(flows), "bands": bands(layer, flows, nominal, num_bands(o, flows), progress)}
    if o.sensitivity:
        sure["sensitivity"] = sensitivity(layer, flows, progress)
    if o.advise:
        sure["advice"] = advice(layer, lambda other: _looked_at(other, fused_flow(o, other))["makespan_ms"], progress)
    return {**options.sizes(o), "dtype": o.dtype, "machine": layer.machine.name, "policy": o.policy,
            "direction": o.direction, "routing": o.routing, "imbalance": layer.imbalance, "row_capacity": o.row_capacity,
            **ran,
            "baseline_ms": baseline, "bound_ms": bound, "speedup": baseline / makespan,
            "makespan_over_bound": makespan / bound, **without, **sure}


def _looked_at(layer: Layer, flow: hpmoe.rewriting.Taskflow) -> Fields:
    """Returns the figures of a run of a fused taskflow."""
    found = layer.outline(flow)
    return {"makespan_ms": (start_us(flow, layer.machine) + found.span) / 1e3, "sent_mb": sent_bytes(found) / 1e6,
            "utilisation": utilisation(found, layer.machine)}


def _tasks(flows: Flows) -> int:
    return sum(flow.ep_size * flow.num_tasks for flow in flows)


def num_bands(o: flags.FlagValues, flows: Flows) -> int:
    """Returns the number of machines to sample for the band (least to most) of each figure: --bands, or by default BANDS.

    The default is 0 for more than MOST_BANDED tasks, as their simulation on each machine takes minutes.
    """
    if o.bands is not None:
        return o.bands
    return BANDS if _tasks(flows) <= MOST_BANDED else 0


def text(o: flags.FlagValues, result: Fields) -> str:
    sizes = ", ".join(f"{k}={v}" for k, v in options.sizes(o).items())
    ratio, speedup = result["makespan_over_bound"], result["speedup"]
    known = "" if result["machine"] != "cpu" else " as measured" if is_calibrated() else " not measured, see hpmoe calibrate"
    routing = f"{o.routing} routing, imbalance {result['imbalance']:.3g}"
    in_use = ", ".join(f"{k} {v:.0%}".replace("%", " %") for k, v in result["utilisation"].items())
    within = result["bands"]
    bands = {side: "  {} to {}".format(*(digits(end, (low, high)) for end in (low, high)))
             for side, (low, high) in within.items()}
    unfused = f"unfused, {'decoding' if o.tokens <= MOST_DECODED else 'training'}"
    lines = [f"{result['machine']}{known}, {o.direction}, {sizes}, {o.dtype}, {routing}: simulated",
             _line(f"fused, {o.policy}", result["makespan_ms"], bands.get("fused", ""), f"{ratio:.3f} times the bound",
                   within.get("fused")),
             _line(unfused, result["baseline_ms"], bands.get("unfused", ""),
                   f"{digits(speedup, within.get('speedup'))} times the fused{bands.get('speedup', '')}",
                   within.get("unfused"))]
    for name, (label, _) in WITHOUT.items():
        if name in result:
            other = result[f"without_{name}_ms"]
            times = f"{other / result['makespan_ms']:.2f} times the one with"
            lines.append(_line(f"fused, without {label}", other, "", times, within.get("fused")))
    if "quantize" in result:
        lines.append(f"  {'sent by a rank':24}{digits(result['sent_mb']):>9} MB  "
                     f"{digits(result['without_quantize_sent_mb'])} MB without quantize")
    lines += [_line("bound", result["bound_ms"], "", "no schedule of these tiles is faster", within.get("fused")),
              f"  {'in use while fused':24}{in_use}"]
    if within:
        count = BANDS if o.bands is None else o.bands
        lines.append(f"  x to y: on {count} machines drawn from the ranges of the constants of {result['machine']}")
    elif o.bands is None and result["tasks"] > MOST_BANDED:
        lines.append(
            f"  no bands: {result['tasks']:,} tasks on all ranks, each machine of --bands={BANDS} takes as long again")
    if o.sensitivity:
        nominal = {"fused": result["makespan_ms"], "unfused": result["baseline_ms"], "speedup": speedup}
        lines += ["", sensitivity_text(result["sensitivity"], nominal)]
    if o.advise:
        lines.append(advice_text(result["advice"]))
    return "\n".join(lines)


def _line(name: str, ms: float, band: str, what: str, within: tuple[float, float] | None = None) -> str:
    return f"  {name:24}{digits(ms, within):>9} ms{band:<18}  {what}"


def advice(layer: Layer, fused_ms: Callable[[Layer], float], progress: Progress) -> list[Fields]:
    """Returns milliseconds of the fused layer with experts in their order and relocated, each with numbers of replicas."""
    places = np.argsort(relocated(np.arange(layer.o.experts), layer.loads.astype(float), layer.o.ep)).astype(np.int32)
    moved = np.where(layer.ids >= 0, places[layer.ids], layer.ids)
    out: list[Fields] = []
    for is_moved, ids in ((False, layer.ids), (True, moved)):
        for replicas in REPLICAS:
            progress(f"{replicas} replicas, experts {'relocated' if is_moved else 'in order'}")
            other = dataclasses.replace(layer, ids=ids, replicas=replicas)
            out.append({"relocated": is_moved, "replicas": replicas, "imbalance": other.imbalance,
                        "fused_ms": fused_ms(other)})
    return out


def advice_text(rows: list[Fields]) -> str:
    """Returns a line for each row of `advice`, and the best one."""
    first = rows[0]["fused_ms"]
    lines = ["", "simulated with other placements of experts", f"  {'experts':12}{'replicas':>9}{'fused ms':>10}{'gain':>8}"]
    for row in rows:
        name = "relocated" if row["relocated"] else "in order"
        lines.append(f"  {name:12}{row['replicas']:>9}{row['fused_ms']:>10.3f}{100 * (1 - row['fused_ms'] / first):>6.1f} %")
    best = min(rows, key=lambda row: row["fused_ms"])
    return "\n".join([*lines, f"  fastest: {'relocated' if best['relocated'] else 'in order'}, {best['replicas']} replicas"])
