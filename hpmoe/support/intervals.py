"""Half-open intervals of numbers, such as the columns that tasks touch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

Interval = tuple[int, int]


def joined(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the numbers of `intervals` in ascending, disjoint intervals.

    Example:
        >>> joined([(4, 6), (0, 2), (2, 3)])
        [(0, 3), (4, 6)]
    """
    out: list[Interval] = []
    for start, stop in sorted(intervals):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return out


def covers(outer: Sequence[Interval], inner: Sequence[Interval]) -> bool:
    """Returns True if each interval of `inner` lies within a single interval of `outer`."""
    return all(any(a <= start and stop <= b for a, b in outer) for start, stop in inner)


def meet(one: Sequence[Interval], other: Sequence[Interval]) -> bool:
    """Returns True if any number is in an interval of each sequence."""
    return any(a < d and c < b for a, b in one for c, d in other)
