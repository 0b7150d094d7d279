"""planning.py: times planning, step by step, and prints the size of the plan."""

from __future__ import annotations

import cProfile
import json
import pstats
import statistics
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import script
from absl import flags

import hpmoe
from hpmoe.autodiff.vjp import linearize
from hpmoe.commands import options
from hpmoe.commands.layer import program
from hpmoe.commands.machine import define_machine, machine_of
from hpmoe.ir.program import Program
from hpmoe.ir.stages import AnyIR
from hpmoe.ir.taskflow import make_tasks
from hpmoe.ir.taskflow_bytes import read_taskflow, taskflow_bytes
from hpmoe.kernels.packing import pack
from hpmoe.planner import planner
from hpmoe.runtime.planned_rows import PlannedRows, routes_of, with_planned_rows
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress
from hpmoe.support.trees import Function, PyTree
from hpmoe.tiling.dependencies import derive_dependencies
from hpmoe.tiling.lifetimes import lifetimes_of
from hpmoe.tiling.shared_memory import memory_fault
from hpmoe.verification.regions import found_before
from hpmoe.verification.verify import verify

SUMMARY = "measures planning: from tracing to the packed image of one rank, both directions"
NOTES = """\
Prints milliseconds of each step, medians of the runs.
  python examples/benchmarks/planning.py --ep=1 --tokens=2048 --hidden=1024 --intermediate=512 --machine=cpu
Nothing is computed and no tensor is allocated; the plan is one image for all ranks. --rows is the number of received
rows planned for, as many as a rank sends where not given. Each run starts with empty caches and verifies every stage.
"processor" is the total in processor time, which other programs on a shared machine do not lengthen. "read" is not in
it: what it takes to read the plan from a kept file and to verify it, instead of all but pack."""

STEPS = ("trace", "vjp", "tile_partition", "overlap_comm", "assign_queues", "verify", "pack")
PROFILED = 20
EXPERTS = (64, 128, 256, 512, 1024)


def define(values: flags.FlagValues) -> None:
    options.define_sizes(values, ep=8, tokens=4096, hidden=7168, intermediate=2048, experts=256, top_k=8)
    options.define_dtype(values)
    define_machine(values, "ascend_a3", "what the queues are for")
    options.define_integer(values, "rows", None, "received rows of a rank to plan for; tokens * top_k where not given")
    options.define_integer(values, "runs", 5, "measured runs, after one that is not")
    options.define_switch(values, "growth", "instead: how the time grows with the number of experts")
    options.define_switch(values, "profile", "list the functions that take the most time in one more run")


def run(o: flags.FlagValues) -> int:
    if o.growth:
        return over_experts(o)
    options.check_sizes(o)
    with Progress("planning.py") as progress:
        progress("warming up")
        plan(o)
        runs = []
        for i in range(o.runs):
            progress(f"run {i + 1} of {o.runs}")
            runs.append(plan(o))
        profile = profiled(o) if o.profile else []
    directions = {d: summary([r[d] for r in runs]) for d in ("forward", "backward")}
    fields = {"sizes": options.sizes(o), "dtype": o.dtype, "machine": o.machine, "rows": planned_rows(o), "runs": o.runs,
              **directions, **({"profile": profile} if o.profile else {})}
    return options.report(o, fields, text(o, directions, profile))


def over_experts(o: flags.FlagValues) -> int:
    """Prints the table of --growth: a slope of 1 is time proportional to the number of experts."""
    many = [SimpleNamespace(**{**o.flag_values_dict(), "experts": experts}) for experts in EXPERTS]
    times: dict[str, list[float]] = {"forward": [], "backward": []}
    with Progress("planning.py") as progress:
        for each in many:
            options.check_sizes(each)
            progress(f"{each.experts} experts")
            runs = [plan(each) for _ in range(o.runs + 1)][1:]
            for direction, ms in times.items():
                ms.append(statistics.median(r[direction]["ms"]["processor"] for r in runs))
    slopes = {direction: float(np.polyfit(np.log(EXPERTS), np.log(ms), 1)[0]) for direction, ms in times.items()}
    if o.json:
        print(json.dumps({"experts": EXPERTS, "processor_ms": times, "slope": slopes}))
        return 0
    print(f"{'experts':16}{'forward':>12}{'backward':>12}  ms of the processor, median of {o.runs} runs")
    for experts, *ms in zip(EXPERTS, *times.values(), strict=True):
        print(f"{experts:<16}" + "".join(f"{x:12.2f}" for x in ms))
    print(f"{'log-log slope':16}" + "".join(f"{x:12.2f}" for x in slopes.values()))
    return 0


def planned_rows(o: options.Options) -> int:
    return o.rows or o.tokens * o.top_k


class Clock:
    """Milliseconds of each step of one direction, and of the processor in all of them."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = dict.fromkeys(STEPS, 0.0)
        self.cpu_ms = 0.0

    def __call__(self, step: str, function: Function, *args: PyTree, **kwargs: PyTree) -> PyTree:
        begin, cpu_begin = time.perf_counter(), time.thread_time()
        result = function(*args, **kwargs)
        self.cpu_ms += (time.thread_time() - cpu_begin) * 1e3
        self.ms[step] = self.ms.get(step, 0.0) + (time.perf_counter() - begin) * 1e3
        return result


def plan(o: options.Options) -> dict[str, Fields]:
    """Plans both directions once and returns the milliseconds of each step and the sizes of each plan."""
    for cached in (derive_dependencies, make_tasks, lifetimes_of, memory_fault, found_before):
        cached.cache_clear()
    planner.forget()
    forward, backward = Clock(), Clock()
    traced = forward("trace", program, o, "forward")
    linearized = backward("vjp", linearize, traced)
    return {"forward": _lower(o, linearized.forward, forward), "backward": _lower(o, linearized.backward, backward)}


def _lower(o: options.Options, program: Program, clock: Clock) -> Fields:
    machine = machine_of(o)
    flow: AnyIR = with_planned_rows(program, [PlannedRows(planned_rows(o), planned_rows(o))] * len(routes_of(program)))
    for transform, arguments in ((hpmoe.tile_partition, {"rows": machine.tile_rows, "cols": machine.tile_cols}),
                                 (hpmoe.overlap_comm, {}), (hpmoe.assign_queues, {"machine": machine})):
        flow = clock(transform.__name__, transform.rewrite, flow, **arguments)
        clock("verify", verify, flow)
    image = clock("pack", pack, flow)
    kept, reading = taskflow_bytes(flow), Clock()
    reading("read", lambda: verify(read_taskflow(kept)))
    sizes = {"tasks": flow.num_tasks, **flow.deps.sizes(), "image_bytes": len(image), "kept_bytes": len(kept)}
    return {"ms": {**clock.ms, "total": sum(clock.ms.values()), "processor": clock.cpu_ms, "read": reading.ms["read"]},
            **sizes}


def summary(runs: list[Fields]) -> Fields:
    """The median of each step over several runs, and the sizes, which are the same in all."""
    return {**runs[0], "ms": {step: statistics.median(r["ms"][step] for r in runs) for step in runs[0]["ms"]}}


def profiled(o: flags.FlagValues) -> list[Fields]:
    """The functions in which one run spends the most time of its own."""
    profile = cProfile.Profile()
    profile.runcall(plan, o)
    stats = vars(pstats.Stats(profile))["stats"].items()
    own = sorted(((seconds * 1e3, calls, where) for where, (_, calls, seconds, _, _) in stats), reverse=True)[:PROFILED]
    return [{"ms": ms, "calls": calls, "function": name if file == "~" else f"{Path(file).name}:{line} {name}"}
            for ms, calls, (file, line, name) in own]


def text(o: flags.FlagValues, directions: dict[str, Fields], profile: list[Fields]) -> str:
    head = (f"plan for one of {o.ep} ranks on {o.machine}: " + ", ".join(f"{k}={v}" for k, v in options.sizes(o).items())
            + f", at most {planned_rows(o)} received rows; median of {o.runs} runs, ms")
    lines = [head, f"{'':16}" + "".join(f"{d:>12}" for d in directions)]
    for step in next(iter(directions.values()))["ms"]:
        lines.append(f"{step:16}" + "".join(f"{d['ms'][step]:12.2f}" for d in directions.values()))
    for name in ("tasks", "events", "waits", "signals", "image_bytes", "kept_bytes"):
        lines.append(f"{name.replace('_', ' '):16}" + "".join(f"{d[name]:12,}" for d in directions.values()))
    if profile:
        lines += ["", "own time in one profiled run of both, ms (profiling slows Python down)"]
        lines += [f"{p['ms']:10.2f} {p['calls']:8} calls  {p['function']}" for p in profile]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
