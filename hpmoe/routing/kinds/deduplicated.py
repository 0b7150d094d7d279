"""Deduplicated: a token goes once to each rank that has experts for it, however many experts these are."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.routing.kinds.stops import Stops


@dataclasses.dataclass(frozen=True)
class Deduplicated(Stops):
    """Tokens that go to the ranks of their experts by `kind`, once to each."""

    def stop(self, source: np.ndarray | int, dest: np.ndarray | int) -> np.ndarray:
        return np.asarray(dest)
