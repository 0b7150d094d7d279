"""What was found before: searches kept in this process and in the user's cache folder."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import warnings
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from hpmoe.calling.planned_rows import routes_of
from hpmoe.host import cache_folder, write_whole
from hpmoe.machine import Machine
from hpmoe.program import Program
from hpmoe.tuning.search import EXHAUSTED, Trial

_kept: dict[str, dict[str, Any]] = {}  # searches of this process by their key


def key_of(programs: dict[str, Program], machine: Machine, space: dict[str, list[Any]],
           inputs: Sequence[np.ndarray | None], max_trials: int | None) -> str | None:
    """The same for the same search; None where functions are in the space, which say nothing that could be compared."""
    if any(callable(v) for values in space.values() for v in values):
        return None
    arrays = [None if a is None else [list(a.shape), hashlib.sha256(np.ascontiguousarray(a).tobytes()).hexdigest()]
              for a in inputs]
    what = [metadata.version("hpmoe"), {d: [str(p), _placements(p)] for d, p in programs.items()}, repr(machine), space,
            max_trials, arrays]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=repr).encode()).hexdigest()


def _placements(program: Program) -> list[Any]:
    """Of every route all that is known of its copies, of which the text of a program shows a few."""
    return [r.aval.placement and dataclasses.astuple(r.aval.placement) for r in routes_of(program)]


def load(key: str | None, budget_s: float) -> tuple[list[Trial], str] | None:
    """The trials kept under a key; None where there are none, or where they ended for a smaller budget."""
    if key is None:
        return None
    try:
        kept = _kept.get(key) or json.loads(_path(key).read_text(encoding="utf-8"))
        if kept["key"] != key or (kept["why_ended"] != EXHAUSTED and kept["budget_s"] < budget_s):
            return None
        trials = [Trial(tuple(map(tuple, settings)), None if us is None else float(us), error)
                  for settings, us, error in kept["trials"]]
        return (trials, kept["why_ended"]) if trials and trials[0].us is not None else None
    except (OSError, ValueError, KeyError, TypeError):
        return None  # a file of something else is written anew


def store(key: str | None, budget_s: float, trials: list[Trial], why_ended: str) -> None:
    """Keeps the trials; a folder that cannot be written is a warning."""
    if key is None:
        return
    kept = {"key": key, "budget_s": budget_s, "why_ended": why_ended,
            "trials": [[[list(s) for s in t.settings], t.us, t.error] for t in trials]}
    _kept[key] = kept
    try:
        write_whole(_path(key), json.dumps(kept, default=int) + "\n")
    except OSError as error:
        warnings.warn(f"hpmoe.tune: what was found cannot be kept: {error}", stacklevel=3)


def _path(key: str) -> Path:
    return cache_folder() / f"tune-{key[:32]}.json"
