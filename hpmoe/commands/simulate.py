"""hpmoe simulate: a MoE-FFN layer on a model of a machine, fused and unfused, beside its bound."""

from __future__ import annotations

import dataclasses
import json
from concurrent.futures import ThreadPoolExecutor

from absl import flags

import hpmoe
from hpmoe.commands import options, show
from hpmoe.commands.bands import Flows, bands, digits, sensitivity, sensitivity_text
from hpmoe.commands.layer import MOST_DECODED, QUANTISED, ROOM, Layer, sent_bytes, utilisation
from hpmoe.commands.machine import define_machine, machine_of
from hpmoe.commands.routing_flag import NOTES as OF_ROUTING, define_routing, routing_of
from hpmoe.costs.start import start_us
from hpmoe.machines.kept_calibration import is_calibrated
from hpmoe.support.kept_files import Fields
from hpmoe.support.progress import Progress
from hpmoe.transforms.assign_queues import POLICIES
from hpmoe.transforms.overlap_comm import SIGNALS

SUMMARY = "predicts (simulates) a layer's time on a model of a machine, fused and unfused"
NOTES = f"""\
Prints milliseconds, all simulated, and the band ("x to y") that the ranges of the machine's constants leave.
  hpmoe simulate --ep=8 --tokens=1024 --experts=64 --imbalance=2
{OF_ROUTING}"""

TUNED = "critical_path", "chosen"  # policies for tiles and puts of chosen sizes
CHOSEN = "tile_rows", "tile_cols", "signal", "order", "combine_order", "prefetch"  # flags of what choose_schedule decides
MOST_IDS = 2**28  # of all ranks, a GiB
BANDS, MOST_BANDED = 8, 2**22  # machines; tasks of all ranks that are simulated on each of them unasked
MOST_DRAWS = 2**30  # one for each expert of each token, half a minute


def define(values: flags.FlagValues) -> None:
    define_schedule(values)
    define_room(values)
    options.define_integer(values, "bands", None, "machines of a band, drawn from the ranges of its constants; "
                           f"{BANDS}, or 0 for over {MOST_BANDED} tasks", least=0)
    options.define_switch(values, "sensitivity", "which constants of the machine the figures hinge on")


def define_schedule(values: flags.FlagValues, directions: tuple[str, ...] = ("forward", "backward"),
                    policies: tuple[str, ...] = (*POLICIES, "chosen")) -> None:
    """A layer, its routing, a machine, and how its taskflow is ordered."""
    options.define_sizes(values, ep=8, tokens=4096, hidden=7168, intermediate=2048, experts=64, top_k=8)
    options.define_choice(values, "dtype", "bfloat16", "of rows and expert weights", options.FLOATS)
    options.define_choice(values, "direction", directions[0], "which pass", directions)
    define_machine(values, "ascend_a3", "the model")
    options.define_number(values, "imbalance", 1.0, "rows that the fullest rank receives, over the mean; 1 is balanced")
    define_routing(values)
    options.define_integer(values, "replicas", 0, "copies of hot experts that each rank has room for", least=0)
    options.define_number(values, "min_load", None, "rows that a copy must take; by default what hides its weights")
    options.define_integer(values, "tile_rows", None, "rows of a tile and of a slot; chosen for the machine where not given")
    options.define_integer(values, "tile_cols", None, "columns of a tile, the same")
    show.define_orders(values)
    options.define_choice(values, "signal", "tile", "what one remote signal stands for", SIGNALS)
    options.define_choice(values, "policy", "critical_path", "how tasks get into queues", policies)
    options.define_switch(values, "dedup", "a token goes to a rank once, whatever number of its experts are there")
    options.define_choice(values, "quantize", None, "how rows go", QUANTISED)
    options.define_switch(values, "prefetch", "matrix workers read weights while they wait for rows")


def define_room(values: flags.FlagValues) -> None:
    options.define_choice(values, "room", "received", "received rows that the plan has room for", ROOM)


def run(o: flags.FlagValues) -> int:
    check_schedule(o)
    check_copies(o.min_load, o.replicas)
    with Progress("hpmoe simulate") as progress:
        result = simulated(o, progress)
    print(json.dumps({"simulated": True, **result}) if o.json else text(o, result))
    return 0


def check_schedule(o: flags.FlagValues) -> None:
    options.check_sizes(o)
    most = min(o.ep, o.experts / o.top_k)
    options.check_flag(1 <= o.imbalance <= most, "imbalance", f"{o.imbalance:g}", f"from 1 to {most:g} for these sizes")
    tokens = MOST_IDS // (o.ep * o.top_k)
    options.check_flag(o.tokens <= tokens, "tokens", o.tokens, f"at most {tokens} with --ep={o.ep} and --top_k={o.top_k}")
    for name in CHOSEN if o.policy == "chosen" else ():
        options.check_flag(o[name].using_default_value, name, o[name].value, "left out with --policy=chosen")
    if o.routing != "balanced":
        options.check_flag(o.imbalance == 1, "imbalance", f"{o.imbalance:g}", f"1 with --routing={o.routing}")
        check_draws(o, o.ep)


def check_copies(min_load: float | None, replicas: int) -> None:
    """Raises UsageError where it is said which copies are worth making, and none are made."""
    options.check_flag(min_load is None or replicas > 0, "min_load", f"{min_load:g}" if min_load is not None else "",
                       "left out without --replicas")


def check_draws(o: flags.FlagValues, ep: int) -> None:
    """Raises UsageError where the routing of so many ranks takes too long to draw."""
    experts = o.experts // o.ep * ep
    tokens = MOST_DRAWS // (ep * experts)
    options.check_flag(o.tokens <= tokens, "tokens", o.tokens,
                       f"at most {tokens} where they draw from {experts} experts on {ep} ranks")


def scheme_of(o: flags.FlagValues) -> str:
    """How the flags have rows sent, see send_rows."""
    return "rank" if o.dedup else "direct"


def layer_of(o: flags.FlagValues, room: str = "received") -> Layer:
    return Layer(o, o.direction, machine_of(o, is_calibrated()), routing_of(o, o, o.imbalance), o.replicas,
                 tuned=o.policy in TUNED, scheme=scheme_of(o), quantize=o.quantize, room=room,
                 prefetch=o.prefetch)


def fused(o: flags.FlagValues, layer: Layer) -> hpmoe.Timeline:
    return layer.run(fused_flow(o, layer))


def fused_flow(o: flags.FlagValues, layer: Layer) -> hpmoe.Taskflow:
    if o.policy == "chosen":
        return layer.chosen_flow()
    comm = {"order": o.order, "signal": o.signal, "combine_order": o.combine_order}
    if o.policy == "expert_barrier" and o["signal"].using_default_value:
        del comm["signal"]
    return layer.fused_flow(o.policy, **comm)


def simulated(o: flags.FlagValues, progress: Progress) -> Fields:
    """Makespan, baseline and bound of the configuration in milliseconds, and shares in use."""
    progress("planning")
    layer = layer_of(o, o.room)
    flows = fused_flow(o, layer), layer.baseline_flow()
    progress(f"simulating {_tasks(flows):,} tasks of all ranks")
    with ThreadPoolExecutor(1) as beside:  # the simulator is native, and bounds are Python
        running = beside.submit(_looked_at, layer, flows[0])
        baseline, bound = layer.outline(flows[1]).span / 1e3, layer.least_us(flows[0]) / 1e3
        ran = running.result()
    makespan = ran["makespan_ms"]
    without = {}
    if o.replicas:
        progress("without copies")
        plain = dataclasses.replace(layer, replicas=0)
        without = {"replicas": o.replicas, "without_replicas_ms": _fused(o, plain)["makespan_ms"]}
    if o.dedup:
        progress("without dedup")
        plain = dataclasses.replace(layer, scheme="direct")
        without |= {"dedup": True, "without_dedup_ms": _fused(o, plain)["makespan_ms"]}
    if o.quantize:
        progress("without quantize")
        plain = _fused(o, dataclasses.replace(layer, quantize=None))
        without |= {"quantize": o.quantize, "without_quantize_ms": plain["makespan_ms"],
                    "without_quantize_sent_mb": plain["sent_mb"]}
    nominal = {"fused": makespan, "unfused": baseline, "speedup": baseline / makespan}
    sure: Fields = {"tasks": _tasks(flows), "bands": bands(layer, flows, nominal, num_bands(o, flows), progress)}
    if o.sensitivity:
        sure["sensitivity"] = sensitivity(layer, flows, progress)
    return {**options.sizes(o), "dtype": o.dtype, "machine": layer.machine.name, "policy": o.policy,
            "direction": o.direction, "routing": o.routing, "imbalance": layer.imbalance, "room": o.room, **ran,
            "baseline_ms": baseline, "bound_ms": bound, "speedup": baseline / makespan,
            "makespan_over_bound": makespan / bound, **without, **sure}


def _looked_at(layer: Layer, flow: hpmoe.Taskflow) -> Fields:
    """What is said of the run of a fused taskflow."""
    found = layer.outline(flow)
    return {"makespan_ms": (start_us(flow, layer.machine) + found.span) / 1e3, "sent_mb": sent_bytes(found) / 1e6,
            "utilisation": utilisation(found, layer.machine)}


def _fused(o: flags.FlagValues, layer: Layer) -> Fields:
    return _looked_at(layer, fused_flow(o, layer))


def _tasks(flows: Flows) -> int:
    return sum(flow.ep_size * flow.num_tasks for flow in flows)


def num_bands(o: flags.FlagValues, flows: Flows) -> int:
    """Machines that bands are of: as many as were asked for, else as take no minutes."""
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
    for name, label in (("replicas", "copies"), ("dedup", "dedup"), ("quantize", "quantize")):
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
    return "\n".join(lines)


def _line(name: str, ms: float, band: str, what: str, within: tuple[float, float] | None = None) -> str:
    return f"  {name:24}{digits(ms, within):>9} ms{band:<18}  {what}"
