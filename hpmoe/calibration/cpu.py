"""The measured fields of this CPU's Machine, from rounds over everything that is timed."""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

import hpmoe
from hpmoe.calibration.bodies import Subject, subjects
from hpmoe.calibration.fit import Samples, fit
from hpmoe.calibration.overheads import Overheads
from hpmoe.calibration.runs import QUIET, Runs, Yardstick
from hpmoe.kernels.native import few_terms, skinny_rows
from hpmoe.machines.machine import Body
from hpmoe.support.cached_files import Fields
from hpmoe.support.host import num_cores
from hpmoe.tile_ops.matmuls import GMM
from hpmoe.tile_ops.tile_primitive import TilePrimitive
from hpmoe.tile_ops.transfers import PUT

MOST_ROUNDS, LEAST_ROUNDS = 40, 5
AGAIN = 0.5  # of the time for all, at most, for what other programs disturbed
FASTER = 1.4  # than memory is what caches hold
NO_LIMIT = 1e9  # bytes a microsecond through private caches: the measured bodies include it


class Measurement:
    """Everything that is timed, in turn and round after round, beside a yardstick; more rounds are more precise."""

    def __init__(self, progress: Callable[[str], None], alongside: Sequence[Runs] = ()):
        """Calls `progress` with each step; the runs of `alongside` get a turn in each round, too."""
        self._progress = progress
        progress("tracing and planning")
        self._timed, self._overheads, self.yardstick = subjects(), Overheads(num_cores()), Yardstick()
        self._each = [*(subject.runs for subject in self._timed), *alongside]
        self._done = 0
        progress("warming up")
        self._round()
        times = self._overheads.times, self._overheads.fetched, self._overheads.read_again
        for kept in (*(runs.all for runs in self._each), self.yardstick.spans, *(t for by in times for t in by.values())):
            kept.clear()

    def run(self, budget_s: float) -> None:
        """Rounds until `budget_s` seconds are over, and then, for half as long at most, what was disturbed too much."""
        begin, done = time.monotonic(), 0
        while done < LEAST_ROUNDS or (done < MOST_ROUNDS and time.monotonic() - begin < budget_s):
            self._done, done = self._done + 1, done + 1
            self._progress(f"round {self._done}")
            self._round()
        begin = time.monotonic()
        while time.monotonic() - begin < AGAIN * budget_s:
            disturbed = [runs for runs in self._each if runs.is_disturbed(self.yardstick)]
            if not disturbed:
                return
            self._progress(f"measuring {len(disturbed)} of {len(self._each)} again, which other programs disturbed")
            for runs in disturbed:
                runs.run(self.yardstick)

    def _round(self) -> None:
        for runs in self._each:
            runs.run(self.yardstick)
        self._overheads.run()

    def result(self) -> tuple[Fields, list[Fields]]:
        """The measured fields of a Machine, and for each kind of task and dtype its row of the table: kind, dtype, samples,
        rate (flops or bytes a microsecond, of a large task), lost rows, cols and inner, most_rows, error (median).

        Of an overhead the quietest quarter counts, of the runs of a call what Runs says.
        """
        memory = _memory(self._overheads)
        table = _table(self._timed, self.yardstick, hpmoe.cpu().replace(memory))
        return {**memory, **_fields(table, self._overheads)}, [row for row, _ in table]


def _table(timed: list[Subject], yardstick: Yardstick, machine: hpmoe.Machine) -> list[tuple[Fields, Body]]:
    gathered: dict[tuple[str, str], list[Samples]] = collections.defaultdict(list)
    for subject in timed:
        for kind, dtype, samples in subject.tasks(yardstick, machine):
            gathered[kind, dtype].append(samples)
    out = []
    for (kind, dtype), parts in gathered.items():
        samples, few = Samples.joined(parts), _few(kind, dtype)
        for most_rows, which in ((0, samples.rows > few), (few, samples.rows <= few)):
            mine = samples.select(which)
            if not len(mine.us):
                continue
            body, error = fit(kind, dtype, mine, is_matmul(kind))
            out.append(({"kind": kind, "dtype": dtype, "samples": len(mine.us), "rate": body.share, "rows": body.rows,
                         "cols": body.cols, "inner": body.inner, "most_rows": most_rows, "error": error},
                        dataclasses.replace(body, most_rows=float(most_rows))))
    return sorted(out, key=lambda pair: (not is_matmul(pair[1].kind), pair[1].kind, pair[1].dtype, pair[1].most_rows))


def _few(kind: str, dtype: str) -> int:
    """Returns the most rows of tasks of a kind that use a loop of their own for few rows."""
    if _operation(kind).makes_blocks:
        return few_terms(dtype)
    return skinny_rows(dtype, kind != GMM.name) if is_matmul(kind) else 0


def is_matmul(kind: str) -> bool:
    return _operation(kind).is_matmul


def _operation(kind: str) -> TilePrimitive:
    return TilePrimitive.named(kind.partition(" ")[0])


def _fields(table: list[tuple[Fields, Body]], overheads: Overheads) -> Fields:
    rate = {(b.kind, b.dtype): b.share for _, b in table if not b.most_rows}
    matmul = max(share for (kind, _), share in rate.items() if kind == GMM.name)
    vector = rate["MAP add", "float32"]
    bodies = [dataclasses.replace(b, share=b.share / (matmul if is_matmul(b.kind) else vector)) for _, b in table]
    us = {name: float(np.quantile(times, QUIET)) for name, times in overheads.times.items() if times}
    return {"cube.flops_per_us": matmul, "cube.float32_ratio": rate[GMM.name, "float32"] / matmul,
            "vector.bytes_per_us": vector, "vector.copy_bytes_per_us": rate[PUT.name, "float32"],
            "sync.signal_us": 0.05, "sync.wait_us": 0.05, "sync.poll_us": 0.5, **us, "bodies": tuple(bodies)}


def _memory(overheads: Overheads) -> dict[str, float]:
    """Returns rates of caches and memory; a cache's size is the most bytes that are read clearly faster than from memory."""
    fetched, again = ({key: max(rates) for key, rates in by.items()} for by in (overheads.fetched, overheads.read_again))
    held = [size for size, rate in again.items() if rate > FASTER * again[max(again)]]
    cores = max(fetched)
    return {"l2.bytes": float(max(held, default=0)), "l2.bytes_per_us": NO_LIMIT, "l2.worker_bytes_per_us": NO_LIMIT,
            "memory.bytes_per_us": fetched[cores], "memory.worker_bytes_per_us": fetched[1], "host.cores": float(cores)}
