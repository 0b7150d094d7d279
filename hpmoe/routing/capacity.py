"""Capacity: the entries of one rank that an expert takes, and the choice of those kept where there are more."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import TypeGuard

import numpy as np

from hpmoe.support.errors import check_argument, is_name, is_number
from hpmoe.support.known import known

ABSENT = -1  # the id of no expert: its entry goes nowhere
DROP_POLICIES = ("error", "position", "probs")
MOST_FACTOR, FACTOR = 2.0**30, "a number from 2**-30 to 2**30"  # of a balanced number of rows
PerRank = Sequence[np.ndarray] | np.ndarray  # for each rank an array, or one of all, [ep, ...]
Sort = Callable[[np.ndarray], np.ndarray]  # which entry comes where in a stable sort of ids
MANY_MORE = 2.5  # times the expected rows, of a plan most slots of which are likely to be empty


def stable_order(ids: np.ndarray) -> np.ndarray:
    """Sorts stably by NumPy; a `Sort`."""
    return np.argsort(ids, kind="stable")


@dataclasses.dataclass(frozen=True)
class Capacity:
    """Limit of each expert's entries from each rank, and the policy for the rest; a rank decides from its own tokens."""

    factor: float  # capacity_factor
    policy: str  # "error", "position" or "probs"

    @property
    def drops(self) -> bool:
        return self.policy != "error"

    def limit(self, num_tokens: int, top_k: int, num_experts: int) -> int:
        """Returns ceil(num_tokens * top_k / num_experts * factor) in double precision, as Megatron-LM and MindFormers do.

        More than num_tokens never come from one rank, since a token's experts are distinct.

        Example:
            >>> Capacity(1.25, "error").limit(num_tokens=16, top_k=2, num_experts=8)
            5
        """
        return math.ceil(min(num_tokens, num_tokens * top_k / num_experts * self.factor))


def check_rank_capacity(received: Sequence[int], most: int, balanced: int, factor: float) -> None:
    """Raises ArgumentError if a rank receives more than `most` rows, the limit that `factor` times `balanced` rows sets."""
    rows = max(received)
    enough = math.ceil(rows / max(1, balanced) * 1000) / 1000
    check_argument(rows <= most, "limit_rows", f"the number of rows that rank {list(received).index(rows)} receives", rows,
                   f"at most {most}, as rank_capacity_factor={factor:g} has it",
                   f"Give a rank_capacity_factor of at least {enough:g}: balanced, a rank receives {balanced}.")


def is_factor(value: object) -> TypeGuard[float]:
    """Returns True if an argument is a capacity factor, see FACTOR."""
    return is_number(value) and 1 / MOST_FACTOR <= value <= MOST_FACTOR


def make_capacity(capacity_factor: float | None, drop_policy: str) -> Capacity | None:
    """Returns the checked Capacity of these options; None if nothing bounds an expert."""
    check_argument(is_name(drop_policy, DROP_POLICIES), "hpmoe.dispatch", "drop_policy", repr(drop_policy),
                   f"one of {', '.join(DROP_POLICIES)}")
    if capacity_factor is None:
        return None
    check_argument(is_factor(capacity_factor), "hpmoe.dispatch", "capacity_factor", repr(capacity_factor),
                   f"{FACTOR}, or None")
    return Capacity(float(capacity_factor), drop_policy)


def heaviest_first(weights: np.ndarray, sort: Sort = stable_order) -> np.ndarray:
    """Returns the index of the weight at each place of a stable descending sort, [n], by two sorts of integers.

    Example:
        >>> heaviest_first(np.array([0.5, -0.0, 2.0, 0.0, -1.0], np.float32)).tolist()
        [2, 0, 1, 3, 4]
    """
    bits = (0.0 - weights.astype(np.float64)).view(np.int64)  # of both zeros the same
    keys = np.where(bits < 0, bits ^ np.int64(2**63 - 1), bits)  # integers in the order of the numbers
    order = sort(((keys & 0xFFFFFFFF) - 2**31).astype(np.int32))
    return order[sort((keys >> 32).astype(np.int32)[order])]


def chosen_counts(ids: np.ndarray, num_experts: int) -> np.ndarray:
    """Returns the number of entries with each expert's id, [num_experts].

    Example:
        >>> chosen_counts(np.array([[2, 0], [-1, 2]]), 3).tolist()
        [1, 0, 2]
    """
    return np.bincount(np.add(ids.reshape(-1), -ABSENT, dtype=np.intp), minlength=num_experts + 1)[1:]


def kept_counts(ids: np.ndarray, num_experts: int, capacity: Capacity | None, rank: int = 0, ep_size: int = 1) -> np.ndarray:
    """Returns the number of a rank's entries that each expert takes, [num_experts]; `ids` [tokens, top_k]."""
    counts = chosen_counts(ids, num_experts)
    if capacity is None:
        return counts
    limit = capacity.limit(ids.shape[0], ids.shape[1], num_experts)
    if capacity.policy == "error" and counts.max(initial=0) > limit:
        _refuse(ids, counts, limit, capacity, rank, ep_size)
    return np.minimum(counts, limit)


def _refuse(ids: np.ndarray, counts: np.ndarray, limit: int, capacity: Capacity, rank: int, ep_size: int) -> None:
    """Raises ArgumentError for a rank's fullest expert."""
    (num_tokens, top_k), num_experts, expert = ids.shape, len(counts), int(np.argmax(counts))
    enough = counts[expert] * num_experts / (num_tokens * top_k)
    check_argument(False, "hpmoe.dispatch" + (f" on rank {rank}" if ep_size > 1 else ""),
                   f"the number of tokens that chose expert {expert}", int(counts[expert]),
                   f"at most {limit}, its capacity: ceil({num_tokens} tokens * {top_k} / {num_experts} experts * "
                   f"{capacity.factor:g})",
                   f"Give a capacity_factor of at least {enough:.4g}, or drop what is over: drop_policy=\"position\" or "
                   "\"probs\".")


def check_topk_weights(ids: np.ndarray, weights: np.ndarray, rank: int = 0, ep_size: int = 1) -> None:
    """Raises ArgumentError where the weight of an expert is no number: it has no place in an order of weights."""
    bad = np.argwhere(np.isnan(weights.astype(np.float32)) & (ids != ABSENT))
    check_argument(not len(bad), "hpmoe.dispatch" + (f" on rank {rank}" if ep_size > 1 else ""),
                   f"topk_weights{bad[0].tolist() if len(bad) else ''}", "nan",
                   "a number: drop_policy=\"probs\" keeps the entries with the largest")


def kept_entries(ids: np.ndarray, num_experts: int, capacity: Capacity, weights: np.ndarray | None,
                 sort: Sort = stable_order) -> np.ndarray:
    """Returns a mask of a rank's kept entries, [tokens * top_k] bool; masked entries are not kept.

    Each expert keeps its first entries ("position"), or those of the largest weights, of equal ones the first ("probs").

    Example:
        >>> ids, weights = np.array([[0], [0], [0], [1]]), np.array([[0.1], [0.9], [0.9], [0.2]])
        >>> kept_entries(ids, 2, Capacity(1.0, "position"), None).tolist()
        [True, True, False, True]
        >>> kept_entries(ids, 2, Capacity(1.0, "probs"), weights).tolist()
        [False, True, True, True]
    """
    flat = ids.reshape(-1)
    if capacity.policy == "position":
        order = sort(flat)
    else:
        order = heaviest_first(known(weights).reshape(-1), sort)
        order = order[sort(flat[order])]
    counts = chosen_counts(ids, num_experts)
    order = order[len(flat) - counts.sum():]  # those of no expert come first
    place = np.arange(len(order)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = np.zeros(len(flat), bool)
    kept[order[place < capacity.limit(ids.shape[0], ids.shape[1], num_experts)]] = True
    return kept
