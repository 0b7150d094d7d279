"""Counts of tokens, as they are handed in: of all experts, once or for each rank."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from mindspore import Tensor
from numpy.typing import ArrayLike

from hpmoe.support.errors import MOST, check_argument, has_bools

Counts: TypeAlias = Tensor | ArrayLike


def summed_counts(who: str, counts: Counts, num_experts: int | None = None) -> np.ndarray:
    """Returns the tokens of each expert over all ranks, [E] float64, from counts [..., E], a Tensor or a NumPy array."""
    try:
        array = np.asarray(counts.asnumpy() if isinstance(counts, Tensor) else counts)
        array = array.astype(np.float64) if array.dtype.kind in "iuf" and not has_bools(counts) else np.zeros(0)
    except (TypeError, ValueError):
        array = np.zeros(0)
    is_one_each = array.ndim >= 1 and array.size > 0 and num_experts in (None, array.shape[-1])
    check_argument(is_one_each, who, "counts", f"of shape {array.shape}" if array.size else repr(counts),
                   f"counts of {num_experts or 'all'} experts, [..., {num_experts or 'num_experts'}]")
    bad = array[~((array >= 0) & (array <= MOST))]
    check_argument(not bad.size, who, "a number of counts", bad[0] if bad.size else "", "finite and not negative")
    return array.reshape(-1, array.shape[-1]).sum(0)
