"""Keeps the results of searches in this process and in the user's cache folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from hpmoe.ir.program import Program
from hpmoe.machines.machine import MOST_RATE, Machine
from hpmoe.runtime.planned_rows import routes_of
from hpmoe.support.errors import is_number
from hpmoe.support.host import cache_folder
from hpmoe.support.kept_files import Fields, read_object, write_object
from hpmoe.tuning.search import EXHAUSTED, Space, Trial

_kept: dict[str, Fields] = {}  # searches of this process by their key


def key_of(programs: dict[str, Program], machine: Machine, space: Space,
           inputs: Sequence[np.ndarray | None], max_trials: int | None) -> str | None:
    """The same for the same search; None where functions are in the space, which say nothing that could be compared."""
    if any(callable(v) for values in space.values() for v in values):
        return None
    arrays = [None if a is None else [list(a.shape), hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()]
              for a in inputs]
    what = [metadata.version("hpmoe"), {d: [str(p), _placements(p)] for d, p in programs.items()}, repr(machine), space,
            max_trials, arrays]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=repr).encode()).hexdigest()


def _placements(program: Program) -> list[tuple[object, ...] | None]:
    """Of every route all that is known of its copies, of which the text of a program shows a few."""
    return [r.aval.placement and dataclasses.astuple(r.aval.placement) for r in routes_of(program)]


def load(key: str | None, budget_s: float, space: Space, least_us: float
         ) -> tuple[list[Trial], str] | None:
    """The trials kept under a key; None where there are none, where they ended for a smaller budget, or where one of them is
    not of these settings or was quicker than `least_us`, which no simulation is."""
    if key is None:
        return None
    try:
        kept = _kept.get(key) or read_object(_path(key))
        if kept["key"] != key or (kept["why_ended"] != EXHAUSTED and not kept["budget_s"] >= budget_s):
            return None
        trials = [_trial(settings, us, error, space, least_us) for settings, us, error in kept["trials"]]
        return (trials, str(kept["why_ended"])) if trials and trials[0].us is not None else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a file of something else is written anew


def _trial(settings: Iterable[tuple[str, object]], us: object, error: object, space: Space, least_us: float) -> Trial:
    """A trial from what is kept of it; ValueError or KeyError where it can be none."""
    known = {name: {json.dumps(v, default=int): v for v in values} for name, values in space.items()}
    values = tuple((name, known[name][json.dumps(value)]) for name, value in settings)
    if [name for name, _ in values] != list(space) or not (us is None or (is_number(us) and least_us <= us <= MOST_RATE)):
        raise ValueError(f"{settings} took {us} us")
    return Trial(values, None if us is None else float(us), str(error))


def store(key: str | None, budget_s: float, trials: list[Trial], why_ended: str) -> None:
    """Keeps the trials; a folder that cannot be written is a warning."""
    if key is None:
        return
    kept = {"key": key, "budget_s": budget_s, "why_ended": why_ended,
            "trials": [[[list(s) for s in t.settings], t.us, t.error] for t in trials]}
    _kept[key] = kept
    try:
        write_object(_path(key), kept)
    except OSError as error:
        warnings.warn(f"hpmoe.tune: what was found cannot be kept: {error}", stacklevel=3)


def _path(key: str) -> Path:
    return cache_folder() / f"tune-{key[:32]}.json"
