"""Predicted beside measured times of single operators and of a fused kernel, from a table of measurements."""

from __future__ import annotations

import csv
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import script
from absl import flags
from operator_formulas import fused_us, matmul_us, moe_ffn_us

import hpmoe
from hpmoe.commands import options
from hpmoe.commands.machine import MachineName
from hpmoe.machines.machine_files import load_machine
from hpmoe.machines.perturbed import drawn
from hpmoe.routing.workload import sampled_ids
from hpmoe.support.cached_files import Fields
from hpmoe.support.errors import check_argument

SUMMARY = "predicts measured times of operators and says how far off the predictions are"
NOTES = """\
A file has the columns of data/ascend_910b.csv, which is the default; no time is looked up. Constants of ascend_a3 were
fitted to the rows of that file that are printed as fitted; all other rows are judged.
  python examples/benchmarks/predict_operators.py examples/benchmarks/data/ascend_910b.csv --json"""
POSITIONAL = ("file",)

DATA = Path(__file__).parent / "data" / "ascend_910b.csv"
SIZES = "M", "N", "K", "tokens", "hidden", "intermediate", "experts", "top_k", "ep"
KINDS = "matmul", "moe_ffn_of_one_rank", "fused_dispatch_ffn_combine"
QUANTIZED = {"bf16": False, "w8a8": True}
# Kinds, dtypes and least tokens of rows that are summed up together.
GROUPS = (*((kind, dtype, 0) for kind in KINDS for dtype in QUANTIZED), ("moe_ffn_of_one_rank", "both", 64),
          ("fused_dispatch_ffn_combine", "both", 0), ("all", "both", 0))
FITTED_LAYERS = {(2048, 1024, 128, 8, 4), (3584, 2560, 64, 8, 1), (4096, 14336, 8, 2, 1), (6144, 2048, 256, 8, 2),
                 (6144, 2048, 256, 8, 8)}
BUFFERS = 8  # copies of the operands of a product that take turns
DRAWS = 4  # of ids, whose mean time is predicted
MACHINES, BAND = 64, 80  # drawn from the ranges of the constants; the per cent of their times that a band holds
WHO = "predict_operators.py"


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("file", None, "the measurements; by default data/ascend_910b.csv", flag_values=values)
    flags.DEFINE(MachineName(), "machine", "ascend_a3", "the model of what they were measured on", flag_values=values)


def run(o: flags.FlagValues) -> int:
    table, machine = read(Path(o.file or DATA)), load_machine(o.machine)
    fitted = {tuple(row.values()) for row in read(DATA) if is_of_fit(row)}
    found = predictions(machine, table)
    parts = np.array(["fitted" if tuple(row.values()) in fitted else "judged" for row in table])
    result = {"simulated": True, "machine": machine.name, "rows": summary(table, parts, *found)}
    return options.report(o, result, text(result["rows"]))


def read(path: Path) -> list[Fields]:
    """Returns the rows of a file, their numbers as ints, or None if a kind has no such size; `us` as floats."""
    check_argument(path.is_file(), WHO, "file", f"{str(path)!r}, and there is no such file", "a .csv file")
    with open(path, newline="", encoding="utf-8") as file:
        table: list[Fields] = list(csv.DictReader(file))
    for row in table:
        check_argument(row.get("kind") in KINDS and row.get("dtype") in QUANTIZED, WHO, "kind and dtype",
                       f"{row.get('kind')!r} and {row.get('dtype')!r}", f"one of {', '.join(KINDS)}; bf16 or w8a8")
        row |= {name: int(row[name]) if row.get(name) else None for name in SIZES} | {"us": float(row["us"])}
    return table


def is_of_fit(row: Fields) -> bool:
    """Returns whether constants were fitted to a row: half of the (N, K) pairs of products, and some layers."""
    if row["kind"] == "matmul":
        return zlib.crc32(f"{row['N']}x{row['K']}".encode()) % 2 == 0
    return tuple(row[name] for name in SIZES[4:]) in FITTED_LAYERS


def predictions(machine: hpmoe.Machine, table: Sequence[Fields]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns predicted microseconds of each row, and the least and most of its band, [rows] each."""
    loads = [None if row["kind"] == "matmul" else loads_of(row) for row in table]
    others = np.array([_times(other, table, loads) for other in drawn(machine, MACHINES)])
    low, high = np.percentile(others, (50 - BAND / 2, 50 + BAND / 2), axis=0)
    return _times(machine, table, loads), low, high


def loads_of(row: Fields) -> np.ndarray:
    """Returns rows of each expert of the fullest rank, [draws, E_local].

    Ids of a fused kernel are known: entry i of every rank is of expert i modulo E. Those of other kernels are drawn.
    """
    tokens, top_k, experts, ep = (row[name] for name in ("tokens", "top_k", "experts", "ep"))
    if row["kind"] == "fused_dispatch_ffn_combine":
        counts = ep * np.bincount(np.arange(tokens * top_k) % experts, minlength=experts).reshape(ep, -1)
        return counts[[counts.sum(axis=1).argmax()]]
    ids = sampled_ids(DRAWS, tokens, top_k, experts).reshape(DRAWS, -1)
    return np.array([np.bincount(of, minlength=experts)[:experts // ep] for of in ids])


def _times(machine: hpmoe.Machine, table: Sequence[Fields], loads: Sequence[np.ndarray | None]) -> np.ndarray:
    out = np.zeros(len(table))
    for dtype, quantized in QUANTIZED.items():
        which = [i for i, row in enumerate(table) if row["kind"] == "matmul" and row["dtype"] == dtype]
        if which:
            m, n, k = (np.array([table[i][name] for i in which]) for name in ("M", "N", "K"))
            out[which] = matmul_us(machine, m, n, k, quantized, BUFFERS)
    for i, rows in enumerate(loads):
        if rows is not None:
            out[i] = np.mean([_layer_us(machine, table[i], of) for of in rows])
    return out


def _layer_us(machine: hpmoe.Machine, row: Fields, loads: np.ndarray) -> float:
    quantized, sizes = QUANTIZED[row["dtype"]], (row["hidden"], row["intermediate"])
    if row["kind"] == "fused_dispatch_ffn_combine":
        return fused_us(machine, loads, *sizes, row["ep"], quantized)
    return moe_ffn_us(machine, loads, *sizes, row["tokens"] * row["top_k"], row["tokens"], quantized)


def summary(table: Sequence[Fields], parts: np.ndarray, predicted: np.ndarray, low: np.ndarray,
            high: np.ndarray) -> list[Fields]:
    """Returns errors of each kind and dtype, of rows that were fitted and of those that are judged."""
    us, out = np.array([row["us"] for row in table]), []
    error, is_inside, width = np.abs(predicted / us - 1), (low <= us) & (us <= high), (high - low) / 2 / predicted
    for part in ("fitted", "judged"):
        for kind, dtype, few in GROUPS:
            which = np.array([kind in (row["kind"], "all") and dtype in (row["dtype"], "both")
                              and (row["tokens"] or 0) >= few for row in table], bool) & (parts == part)
            if which.any():
                median, ninety = np.percentile(error[which], (50, 90)).tolist()
                out.append({"part": part, "kind": kind, "dtype": dtype, "least_tokens": few,
                            "rows": int(which.sum()), "median": median, "p90": ninety, "worst": float(error[which].max()),
                            "inside_band": float(is_inside[which].mean()), "half_width": float(np.median(width[which]))})
    return out


def text(rows: Sequence[Fields]) -> str:
    lines = ["| part | kind | dtype | rows | median | 90 % | worst | in the 80 % band | its half-width |", "|---" * 9 + "|"]
    for row in rows:
        kind = f"{row['kind']}, {row['least_tokens']} tokens or more" if row["least_tokens"] else row["kind"]
        shares = (f"{100 * row[name]:.1f} %" for name in ("median", "p90", "worst", "inside_band", "half_width"))
        lines.append(f"| {row['part']} | {kind} | {row['dtype']} | {row['rows']} | {' | '.join(shares)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(script.main(sys.modules[__name__]))
