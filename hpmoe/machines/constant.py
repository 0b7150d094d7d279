"""Constant: where a number of a machine comes from, and how sure it is."""

from __future__ import annotations

from typing import NamedTuple


class Constant(NamedTuple):
    """One number of a Machine with its source and range.

    Attributes:
        source: who says so.
        low, high: between what it may lie, in the unit of the Machine.
        unit: that it is written in.
        date: when it was read, measured or assumed, as 2026-11-23 or as much of that as is known; "" where that is not.
    """

    source: str
    low: float
    high: float
    unit: str
    date: str = ""

    @property
    def is_sure(self) -> bool:
        return self.low == self.high
