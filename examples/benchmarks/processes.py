"""processes.py: the MoE-FFN with a process for each rank, beside PyTorch and MindSpore."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import numpy_loop
import ranks_contest
import script
from absl import flags
from arrays import make_arrays
from contest import TOLERANCE
from layer_problem import PASSES, RESULTS, LayerProblem
from sides import MALLOC

from hpmoe.commands import options
from hpmoe.ranks.starting import start_ranks
from hpmoe.support.cached_files import Fields

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUMMARY = "times a MoE-FFN with a process for each rank, beside PyTorch with gloo and MindSpore"
SIZES = ("tokens", "hidden", "intermediate", "experts", "top_k")
SUITE = {"tokens": (256, 512, 1024, 2048), "intermediate": (512, 128)}
PEERS = ("torch", "mindspore")
KEEPING = [f"{name}={value}" for name, value in MALLOC["malloc that keeps its memory"].items()]
TITLES = {"hpmoe": "hpmoe", "torch": "PyTorch, gloo", "mindspore": "MindSpore, AllGather"}
SCHEDULER = "from mindspore import communication; communication.init('mccl'); import signal; signal.pause()"
NOTES = """\
  python examples/benchmarks/processes.py --processes=2 --suite --dtype=float32 --repeats=3
Each process has its share of the cores, and all sides in it, which take turns of 0.1 s after one untimed run: medians
of the turns. Results are checked against float64 before. T is of each rank. Communication is the share of a run
beyond the work of the rank that computes most: of hpmoe the tasks that compute, in its launches, of PyTorch all but
all_to_all_single; skew is what the others, on average, wait for that rank. MindSpore's CPU has no gradient of
AllGather."""


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "processes", 2, "ranks, each a process")
    define_layer(values)
    flags.DEFINE_string("peers", "all", "sides beside hpmoe, of torch,mindspore; all; none", flag_values=values)


def define_layer(values: flags.FlagValues) -> None:
    """The flags of processes.py and of hosts.py."""
    for name, default, text in (("tokens", 2048, "tokens of each rank"), ("hidden", 1024, "hidden size"),
                                ("intermediate", 512, "intermediate size of an expert"),
                                ("experts", 16, "experts of all ranks"), ("top_k", 4, "experts of each token")):
        options.define_integer(values, name, default, text)
    script.define_dtypes(values)
    options.define_switch(values, "suite", "tokens from 256 to 2048, and intermediate sizes of 512 and 128")
    options.define_integer(values, "seed", 0, "seed of the random inputs", least=0)
    options.define_integer(values, "repeats", 7, "turns of each side")
    script.define_picture(values)


def run(o: flags.FlagValues) -> int:
    sides = {dtype: sides_of(o.peers, dtype) for dtype in script.DTYPES[o.dtype]}
    todo = list(cases(o, o.processes))
    options.check_picture(o.out)
    report = {"machine": script.machine(), "seed": o.seed, "repeats": o.repeats, "cases": []}
    if not o.json:
        print("\n".join(HEAD), flush=True)
    for what in todo:
        for dtype in script.DTYPES[o.dtype]:
            case = measured(o.processes, what, dtype, sides[dtype], o.seed, o.repeats)
            report["cases"].append(case)
            if not o.json and case["status"] == 0:
                print("\n".join(rows(case)), flush=True)
    return finished(o, report, sys.modules[__name__])


def finished(o: flags.FlagValues, report: Fields, of: ModuleType) -> int:
    """Draws and prints a report as the module of its script does; the exit status."""
    report["ok"] = all(case["status"] == 0 and not case["wrong"] for case in report["cases"])
    if o.out and report["ok"]:
        of.draw(report, o.out)
    return options.report(o, report, "\n".join(["", *of.closing_lines(report), of.NOTES]), report["ok"])


def cases(o: flags.FlagValues, num_ranks: int) -> Iterator[Fields]:
    """Sizes of each case. `tokens` is of a rank."""
    sizes = {name: getattr(o, name) for name in SIZES}
    options.check_flag(o.experts % num_ranks == 0, "experts", o.experts, f"a multiple of {num_ranks}, the number of ranks")
    options.check_sizes(SimpleNamespace(**sizes, ep=num_ranks))
    if not o.suite:
        yield sizes
        return
    for intermediate in SUITE["intermediate"]:
        for tokens in SUITE["tokens"]:
            yield {**sizes, "tokens": tokens, "intermediate": intermediate}


def sides_of(peers: str, dtype: str) -> list[str]:
    """The sides: what --peers says. MindSpore's CPU multiplies float32 alone."""
    names = {"none": [], "all": [*PEERS]}.get(peers, peers.split(","))
    options.check_flag(set(names) <= set(PEERS), "peers", peers, "all, none, or of torch,mindspore")
    options.check_flag("torch" not in names or importlib.util.find_spec("torch") is not None, "peers", peers,
                       "without torch where PyTorch is not installed; pip install '.[bench]'")
    return ["hpmoe", *(name for name in PEERS if name in names and (name, dtype) != ("mindspore", "bfloat16"))]


def measured(num_processes: int, sizes: Fields, dtype: str, sides: Sequence[str], seed: int, repeats: int) -> Fields:
    """One case: medians, turns and shares of each side and pass. `status`: not 0 where a rank failed; `wrong`: the sides
    whose results are not those of float64."""
    case: Fields = {"processes": num_processes, "sizes": sizes, "dtype": dtype}
    with tempfile.TemporaryDirectory(prefix="hpmoe_bench_") as folder:
        write_problem(LayerProblem(Path(folder), dtype, num_processes, **sizes), seed)
        given = json.dumps({"sides": list(sides), "repeats": repeats, "folder": folder, "world": {}})
        with _scheduler(num_processes) if "mindspore" in sides else contextlib.nullcontext([]) as environment:
            status = start_ranks(["env", *KEEPING, *environment, sys.executable, ranks_contest.__file__, given],
                                 num_processes)
        if status != 0:
            return {**case, "status": status}
        ranks = json.loads((Path(folder) / "report.json").read_text())
    found = {side: {which: {"ms": statistics.median(turns), "turns_ms": turns, **_shares_in(ranks[0], side, which)}
                    for which, turns in of_side.items() if turns} for side, of_side in ranks[0]["turns_ms"].items()}
    return {**case, "status": 0, "sides": found, **checked(ranks, dtype)}


def write_problem(problem: LayerProblem, seed: int) -> None:
    """The arrays of all ranks, and in float64 what they should come to."""
    problem.write(make_arrays(problem, "uniform", seed))
    passes, _ = numpy_loop.layer(problem, np.float64)
    for name, array in zip(RESULTS, passes[PASSES[1]](), strict=True):
        np.save(problem.folder / f"right_{name}.npy", array)


def checked(ranks: Sequence[Fields], dtype: str) -> Fields:
    """The largest error of each side on any rank, and the sides whose results are wrong."""
    errors = {side: max(r["errors"][side] for r in ranks) for side in ranks[0]["errors"]}
    return {"errors": errors, "wrong": [side for side, error in errors.items() if not error <= TOLERANCE[dtype]]}


def _shares_in(rank: Fields, side: str, which: str) -> Fields:
    """Communication and skew, where they are known."""
    return dict(zip(("communication", "skew"), rank["shares"].get(side, {}).get(which, ()), strict=False))


@contextlib.contextmanager
def _scheduler(num_processes: int) -> Iterator[list[str]]:
    """MindSpore's scheduler, which its collectives need, and the variables of ranks that use it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"MS_WORKER_NUM": str(num_processes), "MS_SCHED_HOST": "127.0.0.1", "MS_SCHED_PORT": str(port)}
    scheduler = subprocess.Popen([sys.executable, "-c", SCHEDULER], env={**os.environ, **variables, "MS_ROLE": "MS_SCHED"},
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield [f"{name}={value}" for name, value in {**variables, "MS_ROLE": "MS_WORKER", "GLOG_v": "3"}.items()]
    finally:
        scheduler.kill()
        scheduler.wait()


def ratio(case: Fields, which: str, side: str = "torch") -> float | None:
    """Returns how many times longer another side takes; None if it has no such pass."""
    sides = case["sides"]
    return sides[side][which]["ms"] / sides["hpmoe"][which]["ms"] if which in sides.get(side, {}) else None


HEAD = ["| processes | T | I | dtype | pass | hpmoe ms | PyTorch ms | ratio | MindSpore ms | ratio | communication, skew of "
        "hpmoe | of PyTorch |", "|---|---|---|---|---|---|---|---|---|---|---|---|"]


def rows(case: Fields) -> list[str]:
    """Markdown, a row for each pass."""
    sizes, sides = case["sizes"], case["sides"]
    start = f"| {case['processes']} | {sizes['tokens']} | {sizes['intermediate']} | {case['dtype']}"
    lines = []
    for which, own in sides["hpmoe"].items():
        cells = [f"{own['ms']:.1f}"]
        for side in PEERS:
            times = ratio(case, which, side)
            cells += ["-", "-"] if times is None else [f"{sides[side][which]['ms']:.1f}", f"{times:.2f}x"]
        for side in ("hpmoe", "torch"):
            of = sides.get(side, {}).get(which)
            cells.append("-" if of is None else f"{100 * of['communication']:.0f} %, {100 * of['skew']:.0f} %")
        lines.append(" | ".join([start, which, *cells]) + " |")
    return lines


def closing_lines(report: Fields, titles: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Names the cases that are no measurement."""
    wrong = [f"WRONG: {titles.get(side, side)}, error {case['errors'][side]:.1e}: {_named(case)}"
             for case in done_cases(report) for side in case["wrong"]]
    return [*wrong, *(f"status {case['status']}: {_named(case)}" for case in report["cases"] if case["status"] != 0)]


def _named(case: Fields) -> str:
    return f"{case['sizes']}, {case['dtype']}" + (f", {case['rate']:g} Gb/s" if "rate" in case else "")


def done_cases(report: Fields) -> list[Fields]:
    """Returns the cases whose ranks all ended well."""
    return [case for case in report["cases"] if case["status"] == 0]


def draw(report: Fields, out: str) -> None:
    """Bars of each case; what communication takes is light."""
    done = done_cases(report)
    drawn(report, out, _draw_case, 1.2 + 0.42 * len(done), [f"I={case['sizes']['intermediate']}" for case in done],
          f"{done[0]['processes']} processes, ms; light: communication, where it is known")


def drawn(report: Fields, out: str, draw_case: Callable[[Axes, int, Fields, str], None], height: float,
          labels: Sequence[str], title: str) -> None:
    """Writes a picture: a panel for each pass, in which `draw_case` draws the bars of each case, one below another."""
    from matplotlib.figure import Figure  # late: an extra
    done, m = done_cases(report), report["machine"]
    figure = Figure(figsize=(10, height), layout="constrained")
    panels = figure.subplots(1, len(PASSES))
    for which, axes in zip(PASSES, panels, strict=True):
        for i, case in enumerate(done):
            draw_case(axes, i, case, which)
        axes.set_title(which, fontsize=9)
        axes.invert_yaxis()
        axes.margins(x=0.2)
        axes.legend(fontsize=7)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(done)), [f"{c['dtype']}, T={c['sizes']['tokens']}, {label}"
                                            for c, label in zip(done, labels, strict=True)])
    panels[1].set_yticks([])
    figure.suptitle(f"MoE-FFN on {title}\n{m['cpu']}, {m['cores']} cores")
    figure.savefig(out, dpi=90)


def _draw_case(axes: Axes, i: int, case: Fields, which: str) -> None:
    colors = {"hpmoe": ("#1b6ca8", "#7fb3d9"), "torch": ("#76808c", "#cfd6dd"), "mindspore": ("#b08a4a", "#e0cfa8")}
    present = [side for side, of_side in case["sides"].items() if which in of_side]
    for k, side in enumerate(present):
        of, height = case["sides"][side][which], 0.8 / len(present)
        ms, share, y = of["ms"], of.get("communication", 0.0), i - 0.4 + height * (k + 0.5)
        axes.barh(y, ms * (1 - share), 0.95 * height, color=colors[side][0], label=TITLES[side] if i == 0 else None)
        axes.barh(y, ms * share, 0.95 * height, left=ms * (1 - share), color=colors[side][1])
        axes.text(ms, y, f" {ms:.0f}", va="center", fontsize=7)


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
