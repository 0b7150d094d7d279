"""call.py: what a call on a cached plan costs, and in which steps."""

from __future__ import annotations

import pkgutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import hpmoe_fused
import script
from absl import flags
from arrays import make_arrays
from layer_problem import LayerProblem

from hpmoe.commands import options
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

SUMMARY = "times the steps of a call on a cached plan"
NOTES = """\
Prints microseconds of a call of a small layer, forward and with gradients: in all, and in each step. A step is timed in
calls of its own, of which the shortest counts; the rest is Python between the steps and, with gradients, MindSpore.
  python examples/benchmarks/call.py --tokens=1 --dtype=bfloat16"""
STEPS = {  # what the step does: the functions that do it, none of which calls another one of them
    "arguments: flatten": ("runtime.arguments.Parameters.flatten",),
    "arguments: find the trace": ("runtime.plans.Plans.trace",),
    "tensors to arrays": ("runtime.array_backend.to_arrays", "runtime.one_call.to_arrays"),
    "ids: check and count": ("runtime.array_backend.received_by_ids",),
    "plan: look up": ("runtime.array_backend.planned_rows", "runtime.plans.Plans.plan"),
    "buffers: place": ("kernels.cpu.target.place_all",),
    "launch": ("kernels.cpu.launch.Launches.launch",),
    "results to tensors": ("kernels.cpu.target.outputs_of", "runtime.array_backend.ArrayBackend.results"),
}


def define(values: flags.FlagValues) -> None:
    options.define_sizes(values, ep=1, tokens=4, hidden=32, intermediate=32, experts=8, top_k=2)
    options.define_dtype(values)
    options.define_integer(values, "calls", 2000, "calls that each step is timed in")


def run(o: flags.FlagValues) -> int:
    options.check_sizes(o)
    sizes = options.sizes(o)
    with Progress("call.py") as progress, tempfile.TemporaryDirectory(prefix="hpmoe_bench_") as folder:
        problem = LayerProblem(Path(folder), dtype=o.dtype, **sizes)
        problem.write(make_arrays(problem, "uniform", 0))
        passes, _ = hpmoe_fused.fused(problem)
        split = {}
        for which, call in passes.items():
            progress(f"timing {which}")
            split[which] = steps_of(call, o.calls)
    report = {"machine": script.machine(), "sizes": sizes, "dtype": o.dtype, "microseconds": split}
    return options.report(o, report, text(report))


def steps_of(call: Callable[[], object], calls: int) -> dict[str, float]:
    """Microseconds of a call, of its steps, and of the rest."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    whole, steps = min(times) * 1e6, {step: sum(timed(call, calls, name) for name in names) for step, names in STEPS.items()}
    return {"call": whole, **steps, "rest": whole - sum(steps.values())}


def timed(call: Callable[[], object], calls: int, name: str) -> float:
    """Microseconds that a call spends in a function of hpmoe."""
    owner, attribute = f"hpmoe.{name}".rpartition(".")[::2]
    found = pkgutil.resolve_name(owner)
    function, inside, least = getattr(found, attribute), 0.0, float("inf")

    def noted(*args: object, **kwargs: object) -> object:
        nonlocal inside
        begin = time.perf_counter()
        result = function(*args, **kwargs)
        inside += time.perf_counter() - begin
        return result

    with mock.patch.object(found, attribute, noted):
        for _ in range(calls):
            inside = 0.0
            call()
            least = min(least, inside)
    return least * 1e6


def text(report: Fields) -> str:
    passes = report["microseconds"]
    lines = [f"{'us':<28}" + "".join(f"{which:>20}" for which in passes)]
    lines += [f"{step:<28}" + "".join(f"{split[step]:20.1f}" for split in passes.values())
              for step in ("call", *STEPS, "rest")]
    return "\n".join([*lines, f"{report['dtype']}, {report['sizes']}, on {report['machine']['cpu']}"])


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
