"""Constant: where a number of a machine comes from, and how sure it is."""

from __future__ import annotations

from typing import NamedTuple


class Constant(NamedTuple):
    """What is known of one number of a Machine.

    Attributes:
        source: who says so, and when.
        low, high: between what it may lie, in the unit of the Machine.
        unit: that it is written in.
    """

    source: str
    low: float
    high: float
    unit: str

    @property
    def is_sure(self) -> bool:
        return self.low == self.high
