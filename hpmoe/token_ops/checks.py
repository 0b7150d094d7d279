"""Checks of token operators' arguments: shapes, dtypes and limits, for tensors and tracers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from mindspore import Tensor, mint

from hpmoe.primitives.route import check_tensor
from hpmoe.router.ids import check_values
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import check_argument, is_int
from hpmoe.support.trees import is_traced

MOST_CHOICES = 512
MOST_ENTRIES = 16_777_214


def check_rows(who: str, argument: str, x: Tensor) -> None:
    """Raises ArgumentError unless `x` is a matrix of floats."""
    check_tensor(who, argument, x)
    check_argument(len(x.shape) == 2, who, argument, f"of shape {tuple(x.shape)}", "[N, H]")
    check_argument(str(x.dtype).lower() in FLOATS, who, argument, f"of {x.dtype}", f"of {', '.join(FLOATS)}")


def check_choices(who: str, argument: str, indices: Tensor, tokens: Tensor) -> int:
    """Returns K, the choices of each token; raises ArgumentError unless `indices` are integers [N, K] or [N]."""
    check_tensor(who, argument, indices)
    check_argument(len(indices.shape) in (1, 2), who, argument, f"of shape {tuple(indices.shape)}", "[N, K] or [N]")
    check_integers(who, argument, indices)
    check_argument(indices.shape[0] == tokens.shape[0], who, argument, f"of shape {tuple(indices.shape)}",
                   f"[{tokens.shape[0]}, K] or [{tokens.shape[0]}], as many rows as tokens")
    top_k = indices.shape[1] if len(indices.shape) == 2 else 1
    check_argument(1 <= top_k <= MOST_CHOICES, who, "top_k", top_k, f"in 1..{MOST_CHOICES}")
    check_entries(who, argument, indices)
    return top_k


def check_integers(who: str, argument: str, indices: Tensor) -> None:
    check_argument(str(indices.dtype).lower() in ("int32", "int64"), who, argument, f"of {indices.dtype}", "int32 or int64")


def check_entries(who: str, argument: str, indices: Tensor) -> None:
    """Raises ArgumentError if there are more entries than CANN's operators take, 16,777,214."""
    entries = math.prod(indices.shape)
    check_argument(entries <= MOST_ENTRIES, who, argument, f"{entries} entries", f"at most {MOST_ENTRIES}")


def checked_rows(who: str, argument: str, index: Tensor, num_rows: int) -> Tensor:
    """Returns an index, a traced one clamped to 0..num_rows-1; the call then raises ArgumentError for other values."""
    if not is_traced(index):
        return index  # which the operator checks itself
    check_values(who, index, lambda rows, by: _check_in(by, argument, rows, num_rows))
    return mint.clamp(index, 0, num_rows - 1)


def _check_in(who: str, argument: str, rows: np.ndarray, num_rows: int) -> None:
    outside = rows[(rows < 0) | (rows >= num_rows)]
    check_argument(not len(outside), who, argument, f"an array with {outside[:1].tolist()}",
                   f"an array of ints in 0..{num_rows - 1}")


def check_places(who: str, sorted_indices: Tensor, top_k: int) -> None:
    """Raises ArgumentError unless `sorted_indices` is int32 [N * top_k], an index for each choice of each token.

    Checks dtype, shape and the number of elements, not the values.
    """
    check_tensor(who, "sorted_indices", sorted_indices)
    fits = len(sorted_indices.shape) == 1 and str(sorted_indices.dtype).lower() == "int32" and \
        sorted_indices.shape[0] % top_k == 0
    check_argument(fits, who, "sorted_indices", f"{sorted_indices.dtype} of shape {tuple(sorted_indices.shape)}",
                   f"int32 [N * {top_k}]", "It is the second result of hpmoe.token_ops.permute.")
    check_entries(who, "sorted_indices", sorted_indices)


def check_probs(who: str, probs: Tensor) -> int:
    """Returns K, the choices of each token, from weights [N, K]; raises ArgumentError if the shape is another."""
    check_tensor(who, "probs", probs)
    check_argument(len(probs.shape) == 2, who, "probs", f"of shape {tuple(probs.shape)}", "[N, K]")
    check_argument(1 <= probs.shape[1] <= MOST_CHOICES, who, "top_k", probs.shape[1], f"in 1..{MOST_CHOICES}")
    return probs.shape[1]


def check_count(who: str, argument: str, count: object, most: int) -> None:
    check_argument(is_int(count, least=0, most=most), who, argument, count, f"an int in 0..{most}")


def check_range(who: str, given: Sequence[int] | None, entries: int) -> tuple[int, int]:
    """Returns the (start, end) of sorted entries, by default of all; raises ArgumentError if out of range."""
    if given is None or (isinstance(given, (tuple, list)) and not given):
        return 0, entries
    is_pair = isinstance(given, (tuple, list)) and len(given) == 2 and all(is_int(x, 0, entries) for x in given)
    check_argument(is_pair and given[0] <= given[1], who, "range", repr(given),
                   f"(start, end) with 0 <= start <= end <= {entries}, or None")
    return int(given[0]), int(given[1])
