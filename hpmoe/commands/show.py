"""hpmoe show: the IR of the MoE-FFN at each stage of the chain."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

from absl import flags

import hpmoe
from hpmoe.commands import options
from hpmoe.commands.machine import define_machine, machine_of
from hpmoe.commands.options import Options
from hpmoe.ir.stages import AnyIR
from hpmoe.ir.taskflow import Taskflow
from hpmoe.support.kept_files import Fields
from hpmoe.support.known import known
from hpmoe.support.progress import Progress
from hpmoe.transforms.assign_queues import POLICIES
from hpmoe.transforms.overlap_comm import ORDERS, SIGNALS

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
    options.define_choice(values, "direction", "both", "which pass", ("forward", "backward", "both"))
    options.define_sizes(values, ep=2, tokens=8, hidden=16, intermediate=8, experts=4, top_k=2)
    options.define_dtype(values)
    options.define_integer(values, "tile_rows", None, "rows of a tile and of a slot; the machine's where not given")
    options.define_integer(values, "tile_cols", None, "columns of a tile; the machine's where not given")
    define_machine(values, "cpu", "what the queues are for")
    define_orders(values)
    options.define_choice(values, "signal", "tile", "what one remote signal stands for", SIGNALS)
    options.define_choice(values, "policy", "critical_path", "how tasks get into queues", tuple(POLICIES))
    options.define_limit(values)


def define_orders(values: flags.FlagValues) -> None:
    options.define_choice(values, "order", "ratr", "in which order a rank sends to the others", tuple(ORDERS))
    options.define_choice(values, "combine_order", None, "in which it sends rows back; as --order where not given",
                          tuple(ORDERS))


def run(o: flags.FlagValues) -> int:
    options.check_sizes(o)
    options.check_limit(o)
    options.check_flag(o.stage != "kernel" or o.machine == "cpu", "machine", o.machine,
                       "cpu for --stage=kernel; what is packed for an NPU is not shown")
    with Progress("hpmoe show") as progress:
        shown = list(stages(o, progress))
    if o.json:
        print(json.dumps({"sizes": options.sizes(o), "dtype": o.dtype, "machine": o.machine, "stages": shown}))
    else:
        print("\n\n".join(f"== {s['direction']}, {s['stage']}: {STAGES[s['stage']]}\n{s['text']}" for s in shown))
    return 0


def stages(o: flags.FlagValues, progress: Progress) -> Iterator[Fields]:
    """Each wanted stage of each wanted direction, made from the one before."""
    wanted = tuple(STAGES) if o.stage == "all" else (o.stage,)
    for direction in ("forward", "backward") if o.direction == "both" else (o.direction,):
        ir = program(o, direction, lambda traced: limited(traced, o.rank_capacity_factor))
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


def program(o: Options, direction: str,
            rewrite: Callable[[hpmoe.Program], hpmoe.Program] = lambda p: p, node_size: int | None = None) -> hpmoe.Program:
    """The traced MoE-FFN of these sizes, from shapes alone; `rewrite` is applied before its gradient is taken."""
    mesh = hpmoe.Mesh(o.ep, tp_size=shards_of(o), node_size=node_size)
    traced = rewrite(hpmoe.trace(hpmoe.moe_ffn, *avals(o), mesh=mesh))
    return traced if direction == "forward" else hpmoe.vjp(traced)


def limited(program: hpmoe.Program, rank_capacity_factor: float | None) -> hpmoe.Program:
    """With room for so many rows of a rank, or for all."""
    if rank_capacity_factor is None:
        return program
    return hpmoe.limit_rows.apply_to(program, rank_capacity_factor=rank_capacity_factor)


def avals(o: Options) -> list[hpmoe.Aval]:
    """The arguments of moe_ffn on one rank."""
    local, inner = o.experts // o.ep, o.intermediate // shards_of(o)
    shapes = [(o.dtype, o.tokens, o.hidden), ("int32", o.tokens, o.top_k), ("float32", o.tokens, o.top_k),
              (o.dtype, local, o.hidden, 2 * inner), (o.dtype, local, inner, o.hidden)]
    return [hpmoe.Aval(tuple(s), dtype) for dtype, *s in shapes]


def shards_of(o: Options) -> int:
    """Ranks that share an expert; 1 where the sizes say nothing of it."""
    return getattr(o, "tp", 1)


def rewritten(ir: AnyIR, stage: str, o: flags.FlagValues) -> AnyIR:
    machine = machine_of(o)
    match stage:
        case "tiles":
            rows, cols = o.tile_rows or machine.tile_rows, o.tile_cols or machine.tile_cols
            return hpmoe.tile_partition.apply_to(ir, rows=rows, cols=cols)
        case "overlap":
            return hpmoe.overlap_comm.apply_to(ir, order=o.order, signal=o.signal, combine_order=o.combine_order)
        case "queues":
            return hpmoe.assign_queues.apply_to(ir, machine=machine, policy=o.policy)
        case "kernel":
            return hpmoe.fuse_persistent.apply_to(ir)
    return ir


def counts(ir: AnyIR) -> Fields:
    """The numbers of a stage, by its kind."""
    if isinstance(ir, hpmoe.Program):
        return {"equations": len(ir.equations)}
    is_flow = isinstance(ir, Taskflow)
    flow = ir if is_flow else ir.flow
    out = {"tasks": flow.num_tasks, "events": len(flow.events), "waits": len(flow.waits),
           "signals": len(flow.signals), "slots": flow.num_slots}
    if flow.queues:
        out["queues"] = {known(flow.machine).queue_name(q): len(tasks) for q, tasks in enumerate(flow.queues)}
    return out if is_flow else {**out, "image_bytes": len(ir.image)}
