"""The result of tune: the chain it chose, and what was tried before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from hpmoe.machines.machine import Machine
from hpmoe.runtime.staged_function import StagedFunction
from hpmoe.runtime.transform import chain
from hpmoe.support.known import known
from hpmoe.support.trees import Function
from hpmoe.timelines.run import format_us
from hpmoe.transforms.fuse_persistent import fuse_persistent
from hpmoe.tuning.choose_schedule import Schedule
from hpmoe.tuning.search import Trial, Value, best_of
from hpmoe.tuning.settings import transforms_of


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A chain of transforms, and what was tried before it was chosen: called with a function it fuses it.

    Attributes:
        name: what was tuned.
        machine: for which.
        ep_size: on how many ranks.
        direction: "forward", "backward" or "both", whose simulated times are added.
        trials: in the order in which they were made; the first one is the default.
        why_ended: why there are no more.
        is_cached: whether they were made before, by this process or another.
        taken: of each launch what `choose_schedule` takes, without knowing the routing.
    """

    name: str
    machine: Machine
    ep_size: int
    direction: str
    trials: tuple[Trial, ...]
    why_ended: str
    is_cached: bool = False
    taken: Mapping[str, Schedule] = dataclasses.field(default_factory=dict)

    @property
    def best(self) -> Trial:
        return best_of(self.trials)

    @property
    def settings(self) -> dict[str, Value]:
        """The chosen value of each setting that was tried, see `tune`."""
        return dict(self.best.settings)

    @property
    def reason(self) -> str:
        """Why these settings."""
        default, best = known(self.trials[0].us), known(self.best.us)
        gain = f"{_quicker(default, best):.2f} times as fast as" if best < default else "nothing tried is faster than"
        return f"{self.best}: {gain} the default; {len(self.trials)} tried, {self.why_ended}"

    def __call__(self, f: Function) -> StagedFunction:
        """The function under the chosen chain, ready to be called, or put under spmd for several ranks."""
        return chain(*transforms_of(self.settings, self.machine), fuse_persistent)(f)

    def __str__(self) -> str:
        names = [name for name, _ in self.trials[0].settings]
        rows = [["", "simulated", "", *names]]
        for t in self.trials:
            mark = "*" if t is self.best else ""
            times = ["failed", ""] if t.us is None else [format_us(t.us), f"{_quicker(known(self.trials[0].us), t.us):.2f}x"]
            rows.append([mark, *times, *(str(getattr(v, "__name__", v)) for _, v in t.settings)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        errors = ["", *(t.error for t in self.trials)]
        lines = ["  ".join([*(cell.rjust(w) for cell, w in zip(row, widths, strict=True)), error]).rstrip()
                 for row, error in zip(rows, errors, strict=True)]
        ranks = f"{self.ep_size} ranks" if self.ep_size > 1 else "1 rank"
        passes = "forward + backward" if self.direction == "both" else self.direction
        cached = ", tried before" if self.is_cached else ""
        taken = "; ".join(f"{launch} {schedule}" for launch, schedule in self.taken.items())
        return "\n".join([f"{self.name} on {self.machine.name}, {ranks}, {passes}: simulated{cached}", *lines,
                          f"choose_schedule takes: {taken}", f"chosen: {self.reason}"])

    __repr__ = __str__


def _quicker(us: float, other_us: float) -> float:
    """How many times as fast the other one is; a machine may cost nothing."""
    return us / max(other_us, 1e-9)
