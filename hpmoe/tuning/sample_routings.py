"""Routings that a plan is likely to get, of several kinds, drawn to judge schedules by."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.routing.capacity import ABSENT
from hpmoe.routing.skewed import SKEWS, ids_by_odds, log_odds
from hpmoe.support.errors import ArgumentError

SEED = 7001
DRAWN = 48  # popularities of each kind
STEPS = 25  # of a bisection


def has_samples(flow: tf.Taskflow) -> bool:
    """Whether ids alone say where rows go, and the same ids can be those of every route."""
    return len({(p.num_experts, p.top_k, p.num_tokens) for p in flow.routes}) == 1 and not any(
        p.weights >= 0 or p.kind.is_of_tokens or p.tp_size > 1 for p in flow.routes)


def sample_routings(flow: tf.Taskflow, count: int = len(SKEWS)) -> Iterator[tuple[str, np.ndarray]]:
    """(kind, topk_ids of all ranks [ep, T, K]) of `count` routings of SKEWS, those that a plan is most likely made for.

    A plan is for so many rows because a rank gets as many, so of DRAWN popularities of each kind those are taken with which
    the fullest rank is likely to get most nearly these. Where there is room for more than is likely, that says nothing, and
    those are taken that have room, of all kinds in turn. Entries over the room are of no expert. A routing for which there
    is no room even so is left out.
    """
    plan, rng = flow.routes[0], np.random.default_rng(SEED)
    drawn = [(kind, log_odds(kind, plan.ep_size, plan.num_experts, rng)) for _ in range(DRAWN) for kind in SKEWS]
    shares = _expected_shares(np.array([odds for _, odds in drawn]), plan.top_k)
    rows = rng.binomial(plan.ep_size * plan.num_tokens, shares).reshape(len(drawn), plan.ep_size, -1).sum(axis=2).max(axis=1)
    off = np.log(np.maximum(rows, 1) / max(1, plan.max_rows))
    off = np.maximum(off, 0.0) if plan.expected_rows < plan.max_rows else np.abs(off)
    for kind, odds in (drawn[i] for i in np.argsort(off, kind="stable")[:count]):
        for ids in with_capacity(ids_by_odds(odds, plan.ep_size, plan.num_tokens, plan.top_k, rng), flow):
            yield kind, ids


def with_capacity(ids: np.ndarray, flow: tf.Taskflow) -> list[np.ndarray]:
    """The ids with entries over the room of a plan of no expert; none where there is no room for them even so."""
    ids = ids.copy()
    for route in flow.routes:
        _leave_out(ids, route)
    return [ids] if all(_has_capacity(ids, route) for route in flow.routes) else []


def _expected_shares(odds: np.ndarray, top_k: int) -> np.ndarray:
    """How likely a token is to take each expert, [draws, num_experts] as `odds`, by independent clocks that ring at the rate
    of an expert's popularity: those that have rung when top_k are likely to have are taken."""
    low, high = -odds.max(axis=1, keepdims=True) - STEPS, -odds.min(axis=1, keepdims=True) + STEPS
    for _ in range(STEPS):
        time = (low + high) / 2
        rung = -np.expm1(-np.exp(np.minimum(time + odds, STEPS)))
        few = rung.sum(axis=1, keepdims=True) < top_k
        low, high = np.where(few, time, low), np.where(few, high, time)
    return np.clip(rung, 0.0, 1.0)


def _leave_out(ids: np.ndarray, plan: tf.RoutePlan) -> None:
    """Has the last entries for a rank, over what a plan can hold, be of no expert."""
    if plan.placement is not None or plan.alignment > 1:
        return
    flat = ids.reshape(-1)
    rank = np.where(flat == ABSENT, plan.ep_size, flat // plan.num_local_experts)
    over = np.bincount(rank, minlength=plan.ep_size + 1)[:-1] - plan.max_rows
    for full in np.flatnonzero(over > 0):
        flat[np.flatnonzero(rank == full)[-over[full]:]] = ABSENT


def _has_capacity(ids: np.ndarray, plan: tf.RoutePlan) -> bool:
    try:
        rows = plan.kind.by_ids.received(ids)
    except ArgumentError:
        return False  # over a capacity
    return max(rows) <= plan.max_rows
