"""Routings that a plan is likely to get, of several kinds, drawn to judge schedules by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.routing.capacity import ABSENT
from hpmoe.routing.routing import rows_of_ranks
from hpmoe.routing.skewed import SKEWS, ids_by_odds, log_odds
from hpmoe.support.errors import ArgumentError

SEED = 7001
FULL = 0.98  # of a plan's rows, what its fullest rank is to get
STEPS = 40  # of a bisection
MOST_SKEW = 8.0  # times the logarithms of a kind's popularities
SAMPLES = *SKEWS, SEED, FULL, MOST_SKEW  # what says which they are


def has_samples(flow: tf.Taskflow) -> bool:
    """Whether ids alone say where rows go, and the same ids can be those of every route."""
    return len({(p.num_experts, p.top_k, p.num_tokens) for p in flow.routes}) == 1 and not any(
        p.weights >= 0 or p.once_of >= 0 or p.node_size or p.tp_size > 1 for p in flow.routes)


def sample_routings(flow: tf.Taskflow) -> Iterator[tuple[str, np.ndarray]]:
    """(kind, topk_ids of all ranks [ep, T, K]) of each of SKEWS, uneven enough to fill the plan of a taskflow.

    A plan is for so many rows because a rank gets as many. So the popularities of each kind are raised to the power at which
    its fullest rank gets them; entries over that are of no expert. A plan with room for any routing gets each kind as it is.
    A kind for which there is no room even so, or too few experts, is left out.
    """
    plan = flow.routes[0]
    for turn, kind in enumerate(SKEWS):
        rng = np.random.default_rng(SEED + turn)
        odds = log_odds(kind, plan.ep_size, plan.num_experts, rng)
        power = 1.0 if plan.is_mostly_empty else _power(plan, odds)
        ids = ids_by_odds(power * odds, plan.ep_size, plan.num_tokens, plan.top_k, rng)
        for route in flow.routes:
            _leave_out(ids, route)
        if all(_has_room(ids, route) for route in flow.routes):
            yield kind, ids


def _power(plan: tf.RoutePlan, odds: np.ndarray) -> float:
    """Of the popularities, with which the fullest rank is likely to get FULL of the rows that there is room for; MOST_SKEW
    where it has room for what comes then, so that ranks of no popularity are empty."""
    def rows(power: float) -> float:
        shares = _likely_shares(power * odds, plan.top_k).reshape(plan.ep_size, -1).sum(axis=1)
        return float(shares.max()) * plan.ep_size * plan.num_tokens

    if FULL * rows(MOST_SKEW) <= plan.max_rows:
        return MOST_SKEW
    low, high = 0.0, MOST_SKEW
    for _ in range(STEPS):
        power = (low + high) / 2
        low, high = (power, high) if rows(power) < FULL * plan.max_rows else (low, power)
    return low


def _likely_shares(odds: np.ndarray, top_k: int) -> np.ndarray:
    """How likely a token is to take each expert, [num_experts], by independent clocks that ring at the rate of an expert's
    popularity: those that have rung when top_k are likely to have are taken."""
    low, high = -float(odds.max()) - STEPS, -float(odds.min()) + STEPS
    for _ in range(STEPS):
        time = (low + high) / 2
        rung = -np.expm1(-np.exp(np.minimum(time + odds, STEPS)))
        low, high = (time, high) if rung.sum() < top_k else (low, time)
    return rung


def _leave_out(ids: np.ndarray, plan: tf.RoutePlan) -> None:
    """Has the last entries for a rank, over what a plan has room for, be of no expert."""
    if plan.placement is not None or plan.alignment > 1:
        return
    flat = ids.reshape(-1)
    rank = np.where(flat == ABSENT, plan.ep_size, flat // plan.num_local_experts)
    over = np.bincount(rank, minlength=plan.ep_size + 1)[:-1] - plan.max_rows
    for full in np.flatnonzero(over > 0):
        flat[np.flatnonzero(rank == full)[-over[full]:]] = ABSENT


def _has_room(ids: np.ndarray, plan: tf.RoutePlan) -> bool:
    try:
        rows = rows_of_ranks(ids, plan.num_experts, plan.capacity, plan.placement, plan.alignment)
    except ArgumentError:
        return False  # over a capacity
    return max(rows) <= plan.max_rows
