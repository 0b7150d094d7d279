"""layer.py: the MoE-FFN beside the same one in other frameworks, and beside two limits of the machine."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import layer_report
import script
from absl import flags
from arrays import make_arrays
from contest import Contest
from layer_problem import SIZES, LayerProblem
from sides import SIDES

from hpmoe.commands import options
from hpmoe.support import host
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

SUMMARY = "times a MoE-FFN beside the same one in other frameworks, plain matmuls and reading its weights"
NOTES = """\
Prints milliseconds of the forward pass and of both, the peers' over hpmoe's, and MiB.
  python examples/benchmarks/layer.py --tokens=512 --dtype=float32 --peers=jax,torch
Each side runs in a process of its own with as many threads as there are cores, stopped while others run; sides take
turns, and a turn is one untimed run and then timed ones for 50 ms. Latency is the median of the turns. Every output
and gradient is checked against float64 before. Peak memory is what a process takes beyond its imports: inputs,
compilation and results included. A pass has two limits: its products at the best rate of a library in any turn of a
3072 x 3072 x 3072 product, and its weights at the best rate of reading as many bytes. The column "limit" is the share
of the nearer limit, the one that takes longer.
Exits with 1 where a side computes something else, ends or hangs. Sides not installed: pip install '.[bench]'
Peers: """ + ", ".join(name for name, side in SIDES.items() if name != "hpmoe" and not side.ceiling) + """
Ceilings: """ + ", ".join(name for name, side in SIDES.items() if side.ceiling)

PEERS = tuple(name for name in SIDES if name != "hpmoe")
OTHER_SIZES = (1, 4, 32, 32, 8, 2), (1, 64, 128, 64, 8, 2), (1, 1, 2048, 768, 32, 8)  # of the suite


def define(values: flags.FlagValues) -> None:
    options.define_sizes(values, ep=1, tokens=2048, hidden=1024, intermediate=512, experts=16, top_k=4)
    script.define_dtypes(values)
    options.define_choice(values, "routing", "uniform", "how experts are drawn", ("uniform", "zipf"))
    options.define_switch(values, "suite", "these sizes, also with 1, 4, 8 and 64 tokens, Zipf routing, and 4 ranks of a "
                          "quarter of the tokens; two small layers and one of 2048 columns")
    options.define_integer(values, "seed", 0, "seed of the random inputs", least=0)
    options.define_integer(values, "repeats", 7, "turns of each side")
    options.define_integer(values, "timeout", 600, "seconds that a side may take to start, compile or run once")
    flags.DEFINE_string("peers", "all", "sides beside hpmoe, separated by commas; all; none", flag_values=values)
    script.define_picture(values)


def run(o: flags.FlagValues) -> int:
    names = ["hpmoe", *peers(o.peers)]
    todo = cases(o)
    options.check_picture(o.out)
    with Progress("layer.py") as progress:
        report = {"machine": script.machine(), "seed": o.seed, "repeats": o.repeats, "cases": []}
        contest = Contest(o.repeats, host.num_cores(), o.timeout, progress)
        for what in todo:
            for dtype in script.DTYPES[o.dtype]:
                contest.progress = lambda step, at=f"{what['name']}, {dtype}: ": progress(at + step)
                report["cases"].append(measured(what, dtype, o.seed, contest, names))
                if not o.json:
                    print("\n".join(layer_report.case_lines(report["cases"][-1])), flush=True)
        report["ok"] = not any(row["status"] in ("wrong", "failed")
                               for done in report["cases"] for row in (*done["sides"], *done["ceilings"]))
        if o.out:
            import layer_picture  # late: it imports matplotlib, an extra
            layer_picture.draw(report, o.out)
    return options.report(o, report, "\n".join(layer_report.closing_lines(report)), report["ok"])


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
    """A benchmark case: its name, sizes and routing."""
    options.check_sizes(o)
    base = case(o, ep=o.ep, tokens=o.tokens, routing=o.routing)
    if not o.suite:
        return [base]
    options.check_flag(o.ep == 1, "ep", o.ep, "1 with --suite, which has 4 ranks as one of its cases")
    options.check_flag(o.routing == "uniform", "routing", o.routing, "uniform with --suite, which has zipf as well")
    options.check_flag(o.experts % 4 == 0, "experts", o.experts, "a multiple of 4 with --suite")
    few = [case(o, tokens=tokens) for tokens in (1, 4, 8, 64) if tokens != o.tokens]
    return [*few, base, case(o, tokens=o.tokens, routing="zipf"), case(o, ep=4, tokens=max(1, o.tokens // 4)),
            *(case(o, **dict(zip(SIZES, sizes, strict=True))) for sizes in OTHER_SIZES)]


def case(o: flags.FlagValues, tokens: int, ep: int = 1, routing: str = "uniform", **sizes: int) -> Fields:
    name = f"{f'{ep} ranks x ' if ep > 1 else ''}{tokens} tokens{', Zipf' if routing == 'zipf' else ''}"
    name += "".join(f", {what[0].upper()}={n}" for what, n in sizes.items() if what in ("hidden", "intermediate"))
    return {"name": name, **options.sizes(o), **sizes, "ep": ep, "tokens": tokens, "routing": routing}


def measured(what: Fields, dtype: str, seed: int, contest: Contest, names: list[str]) -> Fields:
    """One case in one dtype: the contest and what follows from it."""
    sizes = {name: value for name, value in what.items() if name not in ("name", "routing")}
    with tempfile.TemporaryDirectory(prefix="hpmoe_bench_") as folder:
        problem = LayerProblem(Path(folder), dtype=dtype, **sizes)
        problem.write(make_arrays(problem, what["routing"], seed))
        contestants = contest.hold(problem, names)
        load = max(problem.counts) * problem.experts / sum(problem.counts)
        return {"name": what["name"], "sizes": sizes, "dtype": dtype, "routing": what["routing"],
                "max_over_mean_load": load, **layer_report.summary(problem, contestants)}


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
