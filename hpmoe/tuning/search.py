"""Searching the settings of a chain one by one: each trial changes one setting of the best so far."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from hpmoe.support.known import known

Value = Hashable  # of a setting: a name, a number, None or a function
Settings = Mapping[str, Value]
Space = Mapping[str, Sequence[Value]]  # the values of each setting, the default first
EXHAUSTED = "no other value of any one setting is faster"


@dataclasses.dataclass(frozen=True)
class Trial:
    """Settings that were tried.

    Attributes:
        settings: (name, value) of each.
        us: simulated microseconds, None where it failed.
        error: why it failed, "" where it did not.
    """

    settings: tuple[tuple[str, Value], ...]
    us: float | None
    error: str = ""

    def __str__(self) -> str:
        return ", ".join(f"{name}={getattr(value, '__name__', value)}" for name, value in self.settings)


def best_of(trials: Sequence[Trial]) -> Trial:
    """The fastest, of equals the one tried first."""
    return min((t for t in trials if t.us is not None), key=lambda t: known(t.us))


def search(space: Space, evaluate: Callable[[Settings], float], budget_s: float,
           max_trials: int | None, report: Callable[[str], None], starts: Sequence[Settings] = ()
           ) -> tuple[list[Trial], str]:
    """Tries the first value of every setting, then one by one the others of each setting, round and round while it helps.

    What is tried depends on the simulated times alone: with the same `max_trials`, and time for them, it is always the same.

    Args:
        space: for each setting its values, the default first.
        evaluate: simulated microseconds of settings. What it raises makes a failed trial, but of the first one it is raised.
        budget_s: seconds after which no other trial begins.
        max_trials: how many there are at most; any number where None.
        report: called with what is tried next.
        starts: settings to try before any is changed, the default ones first; the search goes on from the fastest.

    Returns:
        All trials in order, and why there are no more.

    Example:
        >>> def evaluate(settings): return 10.0 + settings["y"] - settings["x"]
        >>> trials, why = search({"x": (0, 1, 2), "y": (0, 5)}, evaluate, 60.0, None, report=lambda what: None)
        >>> [str(t) for t in trials], why
        (['x=0, y=0', 'x=1, y=0', 'x=2, y=0', 'x=2, y=5'], 'no other value of any one setting is faster')
    """
    begin = time.monotonic()
    trials: list[Trial] = []
    tried: set[tuple[str, ...]] = set()
    for settings in _proposed(space, starts or [{name: values[0] for name, values in space.items()}], trials):
        values = tuple(map(repr, settings.values()))
        if values in tried:
            continue
        if trials and max_trials is not None and len(trials) >= max_trials:
            return trials, f"{max_trials} trials were made"
        if trials and time.monotonic() - begin >= budget_s:
            return trials, f"{budget_s:g} s were over"
        tried.add(values)
        _try(settings, evaluate, trials, report)
    return trials, EXHAUSTED


def _proposed(space: Space, starts: Sequence[Settings], trials: Sequence[Trial]
              ) -> Iterator[Settings]:
    """Settings to try after `trials`, which grow meanwhile."""
    yield from starts
    unchanged = 0
    for name in itertools.cycle(space):
        if unchanged == len(space):
            return
        before = known(best_of(trials).us)
        for value in space[name]:
            yield {**dict(best_of(trials).settings), name: value}
        unchanged = 1 if known(best_of(trials).us) < before else unchanged + 1


def _try(settings: Settings, evaluate: Callable[[Settings], float], trials: list[Trial],
         report: Callable[[str], None]) -> None:
    trial = Trial(tuple(settings.items()), None)
    report(f"trial {len(trials) + 1}: {trial}")
    try:
        trial = dataclasses.replace(trial, us=float(evaluate(settings)))
    except Exception as error:
        if not trials:
            raise
        first = (str(error).splitlines() or [""])[0]
        trial = dataclasses.replace(trial, error=f"{type(error).__name__}: {first}")
    trials.append(trial)
