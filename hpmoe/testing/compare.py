"""Compares arrays of all ranks with what they must be, and names the first element that is something else."""

from __future__ import annotations

from collections.abc import Sequence

import chex
import numpy as np

from hpmoe.support.dtypes import widen


def assert_close(name: str, got: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerance: float, by: str) -> None:
    """Raises AssertionError if an array of a rank is off by more than a share of the largest value of all ranks.

    Args:
        name: name of the compared value.
        got, want: arrays of each rank; integers and bools must be equal.
        tolerance: the allowed share.
        by: words for the error, such as "by the kernel".
    """
    is_float = all(np.issubdtype(w.dtype, np.floating) for w in want)
    largest = max((float(np.abs(w[np.isfinite(w)]).max(initial=0.0)) for w in want if is_float), default=0.0)
    for rank, (g, w) in enumerate(zip(got, want, strict=True)):
        where = f"{name} of rank {rank}" if len(want) > 1 else name
        if g.shape != w.shape:
            raise AssertionError(f"{where} is of shape {g.shape} {by}; it must be {w.shape}")
        g = np.asarray(widen(g), np.float64) if is_float else g
        atol = tolerance * (largest or 1.0) if is_float else 0.0
        try:
            chex.assert_trees_all_close(g, w, rtol=0.0, atol=atol)
        except AssertionError as error:
            raise AssertionError(_difference(where, g, w, atol, by)) from error


def _difference(where: str, got: np.ndarray, want: np.ndarray, atol: float, by: str) -> str:
    is_same = np.isclose(got, want, rtol=0.0, atol=atol, equal_nan=True)
    index = tuple(int(i) for i in np.argwhere(~is_same)[0])
    with np.errstate(invalid="ignore"):
        most = np.abs(np.asarray(got, np.float64) - want).max()
    return (f"{where} differs first at {list(index)}: {got[index]:.9g} {by}; it must be {want[index]:.9g}\n"
            f"  {np.count_nonzero(~is_same)} of {want.size} elements differ, by up to {most:.3g}; {atol:.3g} is allowed")
