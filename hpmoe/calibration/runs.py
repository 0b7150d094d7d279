"""Runs on a machine whose speed other programs change: each beside a fixed launch, and only undisturbed ones count."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np

import hpmoe
from hpmoe.calibration.measured_call import measured_call
from hpmoe.timelines.timeline import Timeline

EACH = 3  # runs that count, of each visit
NEAR = 1.4  # the fixed launches before and after a run at the quiet speed take no more than this factor longer or shorter
COUNTED = 0.25  # of the runs at the quiet speed, the quickest
LEAST = 4  # runs that count at least, and twice as many of which they are the quickest
QUIET = 0.25  # of the launches of the yardstick, and of what is timed without it
EVICTING = 1 << 26  # bytes written before each run, so that what a simulation fetches from memory comes from there
UNCERTAIN = 0.04  # standard error of the mean of the runs that count, above which there should be more of them


class Yardstick:
    """A small launch on all cores, next to which other runs are timed.

    A machine shared with others has another speed every second, and a core of its own every few milliseconds: a run counts
    by how long it takes beside this launch.
    """

    def __init__(self) -> None:
        o = SimpleNamespace(dtype="float32", ep=1, tokens=256, hidden=512, intermediate=256, experts=4, top_k=2, seed=0,
                            direction="forward", tile_rows=None, tile_cols=None)
        ids = np.random.default_rng(0).random((1, o.tokens, o.experts)).argsort(-1)[..., :o.top_k].astype(np.int32)
        self._call = measured_call(o, hpmoe.cpu(), ids)
        self._block = np.ones(EVICTING // 8)
        self.spans: list[float] = []  # microseconds of every launch

    def run(self) -> float:
        """Runs the call once with nothing of earlier runs in caches; returns its seconds."""
        self._block.fill(0.0)
        self.spans.append(hpmoe.measure(self._call)[1][0].span)
        return self.spans[-1]

    @property
    def quiet(self) -> float:
        """Time at the reference speed, that of the quietest quarter of its launches."""
        return float(np.quantile(self.spans, QUIET))


@dataclasses.dataclass(frozen=True, eq=False)
class Run:
    """A measured run of a call.

    Attributes:
        lines: its launches.
        before, after: microseconds of the yardstick.
    """

    lines: tuple[Timeline, ...]
    before: float
    after: float

    def distance(self, quiet: float) -> float:
        """Returns the factor between the speed of the yardstick beside a run and its quiet speed."""
        return math.exp(max(abs(math.log(us / quiet)) for us in (self.before, self.after)))


class Runs:
    """All measured runs of one call."""

    def __init__(self, call: Callable[[], object]):
        self._call = call
        self.all: list[Run] = []

    def run(self, yardstick: Yardstick) -> None:
        """One run that does not count, since what ran before left buffers of other sizes, then some that may."""
        self._call()
        before = yardstick.run()
        for _ in range(EACH):
            lines = hpmoe.measure(self._call)[1]
            after = yardstick.run()
            self.all.append(Run(lines, before, after))
            before = after

    def counted(self, yardstick: Yardstick, launch: int = -1) -> tuple[list[Timeline], np.ndarray]:
        """Returns the runs of a launch that count, and how much faster each would have been at the yardstick's quiet speed.

        Kinds of tasks slow down differently when the machine does, so that no yardstick tells what a run at half the speed
        would have taken: runs at the quiet speed count. What disturbs them only makes them longer, by a core that is slower
        than the other one for a while too, so of those the quickest.
        """
        near = sorted(self.all, key=lambda run: run.distance(yardstick.quiet))[:max(2 * LEAST, self._num_near(yardstick))]
        speeds = np.array([2 * yardstick.quiet / (run.before + run.after) for run in near])
        quick = np.argsort(speeds * [sum(line.span for line in run.lines) for run in near], kind="stable")
        quick = quick[:max(LEAST, math.ceil(COUNTED * len(near)))]
        return [near[i].lines[launch] for i in quick], speeds[quick]

    def launches(self, yardstick: Yardstick) -> list[tuple[Timeline, np.ndarray, float]]:
        """Returns, for each launch of the call, a Timeline and mean microseconds of the counted runs at the yardstick's
        quiet speed: of each task, and of the span."""
        out = []
        for launch in range(len(self.all[0].lines)):
            lines, speeds = self.counted(yardstick, launch)
            us = np.mean([(line.end - line.begin) * s for line, s in zip(lines, speeds, strict=True)], axis=0)
            out.append((lines[0], us, float(np.mean(speeds * [line.span for line in lines]))))
        return out

    def uncertainty(self, yardstick: Yardstick) -> float:
        """Returns the standard error of the mean span of the last launch, as a share of it; infinite below two runs."""
        lines, speeds = self.counted(yardstick)
        spans = speeds * [line.span for line in lines]
        return float(np.std(spans, ddof=1) / np.mean(spans) / math.sqrt(len(spans))) if len(spans) > 1 else math.inf

    def is_disturbed(self, yardstick: Yardstick) -> bool:
        """Returns True if more runs are needed."""
        return self._num_near(yardstick) < 2 * LEAST or self.uncertainty(yardstick) > UNCERTAIN

    def _num_near(self, yardstick: Yardstick) -> int:
        """Runs at the quiet speed."""
        return sum(run.distance(yardstick.quiet) <= NEAR for run in self.all)
