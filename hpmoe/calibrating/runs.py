"""Runs on a machine that does other things too: what counts of them is the lower decile, others only lengthen a run."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import hpmoe
from hpmoe.timelines.timeline import Timeline

COUNTED = 0.1
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
        """For each launch of the call a Timeline, and microseconds over the runs: of each of its tasks, and of the span."""
        return [(lines[0], np.quantile([line.end - line.begin for line in lines], COUNTED, axis=0),
                 float(np.quantile([line.span for line in lines], COUNTED))) for lines in zip(*self.timelines, strict=True)]
