"""Runs on a machine that does other things too: the quieter quarter of them counts, others only lengthen a run."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

import hpmoe
from hpmoe.timelines.timeline import Timeline

COUNTED = 0.25
EACH = 2  # runs that count, of each visit


class Runs:
    """Measured runs of one call.

    Attributes:
        timelines: those of the launches in each run.
    """

    def __init__(self, call: Callable[[], object]):
        self._call = call
        self.timelines: list[tuple[Timeline, ...]] = []

    def run(self) -> None:
        """One run that does not count, since what ran before left buffers of other sizes, then some that do."""
        self._call()
        self.timelines += [hpmoe.measure(self._call)[1] for _ in range(EACH)]

    def launches(self) -> list[tuple[Timeline, np.ndarray, float]]:
        """For each launch of the call a Timeline, and mean microseconds of its quieter runs: of each task, and of the span.

        Runs count as a whole: the least of each task alone would together be less than any run takes.
        """
        out = []
        for lines in zip(*self.timelines, strict=True):
            quiet = sorted(lines, key=lambda line: line.span)[:math.ceil(COUNTED * len(lines))]
            tasks = np.mean([line.end - line.begin for line in quiet], axis=0)
            out.append((quiet[0], tasks, float(np.mean([line.span for line in quiet]))))
        return out
