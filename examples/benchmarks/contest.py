"""A contest: sides in processes of their own take turns at the same layer; each is checked before it is timed."""

from __future__ import annotations

import dataclasses
import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import matmul_alone
import numpy as np
import numpy_loop
from layer_problem import LIMITS, PASSES, RESULTS, LayerProblem
from process import Process, WorkerError
from sides import SIDES, Side

from hpmoe.support.known import known

# max|a - b| / max|b| against float64, for each result; half precision rounds what it stores between the steps.
TOLERANCE = {"float32": 1e-5, "bfloat16": 3e-2}


@dataclasses.dataclass
class Contestant:
    """A side and what became of it.

    Attributes:
        status: "ok", "wrong" (an error above the tolerance), "failed" (its process ended or hung), "not installed", "none"
            (the framework has no such dtype).
        note: why it is not ok.
        turns: for each pass, the median milliseconds of each turn.
        errors: for each pass, the error of each result.
        peak_mib: for each pass, the memory beyond the imports.
    """

    name: str
    side: Side
    variant: str = ""
    status: str = "ok"
    note: str = ""
    turns: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    errors: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    peak_mib: dict[str, float] = dataclasses.field(default_factory=dict)
    process: Process | None = None

    def fail(self, status: str, note: str) -> None:
        self.status, self.note, self.process = status, note, None

    def milliseconds(self, which: str) -> float | None:
        """The median of its turns at a pass; None where it has none or is not ok."""
        return statistics.median(self.turns[which]) if self.status == "ok" and self.turns.get(which) else None


@dataclasses.dataclass
class Contest:
    """Rules of a benchmark; one object for several problems remembers each side's chosen variant."""

    repeats: int
    threads: int
    timeout: float
    progress: Callable[[str], None]
    chosen: dict[tuple[str, bool, str], str] = dataclasses.field(default_factory=dict)

    def hold(self, problem: LayerProblem, names: Sequence[str]) -> list[Contestant]:
        """Every named side on one problem, those that cannot take part included."""
        self.progress("computing the float64 reference")
        want = reference(problem)
        contestants = [Contestant(name, SIDES[name]) for name in names]
        try:
            entrants = [c for c in contestants if self._may_enter(c, problem)]
            for c in entrants:  # they import side by side
                c.process = self._start(c.side, c.variant, problem)
            for c in entrants:
                self._check(c, problem, want)
            self._take_turns(contestants)
        finally:
            for c in contestants:
                if c.process is not None:
                    known(c.process).close()
        return contestants

    def _may_enter(self, c: Contestant, problem: LayerProblem) -> bool:
        """Returns True if a side can take part, and chooses its variant while no other side runs."""
        if problem.dtype in c.side.not_in:
            c.fail("none", c.side.not_in[problem.dtype])
        elif importlib.util.find_spec(c.side.package) is None:
            c.fail("not installed", f"pip install {c.side.package}, or hpmoe with its extra: pip install '.[bench]'")
        else:
            try:
                c.variant = self._choose(c, problem)
            except WorkerError as error:
                c.fail("failed", str(error))
        return c.status == "ok"

    def _check(self, c: Contestant, problem: LayerProblem, want: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        """Builds a side in its process and checks what it computes."""
        self.progress(f"starting {c.side.title}")
        try:
            passes = known(c.process).ask("build")["passes"]
            for which in passes:
                self.progress(f"warming up and checking {c.side.title}, {which}")
                with tempfile.TemporaryDirectory(dir=problem.folder) as folder:
                    known(c.process).ask("check", which=which, save=folder)
                    c.errors[which] = errors(Path(folder), want[which])
                known(c.process).ask("turn", which=which)
                c.turns[which] = []
                c.peak_mib[which] = known(c.process).ask("peak")["mib"]
        except WorkerError as error:
            return c.fail("failed", str(error))
        worst = max((e, name) for found in c.errors.values() for name, e in found.items())
        if not worst[0] <= TOLERANCE[problem.dtype]:
            known(c.process).close()
            c.fail("wrong", f"{worst[1]}: error {worst[0]:.1e}, above {TOLERANCE[problem.dtype]:.0e}")

    def _start(self, side: Side, variant: str, problem: LayerProblem) -> Process:
        return Process(side, problem.folder, side.variants[variant], self.threads, self.timeout)

    def _choose(self, c: Contestant, problem: LayerProblem) -> str:
        """The fastest variant of a side at its last pass; one that this machine cannot run is no choice."""
        key = c.side.package, c.side.ceiling, problem.dtype
        if len(c.side.variants) > 1 and key not in self.chosen:
            times: dict[str, float] = {}
            last: WorkerError | None = None
            for variant in c.side.variants:
                self.progress(f"trying {c.side.title}, {variant}")
                try:
                    with self._start(c.side, variant, problem) as process:
                        which = process.ask("build")["passes"][-1]
                        times[variant] = min(process.ask("turn", which=which)["ms"])
                except WorkerError as error:
                    last = error
            if not times:
                raise known(last)
            self.chosen[key] = min(times, key=times.__getitem__)
        return self.chosen.get(key, next(iter(c.side.variants)))

    def _take_turns(self, contestants: Sequence[Contestant]) -> None:
        """`repeats` rounds; in each every side has a turn at every pass, and each round another side begins."""
        for i in range(self.repeats):
            shift = i % len(contestants)
            for which in (*PASSES, *LIMITS):
                for c in (*contestants[shift:], *contestants[:shift]):
                    if c.process is not None and which in c.turns:
                        self.progress(f"round {i + 1} of {self.repeats}: {c.side.title}, {which}")
                        self._turn(c, which)

    def _turn(self, c: Contestant, which: str) -> None:
        try:
            c.turns[which].append(statistics.median(known(c.process).ask("turn", which=which)["ms"]))
            if which == list(c.turns)[-1]:
                c.peak_mib[which] = known(c.process).ask("peak")["mib"]
        except WorkerError as error:
            c.fail("failed", str(error))


def reference(problem: LayerProblem) -> dict[str, dict[str, np.ndarray]]:
    """Returns the expected results in float64, by pass and name."""
    passes, _ = numpy_loop.layer(problem, np.float64)
    full: dict[str, np.ndarray] = dict(zip(RESULTS, passes["forward + backward"](), strict=True))
    return {"forward": {"output": full["output"]}, "forward + backward": full,
            "matmul": {"product": matmul_alone.first_rows(problem.dtype)},
            "read": {"sum": np.array([problem.weight_bytes["forward"] // 4], float)}}


def errors(folder: Path, want: Mapping[str, np.ndarray]) -> dict[str, float]:
    """max|a - b| / max|b| of each saved result, of a product's first rows; infinite where it is of another size."""
    out = {}
    for i, (name, b) in enumerate(want.items()):
        a = np.load(folder / f"{i}.npy", mmap_mode="r")
        a = a[:len(b)] if name == "product" else a
        largest = np.abs(b).max(initial=0) or 1.0
        out[name] = float(np.abs(a.reshape(b.shape) - b).max(initial=0) / largest) if a.size == b.size else float("inf")
    return out
