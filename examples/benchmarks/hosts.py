"""hosts.py: the MoE-FFN on ranks of two hosts, by each scheme of sending rows, beside PyTorch."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import processes
import ranks_contest
import script
from absl import flags
from layer_problem import PASSES, LayerProblem
from namespaces import ADDRESSES, DEVICES, Hosts, NoHostsError

from hpmoe.commands import options
from hpmoe.kernels.native import ucx_fault
from hpmoe.ranks.launchers import SECRET
from hpmoe.ranks.link import ENGINES
from hpmoe.support.cached_files import Fields

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUMMARY = "times a MoE-FFN on ranks of two hosts, network namespaces, by each scheme of sending rows, beside PyTorch"
NUM_HOSTS, PORT = 2, 29500
TITLES = {"direct": "direct", "deduplicated": "once to a rank", "hierarchical": "once to a node",
          "hierarchical+deduplicated": "both",
          "torch": "PyTorch, gloo"}
NOTES = """\
  python examples/benchmarks/hosts.py --tokens=256 --experts=32 --top_k=8 --dtype=float32 --repeats=3
Ranks of two hosts, network namespaces of this computer that a cable of this rate joins (tc tbf); all share its cores.
All sides are in each rank and take turns, see processes.py. direct: a row for each expert; once to a rank:
"deduplicated"; once to a node: "hierarchical"; both: "hierarchical+deduplicated"; PyTorch: all_to_all_single of gloo.
Messages and MB are of one run, to the other host: of rows, weights among them, as counted where they are sent; on
the cable, as the system counts."""


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "processes", 2, "ranks of each host, each a process")
    processes.define_layer(values)
    flags.DEFINE_string("rates", "1,10", "Gb/s of the cable, a case for each", flag_values=values)
    options.define_choice(values, "engine", ENGINES[0], "what carries messages between hosts", ENGINES)
    flags.DEFINE_string("peers", "all", "torch, all or none, beside hpmoe", flag_values=values)


def run(o: flags.FlagValues) -> int:
    sides, rates = sides_of(o.peers), rates_of(o.rates)
    check_engine(o.engine)
    todo = list(processes.cases(o, NUM_HOSTS * o.processes))
    options.check_picture(o.out)
    report = {"machine": script.machine(), "seed": o.seed, "repeats": o.repeats, "engine": o.engine, "cases": []}
    with two_hosts() as hosts:
        if not o.json:
            print("\n".join(HEAD), flush=True)
        for what, dtype, rate in itertools.product(todo, script.DTYPES[o.dtype], rates):
            case = measured(hosts, rate, o.processes, what, dtype, sides, o.seed, o.repeats, o.engine)
            report["cases"].append(case)
            if not o.json and case["status"] == 0:
                print("\n".join(rows(case)), flush=True)
    return processes.finished(o, report, sys.modules[__name__])


def rates_of(text: str) -> list[float]:
    """Gb/s of the cable in each case, as --rates says."""
    try:
        rates = [float(word) for word in text.split(",")]
    except ValueError:
        rates = [0.0]
    options.check_flag(all(0.001 <= rate <= 1000 for rate in rates), "rates", text,
                       "numbers from 0.001 to 1000, separated by commas: Gb/s")
    return rates


def sides_of(peers: str) -> list[str]:
    """The sides: each scheme, and what --peers says."""
    options.check_flag(peers in ("all", "none", "torch"), "peers", peers, "all, none or torch")
    options.check_flag(peers == "none" or importlib.util.find_spec("torch") is not None, "peers", peers,
                       "none where PyTorch is not installed; pip install '.[bench]'")
    return [side for side in TITLES if side != "torch" or peers != "none"]


def check_engine(engine: str) -> None:
    """Raises UsageError where this computer lacks what is to carry messages."""
    fault = ucx_fault() if engine == "ucx" else ""
    options.check_flag(not fault, "engine", engine, f"tcp here: {fault}")


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Raises UsageError where there can be none, or their cable has no such rate."""
    try:
        with Hosts() as hosts:
            yield hosts
    except NoHostsError as error:
        raise options.UsageError(f"two hosts: {error}") from None


def measured(hosts: Hosts, rate: float, ranks: int, sizes: Fields, dtype: str, sides: Sequence[str], seed: int,
             repeats: int, engine: str) -> Fields:
    """One case: medians, turns and what crosses, of each side and pass; see processes.measured."""
    case: Fields = {"rate": rate, "ranks": ranks, "sizes": sizes, "dtype": dtype}
    hosts.shape(f"{rate}gbit")
    case["gbits"] = hosts.gbits()
    with tempfile.TemporaryDirectory(prefix="hpmoe_bench_") as folder:
        processes.write_problem(LayerProblem(Path(folder), dtype, NUM_HOSTS * ranks, **sizes), seed)
        given = json.dumps({"sides": list(sides), "repeats": repeats, "folder": folder,
                            "world": {"nodes": NUM_HOSTS, "engine": engine}})
        status = _status_of(hosts, ranks, given)
        if status != 0:
            return {**case, "status": status}
        reports = json.loads((Path(folder) / "report.json").read_text())
    found = {side: {which: {"ms": statistics.median(turns), "turns_ms": turns, **_crossing(reports, ranks, side, which)}
                    for which, turns in of_side.items()} for side, of_side in reports[0]["turns_ms"].items()}
    return {**case, "status": 0, "sides": found, **processes.checked(reports, dtype)}


def _status_of(hosts: Hosts, ranks: int, given: str) -> int:
    """Returns the status of the launchers of both hosts."""
    launch = ["-m", "hpmoe", "launch", "-n", str(ranks), f"--hosts={NUM_HOSTS}", f"--rendezvous={ADDRESSES[0]}:{PORT}"]
    environment = ["env", *processes.KEEPING, f"{SECRET}={secrets.token_hex(32)}"]
    launchers = []
    for host, device in enumerate(DEVICES):
        command = [*environment, f"GLOO_SOCKET_IFNAME={device}", sys.executable, *launch, f"--host_rank={host}",
                   ranks_contest.__file__, given]
        launchers.append(subprocess.Popen(hosts.inside(host, command), stdout=subprocess.DEVNULL))
    return max(abs(launcher.wait()) for launcher in launchers)


def _crossing(reports: Sequence[Fields], ranks: int, side: str, which: str) -> Fields:
    """Sums messages and bytes of all ranks; each rank counts the whole cable of its host, so one rank of each is used."""
    of_ranks = [report["carried"][side][which] for report in reports]
    own = {name: sum(rank[name] for rank in of_ranks) for name in ("row_bytes", "messages")}
    return {**({} if side == "torch" else own), "cable_bytes": sum(rank["cable_bytes"] for rank in of_ranks[::ranks])}


HEAD = ["| Gb/s | T | H | I | E | K | dtype | pass | side | ms | PyTorch | messages | MB of rows | MB on the cable |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]


def rows(case: Fields) -> list[str]:
    """Markdown, a row for each pass and side; PyTorch: how many times as long that takes."""
    sizes, sides = case["sizes"], case["sides"]
    start = [f"{case['rate']:g}", *(str(sizes[name]) for name in ("tokens", "hidden", "intermediate", "experts", "top_k")),
             case["dtype"]]
    lines = []
    for which in PASSES:
        for side, passes in sides.items():
            of = passes[which]
            times = f"{sides['torch'][which]['ms'] / of['ms']:.2f}x" if "torch" in sides else "-"
            counts = [str(of["messages"]), f"{of['row_bytes'] / 1e6:.2f}"] if "messages" in of else ["-"] * 2
            cells = [*start, which, TITLES[side], f"{of['ms']:.1f}", times, *counts, f"{of['cable_bytes'] / 1e6:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def closing_lines(report: Fields) -> list[str]:
    """Returns the rate of each cable, and the cases that are no measurement."""
    done = processes.done_cases(report)
    lines = [f"one TCP connection over {rate:g} Gb/s: {max(case['gbits'] for case in done if case['rate'] == rate):.2f} Gb/s"
             for rate in dict.fromkeys(case["rate"] for case in done)]
    return [*lines, *processes.closing_lines(report, TITLES)]


def draw(report: Fields, out: str) -> None:
    """Bars of each side in each case."""
    done = processes.done_cases(report)
    height = 1.4 + 0.17 * sum(1 + len(case["sides"]) for case in done)
    processes.drawn(report, out, _draw_case, height, [f"{case['rate']:g} Gb/s" for case in done],
                    f"2 hosts of {done[0]['ranks']} ranks that share all cores, ms; right of a bar: MB on the cable")


def _draw_case(axes: Axes, i: int, case: Fields, which: str) -> None:
    colors = dict(zip(TITLES, ("#9fc5e8", "#5b9bd5", "#1b6ca8", "#0b3c5d", "#9aa5b1"), strict=True))
    for k, (side, passes) in enumerate(case["sides"].items()):
        of, height = passes[which], 0.8 / len(case["sides"])
        y = i - 0.4 + height * (k + 0.5)
        axes.barh(y, of["ms"], 0.95 * height, color=colors[side], label=TITLES[side] if i == 0 else None)
        axes.text(of["ms"], y, f" {of['ms']:.0f}, {of['cable_bytes'] / 1e6:.1f} MB", va="center", fontsize=7)


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
