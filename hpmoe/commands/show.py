"""hpmoe show: the IR of the MoE-FFN at each stage of the chain."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from absl import flags

import hpmoe
from hpmoe.commands import layer_flags, options
from hpmoe.commands.layer import Layer
from hpmoe.commands.machine import machine_of
from hpmoe.commands.routing_flag import routing_of
from hpmoe.ir.stages import AnyIR
from hpmoe.ir.taskflow import Taskflow
from hpmoe.support.cached_files import Fields
from hpmoe.support.known import known
from hpmoe.support.progress import Progress

SUMMARY = "prints the IR of a MoE-FFN at each stage of the transform chain"
NOTES = """\
Nothing is computed and no tensor is allocated, so real sizes are fine, such as
  hpmoe show --ep=32 --tokens=1024 --hidden=7168 --intermediate=2048 --experts=256 --top_k=8 --stage=queues"""

STAGES = {
    "program": "operators, traced",
    "tiles": "tile tasks and their dependencies",
    "overlap": "collectives as puts and signals",
    "queues": "tasks in the order of each worker",
    "kernel": "packed for one launch",
}


def define(values: flags.FlagValues) -> None:
    options.define_choice(values, "stage", "all", "which stage", (*STAGES, "all"))
    options.define_limit(values)
    layer_flags.define_layer(values, ep=2, tokens=8, hidden=16, intermediate=8, experts=4, top_k=2)
    layer_flags.define_schedule(values, direction="both", machine="cpu", row_capacity="all")


def run(o: flags.FlagValues) -> int:
    options.check_sizes(o)
    options.check_limit(o)
    layer_flags.check_policy(o)
    _check_routing(o)
    options.check_flag(o.stage != "kernel" or o.machine == "cpu", "machine", o.machine,
                       "cpu for --stage=kernel; what is packed for an NPU is not shown")
    with Progress("hpmoe show") as progress:
        shown = list(stages(o, progress))
    return options.report(
        o, {"sizes": options.sizes(o), "dtype": o.dtype, "machine": o.machine, "stages": shown},
        "\n\n".join(f"== {s['direction']}, {s['stage']}: {STAGES[s['stage']]}\n{s['text']}" for s in shown))


def stages(o: flags.FlagValues, progress: Progress) -> Iterator[Fields]:
    """Yields each wanted stage of each wanted direction, made from the one before."""
    wanted = tuple(STAGES) if o.stage == "all" else (o.stage,)
    for direction in ("forward", "backward") if o.direction == "both" else (o.direction,):
        ir: AnyIR = _program(o, direction)
        for stage in STAGES:
            if stage == "kernel" and o.machine != "cpu":
                if stage in wanted:
                    yield {"direction": direction, "stage": stage,
                           "text": f"none for {o.machine}: only what is packed for the cpu is shown"}
                break
            progress(f"{direction}: {stage}")
            ir = rewritten(ir, stage, o)
            if stage in wanted:
                yield {"direction": direction, "stage": stage, **counts(ir), "text": str(ir)}
            if stage == wanted[-1]:
                break


def _needs_routing(o: flags.FlagValues) -> bool:
    """Returns True if the printed text depends on the ids of tokens."""
    return o.replicas > 0 or o.row_capacity != "all"


def _check_routing(o: flags.FlagValues) -> None:
    layer_flags.check_copies(o.min_load, o.replicas)
    if _needs_routing(o):
        layer_flags.check_schedule(o)
        return
    for name in ("imbalance", "routing", "step"):
        options.check_flag(not o[name].present, name, o[name].value, "left out without --replicas or --row_capacity")


def _program(o: flags.FlagValues, direction: str) -> hpmoe.rewriting.Program:
    ids = routing_of(o, o, o.imbalance) if _needs_routing(o) else np.zeros((o.ep, 0, o.top_k), np.int32)
    layer = Layer(o, direction, machine_of(o), ids, o.replicas, scheme=o.scheme, quantize=o.quantize,
                  row_capacity=o.row_capacity, rank_capacity_factor=o.rank_capacity_factor)
    return layer.traced(is_planned=o.row_capacity != "all")


def rewritten(ir: AnyIR, stage: str, o: flags.FlagValues) -> AnyIR:
    machine = machine_of(o)
    match stage:
        case "tiles":
            rows, cols = o.tile_rows or machine.tile_rows, o.tile_cols or machine.tile_cols
            return hpmoe.tile_partition.apply_to(ir, rows=rows, cols=cols)
        case "overlap":
            ir = hpmoe.overlap_comm.apply_to(ir, order=o.order, signal=o.signal, combine_order=o.combine_order)
            return hpmoe.prefetch_weights.apply_to(ir) if o.prefetch else ir
        case "queues":
            return hpmoe.assign_queues.apply_to(ir, machine=machine, policy=o.policy)
        case "kernel":
            return hpmoe.fuse_persistent.apply_to(ir)
    return ir


def counts(ir: AnyIR) -> Fields:
    """Returns the numbers of a stage, by its kind."""
    if isinstance(ir, hpmoe.rewriting.Program):
        return {"equations": len(ir.equations)}
    is_flow = isinstance(ir, Taskflow)
    flow = ir if is_flow else ir.flow
    out = {"tasks": flow.num_tasks, **flow.deps.sizes(), "slots": flow.num_slots}
    if flow.queues:
        out["queues"] = {known(flow.machine).queue_name(q): len(tasks) for q, tasks in enumerate(flow.queues)}
    return out if is_flow else {**out, "image_bytes": len(ir.image)}
