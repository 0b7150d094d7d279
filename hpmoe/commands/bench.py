"""hpmoe bench: the MoE-FFN beside the same one in other frameworks, and beside the rate of a matmul alone."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

from absl import flags

from hpmoe.commands import bench_hosts, bench_permute, bench_processes, bench_report, bench_styles, options
from hpmoe.commands.bench_arrays import make_arrays
from hpmoe.kernels.native import products_name
from hpmoe.peers import SIDES
from hpmoe.peers.contest import Contest, version
from hpmoe.peers.layer_problem import LayerProblem
from hpmoe.ranks.link import ENGINES
from hpmoe.support import host
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.kept_files import Fields
from hpmoe.support.progress import Progress

SUMMARY = "times a MoE-FFN beside the same one in other frameworks and beside plain matmuls"
NOTES = """\
Prints milliseconds of the forward pass and of both, the peers' over hpmoe's, and MiB.
  hpmoe bench --tokens=512 --dtype=float32 --peers=jax,torch
Each side runs in a process of its own with as many threads as there are cores, stopped while others run; sides take
turns, and a turn is one untimed run and then timed ones for 50 ms. Latency is the median of the turns. Every output
and gradient is checked against float64 before. Peak memory is what a process takes beyond its imports: inputs,
compilation and results included. The ceiling is the fastest library's median at a 3072 x 3072 x 3072 product.
Exits with 1 where a side computes something else, ends or hangs. Sides not installed: pip install '.[bench]'
--permute times token operators instead, in this process; --tokens and --hidden pick one of its cases.
Peers: """ + ", ".join(name for name, side in SIDES.items() if name != "hpmoe" and not side.ceiling) + """
Ceilings: """ + ", ".join(name for name, side in SIDES.items() if side.ceiling)

PEERS = tuple(name for name in SIDES if name != "hpmoe")
DTYPES = {"both": ("float32", "bfloat16"), "float32": ("float32",), "bfloat16": ("bfloat16",)}
SIZES = ("tokens", "hidden", "intermediate", "experts", "top_k")
assert {d for names in DTYPES.values() for d in names} <= set(FLOATS)


def define(values: flags.FlagValues) -> None:
    options.define_sizes(values, ep=1, tokens=2048, hidden=1024, intermediate=512, experts=16, top_k=4)
    options.define_choice(values, "dtype", "both", "of everything but the ids", tuple(DTYPES))
    options.define_choice(values, "routing", "uniform", "how experts are drawn", ("uniform", "zipf"))
    options.define_switch(values, "suite", "these sizes, 64 tokens, Zipf routing, and 4 ranks of a quarter of the tokens")
    options.define_switch(values, "permute", "instead: rows permuted and brought back, beside a copy and other frameworks")
    options.define_switch(values, "styles", "instead: a layer of permute and exchange beside the same of dispatch and "
                          f"combine, on {bench_styles.RANKS} ranks where --ep is not given")
    options.define_integer(values, "processes", None, "instead: so many ranks, each a process, beside PyTorch and "
                           "MindSpore; --tokens are of a rank")
    options.define_switch(values, "hosts", "instead: --processes ranks, or 2, on each of two hosts, which are network "
                          "namespaces, by each scheme of sending rows, beside PyTorch")
    flags.DEFINE_string("rates", "1,10", "Gb/s of the cable between --hosts, a case for each", flag_values=values)
    options.define_choice(values, "engine", ENGINES[0], "what carries messages between --hosts", ENGINES)
    options.define_integer(values, "seed", 0, "seed of the random inputs", least=0)
    options.define_integer(values, "repeats", 7, "turns of each side")
    options.define_integer(values, "timeout", 600, "seconds that a side may take to start, compile or run once")
    flags.DEFINE_string("peers", "all", "sides beside hpmoe, separated by commas; all; none", flag_values=values)
    flags.DEFINE_string("out", None, "where to draw the result, such as bench.png; needs matplotlib", flag_values=values)


def run(o: flags.FlagValues) -> int:
    for name, report in (("permute", permuted), ("styles", in_styles)):
        if o[name].value:
            options.check_flag(o.out is None, "out", o.out, f"left out with --{name}, whose result is a text")
            return report(o)
    if o.hosts:
        return of_hosts(o)
    if o.processes is not None:
        return of_processes(o)
    names = ["hpmoe", *peers(o.peers)]
    todo = cases(o)
    options.check_picture(o.out)
    with Progress("hpmoe bench") as progress:
        report = {"machine": machine(), "seed": o.seed, "repeats": o.repeats, "cases": []}
        contest = Contest(o.repeats, host.num_cores(), o.timeout, progress)
        for what in todo:
            for dtype in DTYPES[o.dtype]:
                contest.progress = lambda step, at=f"{what['name']}, {dtype}: ": progress(at + step)
                report["cases"].append(measured(what, dtype, o.seed, contest, names))
                if not o.json:
                    print("\n".join(bench_report.case_lines(report["cases"][-1])), flush=True)
        report["ok"] = not any(row["status"] in ("wrong", "failed")
                               for done in report["cases"] for row in (*done["sides"], *done["matmul"]))
        if o.out:
            from hpmoe.commands import bench_picture  # late: it imports matplotlib, an extra
            bench_picture.draw(report, o.out)
    if o.json:
        print(json.dumps(report))
    else:
        print("\n".join(bench_report.closing_lines(report)))
    return 0 if report["ok"] else 1


def permuted(o: flags.FlagValues) -> int:
    """What --permute prints."""
    tokens, hidden = ((getattr(o, name),) if o[name].present else every for name, every in
                      (("tokens", bench_permute.TOKENS), ("hidden", bench_permute.HIDDEN)))
    report = {"machine": machine(), "repeats": o.repeats, "cases": []}
    for case in bench_permute.reports(tokens, hidden, DTYPES[o.dtype], o.repeats):
        report["cases"].append(case)
        if not o.json:
            print("\n".join(bench_permute.lines(case)), flush=True)
    report["sort"] = bench_permute.sort_times()
    print(json.dumps(report) if o.json else f"{bench_permute.sort_line(report['sort'])}\n{bench_permute.NOTES}")
    return 0


def in_styles(o: flags.FlagValues) -> int:
    """What --styles prints."""
    sizes = {**options.sizes(o), "ep": o.ep if o["ep"].present else bench_styles.RANKS}
    options.check_sizes(SimpleNamespace(**sizes))
    report = {"machine": machine(), "seed": o.seed, "repeats": o.repeats, "cases": []}
    for dtype in DTYPES[o.dtype]:
        report["cases"].append(bench_styles.measured(sizes, dtype, o.seed, o.repeats))
        if not o.json:
            print("\n".join(bench_styles.lines(report["cases"][-1])), flush=True)
    print(json.dumps(report) if o.json else bench_styles.NOTES)
    return 0


def of_processes(o: flags.FlagValues) -> int:
    """What --processes prints."""
    options.check_sizes(o)
    sides, sizes = {dtype: bench_processes.sides_of(o.peers, dtype) for dtype in DTYPES[o.dtype]}, options.sizes(o)
    todo = list(bench_processes.cases(o.processes, {name: sizes[name] for name in SIZES}, o.suite))
    options.check_picture(o.out)
    report = {"machine": machine(), "seed": o.seed, "repeats": o.repeats, "cases": []}
    if not o.json:
        print("\n".join(bench_processes.HEAD), flush=True)
    for what in todo:
        for dtype in DTYPES[o.dtype]:
            case = bench_processes.measured(o.processes, what, dtype, sides[dtype], o.seed, o.repeats)
            report["cases"].append(case)
            if not o.json and case["status"] == 0:
                print("\n".join(bench_processes.rows(case)), flush=True)
    return finished(o, report, bench_processes)


def finished(o: flags.FlagValues, report: Fields, of: ModuleType) -> int:
    """Draws and prints a report of --processes or --hosts, as their module does; the exit status."""
    report["ok"] = all(case["status"] == 0 and not case["wrong"] for case in report["cases"])
    if o.out and report["ok"]:
        of.draw(report, o.out)
    print(json.dumps(report) if o.json else "\n".join(["", *of.closing_lines(report), of.NOTES]))
    return 0 if report["ok"] else 1


def of_hosts(o: flags.FlagValues) -> int:
    """What --hosts prints."""
    options.check_sizes(o)
    ranks, sides, rates = o.processes or bench_hosts.RANKS, bench_hosts.sides_of(o.peers), bench_hosts.rates_of(o.rates)
    bench_hosts.check_engine(o.engine)
    sizes = options.sizes(o)
    todo = list(bench_processes.cases(bench_hosts.NUM_HOSTS * ranks, {name: sizes[name] for name in SIZES}, o.suite))
    options.check_picture(o.out)
    report = {"machine": machine(), "seed": o.seed, "repeats": o.repeats, "engine": o.engine, "cases": []}
    with bench_hosts.two_hosts() as hosts:
        if not o.json:
            print("\n".join(bench_hosts.HEAD), flush=True)
        for what, dtype, rate in ((what, dtype, rate) for what in todo for dtype in DTYPES[o.dtype] for rate in rates):
            case = bench_hosts.measured(hosts, rate, ranks, what, dtype, sides, o.seed, o.repeats, o.engine)
            report["cases"].append(case)
            if not o.json and case["status"] == 0:
                print("\n".join(bench_hosts.rows(case)), flush=True)
    return finished(o, report, bench_hosts)


def peers(wanted: str) -> list[str]:
    """The names after --peers, in the order of the table of sides."""
    if wanted in ("all", "none"):
        return list(PEERS) if wanted == "all" else []
    names = wanted.split(",")
    for name in names:
        options.check_flag(name in PEERS, "peers", name, f"all, none, or a list of {', '.join(PEERS)}"
                           f"{options.did_you_mean(name, PEERS)}")
    return [name for name in PEERS if name in names]


def cases(o: flags.FlagValues) -> list[Fields]:
    """What is measured: a name, sizes, and the routing."""
    options.check_sizes(o)
    base = case(o, ep=o.ep, tokens=o.tokens, routing=o.routing)
    if not o.suite:
        return [base]
    options.check_flag(o.ep == 1, "ep", o.ep, "1 with --suite, which has 4 ranks as one of its cases")
    options.check_flag(o.routing == "uniform", "routing", o.routing, "uniform with --suite, which has zipf as well")
    options.check_flag(o.experts % 4 == 0, "experts", o.experts, "a multiple of 4 with --suite")
    return [base, case(o, tokens=64), case(o, tokens=o.tokens, routing="zipf"), case(o, ep=4, tokens=max(1, o.tokens // 4))]


def case(o: flags.FlagValues, tokens: int, ep: int = 1, routing: str = "uniform") -> Fields:
    name = f"{f'{ep} ranks x ' if ep > 1 else ''}{tokens} tokens{', Zipf' if routing == 'zipf' else ''}"
    return {"name": name, **options.sizes(o), "ep": ep, "tokens": tokens, "routing": routing}


def machine() -> Fields:
    packages = sorted({side.package for side in SIDES.values()})
    return {"cpu": host.cpu_name(), "cores": host.num_cores(), "hpmoe_gemm": products_name(),
            "versions": {name: version(name) for name in packages if version(name)}}


def measured(what: Fields, dtype: str, seed: int, contest: Contest, names: list[str]) -> Fields:
    """One case in one dtype: the contest and what follows from it."""
    sizes = {name: value for name, value in what.items() if name not in ("name", "routing")}
    with tempfile.TemporaryDirectory(prefix="hpmoe_bench_") as folder:
        problem = LayerProblem(Path(folder), dtype=dtype, **sizes)
        problem.write(make_arrays(problem, what["routing"], seed))
        contestants = contest.hold(problem, names)
        load = max(problem.counts) * problem.experts / sum(problem.counts)
        return {"name": what["name"], "sizes": sizes, "dtype": dtype, "routing": what["routing"],
                "max_over_mean_load": load, **bench_report.summary(problem.flops, contestants)}
