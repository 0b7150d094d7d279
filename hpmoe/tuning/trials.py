"""Trials: the plans that were compared, their simulated times, and the plan that was chosen."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from hpmoe.support.known import known
from hpmoe.support.notebook import table_html
from hpmoe.timelines.run import format_us
from hpmoe.tuning.plan import Plan, Space

EXHAUSTED = "no other value of any one setting is faster"


@dataclasses.dataclass(frozen=True)
class Trial:
    """A plan with its simulated time, or the error of its simulation.

    Attributes:
        plan: settings of the chain.
        us: simulated microseconds of a launch, the geometric mean of all routings; None if the simulation failed.
        error: why the simulation failed, or "".
    """

    plan: Plan
    us: float | None
    error: str = ""


@dataclasses.dataclass(frozen=True)
class Trials:
    """Plans that autotune compared for one pass; prints as a table.

    Attributes:
        name, direction, ep_size, machine: name, pass and ranks of the program, and the machine's name.
        trials: in the order in which they were made; the first is the choice of the cost model.
        chosen: the fastest plan; of equals the one tried first.
        why_ended: why there are no more trials.
        num_simulated: number of trials that were simulated now; the others were in the cache.
    """

    name: str
    direction: str
    ep_size: int
    machine: str
    trials: tuple[Trial, ...]
    chosen: Plan
    why_ended: str
    num_simulated: int

    @property
    def reason(self) -> str:
        """Why the chosen plan was chosen."""
        if not self.trials:
            return f"{self.chosen}, by the cost model; nothing was simulated"
        default, best = self.trials[0].us, best_of(self.trials)
        if default is None or best is None:
            return f"the cost model's choice; {self.trials[0].error}"
        gain = f"{default / known(best.us):.2f} times as fast as" if known(best.us) < default else "no plan is faster than"
        return f"{gain} the cost model's choice; {len(self.trials)} compared, {self.why_ended}"

    def _rows(self) -> list[list[str]]:
        """Returns the cells of the table, the head first."""
        rows = [["", "simulated", "", *vars(self.chosen), ""]]
        for t in self.trials:
            us = t.us
            times = ["failed", ""] if us is None else [format_us(us), f"{known(self.trials[0].us) / us:.2f}x"]
            rows.append(["*" if t.plan == self.chosen else "", *times, *map(str, vars(t.plan).values()), t.error])
        return rows

    def _title(self) -> str:
        ranks = f"{self.ep_size} ranks" if self.ep_size > 1 else "1 rank"
        return f"{self.name} on {self.machine}, {ranks}, {self.direction}: simulated"

    def __str__(self) -> str:
        rows = self._rows()
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join([*(cell.rjust(w) for cell, w in zip(row[:-1], widths, strict=False)), row[-1]]).rstrip()
                 for row in rows if self.trials]
        return "\n".join([self._title(), *lines, f"chosen: {self.reason}"])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        chosen = next((i for i, trial in enumerate(self.trials) if trial.plan == self.chosen), None)
        return table_html(self._title(), self._rows(), f"chosen: {self.reason}", chosen)


def best_of(trials: Sequence[Trial]) -> Trial | None:
    """Returns the fastest trial, of equals the one tried first; None if all failed."""
    return min((t for t in trials if t.us is not None), key=lambda t: known(t.us), default=None)


def search(space: Space, try_plan: Callable[[Plan], Trial], budget: int) -> tuple[list[Trial], str]:
    """Tries the default plan, then the plans that each stage of the space makes of the best so far, until none is faster.

    Args:
        space: the plans.
        try_plan: returns the trial of a plan.
        budget: the most trials. A larger budget makes the same trials first.

    Returns:
        The trials in order, and why there are no more.
    """
    trials: list[Trial] = []
    tried: set[Plan] = set()
    for plan in _proposed(space, trials):
        if plan in tried:
            continue
        if len(trials) >= budget:
            return trials, f"as many as the budget of {budget}"
        tried.add(plan)
        trials.append(try_plan(plan))
        if trials[0].us is None:
            return trials, "the first one failed"
    return trials, EXHAUSTED


def _proposed(space: Space, trials: Sequence[Trial]) -> Iterator[Plan]:
    """Yields plans to try next; the caller appends each tried plan to `trials` before it asks for another."""
    yield space.default
    before = None
    while (best := best_of(trials)) != before:
        before = best
        for stage in space.stages():
            yield from stage(known(best_of(trials)).plan)
