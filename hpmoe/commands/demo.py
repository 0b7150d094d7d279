"""hpmoe demo: one MoE-FFN, forward and backward, beside the same one as MindSpore operators."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import mindspore as ms
import numpy as np
from absl import flags

import hpmoe
from hpmoe.commands import demo_processes, layer_flags, options
from hpmoe.commands.op_by_op import moe_ffn_op_by_op
from hpmoe.kernels.native import products_name
from hpmoe.routing.workload import layer_inputs
from hpmoe.support import host
from hpmoe.support.cached_files import Fields
from hpmoe.support.dtypes import widen
from hpmoe.support.progress import Progress
from hpmoe.support.trees import Function, PyTree
from hpmoe.timelines.chrome import chrome_json
from hpmoe.timelines.timeline import Timeline

SUMMARY = "runs a MoE-FFN forward and backward, checks it against MindSpore op by op, and times both"
NOTES = """\
Takes half a minute to a minute on two cores.
  hpmoe demo --ep=2 --tokens=512 --dtype=bfloat16 --out=run.json

--processes=4 gives each rank a process of its own, as `hpmoe launch` does, and says what each did: the rows that it
received and how long it computed, copied rows to others, and waited. Nothing is timed of MindSpore then.

Otherwise the ranks are virtual: threads of this process share its cores, so where there are more workers than cores a
task's time in the timeline includes what its thread spent without one. Both sides compute the same from the same
inputs; latencies are medians of interleaved runs after a warm-up. The file of --out opens in ui.perfetto.dev or
chrome://tracing.

Half precision: inputs are rounded to it, the error is that against MindSpore's float32 results for the rounded inputs,
and what is timed of MindSpore, whose CPU has no bfloat16 matmul, casts to float32 and back.

Exits with 1 where an error is above 1e-05; in half precision above 8 roundings, 3e-02 for bfloat16 and 4e-03 for
float16: about one for each array stored between an input and the gradient furthest from it."""

TOLERANCES = {"float32": 1e-5, "bfloat16": 8 * 2.0 ** -8, "float16": 8 * 2.0 ** -11}
GRADIENTS = {"hidden_states": 0, "topk_weights": 2, "gate_up_weight": 3, "down_weight": 4}
DIRECTIONS = ("forward", "backward")
NEXT = {"hpmoe show": "the same layer as every transform leaves it",
        "hpmoe compare unfused fused --out=a.html": "its time on an NPU, simulated, one kernel after another and fused",
        "python examples/benchmarks/layer.py": "this CPU, beside JAX and PyTorch, in a checkout",
        "hpmoe demo --processes=2": "ranks as processes, and what each of them does",
        "hpmoe launch -n 2 your_script.py": "ranks as processes: mesh=hpmoe.world() in the script"}
PASSES = ("forward", "forward + backward")


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "processes", None, "number of ranks, each a process, instead of virtual ranks", least=2)
    options.define_integer(values, "repeats", 5, "timed runs of each side")
    flags.DEFINE_string("out", None, "where to write the timeline of a measured run, such as run.json", flag_values=values)
    layer_flags.define_layer(values, ep=4, tokens=1024, hidden=1024, intermediate=512, experts=32, top_k=4)


def run(o: flags.FlagValues) -> int:
    if o.processes is not None:
        options.check_flag(not o["ep"].present or o.ep == o.processes, "ep", o.ep, "left out, or as many as --processes")
        o.ep = o.processes
    options.check_sizes(o)
    options.check_file("out", o.out, ".json")
    if o.processes is not None:
        report = demo_processes.measured(o, TOLERANCES[o.dtype])
        return options.report(o, report, "\n".join(demo_processes.report_lines(report)), report["ok"])
    ms.runtime.launch_blocking()
    with Progress("hpmoe demo") as progress:
        report, timelines = measured(o, progress)
        if o.out is not None:
            progress(f"writing {o.out}")
            Path(o.out).write_text(chrome_json(timelines), encoding="utf-8")
    return options.report(o, report, "\n".join(report_lines(report, timelines)), report["ok"])


def measured(o: flags.FlagValues, progress: Callable[[str], None]) -> tuple[Fields, tuple[Timeline, ...]]:
    """Returns the fields of the report, and the Timeline of each direction of one more run."""
    progress("making inputs")
    args, cotangent = layer_inputs(o)
    staged = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
    sides = {"hpmoe": passes(hpmoe.spmd(staged(hpmoe.moe_ffn), hpmoe.Mesh(o.ep)), args, cotangent),
             "op_by_op": passes(moe_ffn_op_by_op, args, cotangent)}
    results = {}
    for side, calls in sides.items():
        progress(f"warming up: {side}")
        results[side] = arrays_of(calls)
    if o.dtype != "float32":
        progress("computing in float32: op_by_op")
        results["op_by_op"] = arrays_of(passes(moe_ffn_op_by_op, in_float32(args), cotangent))
    errors = {name: relative_error(*pair) for name, pair in
              zip(("output", *GRADIENTS), zip(*results.values(), strict=True), strict=True)}
    latency = latencies(sides, o.repeats, progress)
    progress("recording the timeline")
    _, timelines = hpmoe.measure(sides["hpmoe"]["forward + backward"])
    return {
        "ok": all(e <= TOLERANCES[o.dtype] for e in errors.values()),
        "machine": {"cpu": host.cpu_name(), "cores": host.num_cores(), "mindspore": ms.__version__,
                    "hpmoe_gemm": products_name(), "workers": len(timelines[0].flow.queues) * o.ep},
        "sizes": {**options.sizes(o), "dtype": o.dtype, "seed": o.seed},
        "schedule": {d: schedule(t) for d, t in zip(DIRECTIONS, timelines, strict=True)},
        "errors": errors, "tolerance": TOLERANCES[o.dtype],
        "repeats": o.repeats, "latency_ms": latency, "timeline": o.out,
    }, timelines


def in_float32(args: tuple[ms.Tensor, ...]) -> tuple[ms.Tensor, ...]:
    return tuple(ms.Tensor(widen(a.asnumpy())) for a in args)


def passes(f: Function, args: tuple[ms.Tensor, ...], cotangent: ms.Tensor) -> dict[str, Callable[[], PyTree]]:
    """Returns the timed calls of one side."""
    grad = cast(Function, ms.value_and_grad)(
        lambda *a: (f(*a).astype(ms.float32) * cotangent).sum(), tuple(GRADIENTS.values()))
    return dict(zip(PASSES, (lambda: f(*args), lambda: grad(*args)), strict=True))


def arrays_of(calls: dict[str, Callable[[], PyTree]]) -> list[np.ndarray]:
    """Returns the output and the gradients of one run of each pass."""
    output, (_, grads) = (calls[p]() for p in PASSES)
    return [widen(t.asnumpy()) for t in (output, *grads)]


def latencies(sides: dict[str, dict[str, Callable[[], PyTree]]], repeats: int,
              progress: Callable[[str], None]) -> dict[str, dict[str, float]]:
    """Returns median milliseconds of each pass and side, the sides taking turns, and the ratio op_by_op / hpmoe."""
    times: dict[tuple[str, str], list[float]] = {(p, side): [] for p in PASSES for side in sides}
    for i in range(repeats):
        for p, side in times:
            progress(f"run {i + 1} of {repeats}: {p}, {side}")
            begin = time.perf_counter()
            sides[side][p]()
            times[p, side].append((time.perf_counter() - begin) * 1e3)
    out = {p: {side: statistics.median(times[p, side]) for side in sides} for p in PASSES}
    for row in out.values():
        row["ratio"] = row["op_by_op"] / row["hpmoe"]
    return out


def relative_error(a: np.ndarray, b: np.ndarray) -> float:
    """Returns max|a - b| / max|b|."""
    return float(np.abs(a - b).max() / max(np.abs(b).max(), np.finfo(np.float32).tiny))


def schedule(line: Timeline) -> Fields:
    flow, sizes = line.flow, line.flow.deps.sizes()
    return {"tasks": flow.num_tasks, "events": sizes["events"], "waits": sizes["waits"], "slots": flow.num_slots,
            "span_us": line.span, "waiting_us": line.waiting, "utilisation": line.utilisation().round(4).tolist()}


def report_lines(r: Fields, timelines: tuple[Timeline, ...]) -> list[str]:
    """Returns the report for a terminal."""
    machine, size = r["machine"], r["sizes"]
    lines = [f"MoE-FFN on {size['ep']} virtual ranks: {size['tokens']} tokens a rank, hidden {size['hidden']}, "
             f"intermediate {size['intermediate']}, {size['experts']} experts, top {size['top_k']}, {size['dtype']}",
             f"on {machine['cpu']}, {machine['cores']} cores, {machine['workers']} workers; MindSpore "
             f"{machine['mindspore']}; hpmoe multiplies with {machine['hpmoe_gemm']}", "",
             f"{'schedule of a rank':<24}{'tasks':>10}{'events':>10}{'waits':>10}{'slots':>10}"]
    lines += [f"  {d:<22}" + "".join(f"{s[k]:>10}" for k in ("tasks", "events", "waits", "slots"))
              for d, s in r["schedule"].items()]
    against = "error against " + ("MindSpore" if size["dtype"] == "float32" else "float32")
    lines += ["", f"{against:<24}{'max|a-b| / max|b|':>20}   limit {r['tolerance']:.0e}"]
    lines += [f"  {name if name == 'output' else 'd ' + name:<22}{e:>20.1e}   {'ok' if e <= r['tolerance'] else 'TOO LARGE'}"
              for name, e in r["errors"].items()]
    lines += ["", f"{'latency, median of ' + str(r['repeats']):<24}{'hpmoe':>12}{'MindSpore':>12}{'ratio':>10}"]
    lines += [f"  {p:<22}{t['hpmoe']:>9.1f} ms{t['op_by_op']:>9.1f} ms{t['ratio']:>9.2f}x"
              for p, t in r["latency_ms"].items()]
    lines += ["  ratio: how many times faster hpmoe is than MindSpore op by op", "",
              f"timeline of one run: {r['timeline'] or '--out=FILE writes it'} (open in ui.perfetto.dev or chrome://tracing)"]
    for direction, line in zip(DIRECTIONS, timelines, strict=True):
        lines += [f"  {direction}: {line.summary()}", *("  " + row for row in line.text(64).splitlines()[2:])]
    lines += ["", "what to try next:", *(f"  {command:<43}{what}" for command, what in NEXT.items())]
    if not r["ok"]:
        lines += ["", f"FAILED: an error is above {r['tolerance']:.0e}"]
    return lines
