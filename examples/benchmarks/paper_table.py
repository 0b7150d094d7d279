"""The latencies that HyperParallel-MoE publishes, beside what the model of an Ascend A3 says of the same layers."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import micro
import script
from absl import flags

import hpmoe
from hpmoe.commands import options
from hpmoe.commands.layer import Layer, ids_of
from hpmoe.support.cached_files import Fields
from hpmoe.support.progress import Progress

SUMMARY = "prints HyperParallel-MoE's published times beside the model of an Ascend A3"
NOTES = """\
All figures but the published ones are simulated.
  python examples/benchmarks/paper_table.py --json"""

# arXiv 2605.23764: dispatch to combine, balanced routing, milliseconds: unfused, fused.
PAPER = {(4, "forward"): (16.3, 10.2), (8, "forward"): (17.3, 10.3), (16, "forward"): (18.4, 11.2),
         (4, "backward"): (27.9, 19.4), (8, "backward"): (29.8, 19.6), (16, "backward"): (30.5, 19.9)}
SIZES = {"tokens": 4096, "hidden": 7168, "intermediate": 2048, "top_k": 8, "dtype": "bfloat16"}
ASSUMED = ("4096 tokens of top-8 on each rank, 32,768 rows received by each: the paper does not say so, but its times and "
           "the peak of the machine imply it;\n8 experts on each rank; three constants of ascend_a3 were fitted to EP 8 "
           "(see hpmoe machine ascend_a3), with EP 4 and 16 in view: these are no blind predictions")
OTHER = "with 16,384 rows received by each rank (2048 tokens) the same model gives"


def define(values: flags.FlagValues) -> None:
    """No flags but --json and --help."""


def run(o: flags.FlagValues) -> int:
    with Progress("paper_table.py") as progress:
        table, other = (rows(tokens, progress) for tokens in (4096, 2048))
        progress("micro-benchmarks")
        small = micro.rows()
    result = {"simulated": True, "assumed": ASSUMED, "rows": table, "rows_of_16384_received": other, "micro": small}
    return options.report(o, result, f"{text(table, other)}\n\n{micro.text(small)}")


def rows(tokens: int, progress: Progress, machine: hpmoe.Machine = hpmoe.machines.ascend_a3) -> list[Fields]:
    """One row for each EP and direction."""
    out = []
    for (ep, direction), (baseline, fused) in PAPER.items():
        progress(f"EP {ep}, {direction}, {tokens} tokens")
        o = SimpleNamespace(**{**SIZES, "tokens": tokens}, ep=ep, experts=8 * ep)
        layer = Layer(o, direction, machine, ids_of(o))
        simulated = layer.baseline().span / 1e3, layer.span_us(layer.fused("round_robin")) / 1e3
        reference = layer.span_us(layer.fused("expert_barrier")) / 1e3
        out.append({"ep": ep, "direction": direction, "baseline_ms": simulated[0], "fused_ms": simulated[1],
                    "speedup": simulated[0] / simulated[1], "expert_barrier_ms": reference, "paper_baseline_ms": baseline,
                    "paper_fused_ms": fused, "paper_speedup": baseline / fused})
    return out


def text(table: list[Fields], other: list[Fields]) -> str:
    lines = [f"HyperParallel-MoE, ms; simulated figures by the model of ascend_a3\n{ASSUMED}\n", _head(), *map(_line, table),
             "\nfused: the paper's schedule, tiles dealt out in program order, whole rows put, tile events (round_robin)\n"
             "expert_barrier: the same layer, simulated, by a model of the paper's public implementation", "", OTHER,
             _head(), *map(_line, other)]
    return "\n".join(lines)


def _head() -> str:
    names = "".join(f"{n:^28}" for n in ("baseline", "fused"))
    parts = f"{'paper':>8}{'simulated':>11}{'error':>8} "
    return f"{'':13}{names}{'speed-up':^18}  expert_barrier\n{'EP':>3} {'':9}{parts}{parts}{'paper':>8}{'simulated':>10}"


def _line(row: Fields) -> str:
    def cells(name: str) -> str:
        paper, simulated = row[f"paper_{name}_ms"], row[f"{name}_ms"]
        return f"{paper:8.1f}{simulated:11.2f}{simulated / paper - 1:+7.1%}  "
    return (f"{row['ep']:>3} {row['direction']:9}{cells('baseline')}{cells('fused')}{row['paper_speedup']:8.2f}"
            f"{row['speedup']:10.2f}{row['expert_barrier_ms']:16.2f}").replace("%", " %")


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
