"""The measured fields of this CPU's Machine, from rounds over everything that is timed."""

from __future__ import annotations

import collections
import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpmoe.calibrating.bodies import Subject, subjects
from hpmoe.calibrating.fit import Samples, fit
from hpmoe.calibrating.overheads import Overheads
from hpmoe.calibrating.runs import COUNTED, Runs
from hpmoe.host import num_cores
from hpmoe.machine import Body

MOST_ROUNDS, LEAST_ROUNDS = 25, 5
NO_LIMIT = 1e9  # bytes a microsecond through private caches: the measured bodies include it


def measure_cpu(budget_s: float, progress: Callable[[str], None], alongside: Sequence[Runs] = ()
                ) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Times everything in turn, round after round, until `budget_s` seconds are over.

    Of the runs of a call and of an overhead the quarter counts that other programs disturbed least. The runs of `alongside`
    get a turn in each round too.

    Returns:
        The measured fields of a Machine, and for each kind of task and dtype its row of the table: kind, dtype, samples,
        rate (flops or bytes a microsecond, of a large task), lost rows, cols and inner, error (median).
    """
    begin, cores = time.monotonic(), num_cores()
    progress("tracing and planning")
    timed, overheads = subjects(), Overheads(cores)
    each = [*(subject.runs for subject in timed), *alongside]
    done = -1  # the first round traces, plans and warms up
    while done < LEAST_ROUNDS or (done < MOST_ROUNDS and time.monotonic() - begin < budget_s):
        progress(f"round {done + 1}" if done >= 0 else "warming up")
        for runs in each:
            runs.run()
        overheads.run()
        if done < 0:
            for kept in (*(runs.timelines for runs in each), *overheads.times.values(), *overheads.copied.values()):
                kept.clear()
        done += 1
    table = _table(timed)
    return _fields(table, overheads, cores), [row for row, _ in table]


def _table(timed: list[Subject]) -> list[tuple[dict[str, Any], Body]]:
    gathered: dict[tuple[str, str], list[Samples]] = collections.defaultdict(list)
    for subject in timed:
        for kind, dtype, samples in subject.tasks():
            gathered[kind, dtype].append(samples)
    out = []
    for (kind, dtype), parts in gathered.items():
        samples = Samples.joined(parts)
        if not len(samples.us):
            continue
        body, error = fit(kind, dtype, samples, is_matmul(kind))
        out.append(({"kind": kind, "dtype": dtype, "samples": len(samples.us), "rate": body.share, "rows": body.rows,
                     "cols": body.cols, "inner": body.inner, "error": error}, body))
    return sorted(out, key=lambda pair: (not is_matmul(pair[0]["kind"]), pair[0]["kind"], pair[0]["dtype"]))


def is_matmul(kind: str) -> bool:
    return kind.startswith(("GMM", "WGRAD"))


def _fields(table: list[tuple[dict[str, Any], Body]], overheads: Overheads, cores: int) -> dict[str, Any]:
    matmul = max(b.share for r, b in table if r["kind"] == "GMM")
    rate = {(r["kind"], r["dtype"]): b.share for r, b in table}
    vector = rate["MAP add", "float32"]
    bodies = [dataclasses.replace(b, share=b.share / (matmul if is_matmul(b.kind) else vector)) for _, b in table]
    copied = {n: float(np.quantile(rates, 1 - COUNTED)) for n, rates in overheads.copied.items()}
    us = {f"{name}_us": float(np.quantile(times, COUNTED)) for name, times in overheads.times.items() if times}
    return {"matmul_flops_per_us": matmul, "matmul_float32_ratio": rate["GMM", "float32"] / matmul,
            "vector_bytes_per_us": vector, "copy_bytes_per_us": rate["PUT", "float32"],
            "l2_bytes": float(cores * _private_cache()), "l2_bytes_per_us": NO_LIMIT, "worker_l2_bytes_per_us": NO_LIMIT,
            "memory_bytes_per_us": copied[cores], "worker_memory_bytes_per_us": copied[1],
            "host_cores": float(cores),
            "signal_us": 0.05, "wait_us": 0.05, "poll_us": 0.5, **us, "bodies": tuple(bodies)}


def _private_cache() -> int:
    """Bytes of a core's own last cache, as far as the system tells."""
    try:
        size = os.sysconf("SC_LEVEL2_CACHE_SIZE")
    except (ValueError, OSError):
        size = 0
    return size if size > 0 else 1 << 20
