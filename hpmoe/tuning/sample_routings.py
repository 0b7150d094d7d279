"""Routings that are sampled for the planned rows of a taskflow, to compare plans on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.routing.capacity import ABSENT
from hpmoe.routing.skewed import SKEWS, ids_by_odds, log_odds
from hpmoe.support.errors import ArgumentError

SEED = 7001
POPULARITIES = 48  # of each kind, that are sampled
ROUTINGS = 2  # to compare plans on
STEPS = 25  # of a bisection


def sample_routings(flow: tf.Taskflow) -> Iterator[tuple[str, np.ndarray]]:
    """Yields (kind, topk_ids of all ranks [ep, T, K]) of up to ROUTINGS routings with about the planned number of rows.

    Samples POPULARITIES of each of SKEWS and takes those by which the fullest rank receives most nearly as many rows as the
    plan has capacity for. If the capacity is larger than the expected rows, all samples that fit are equally near, and
    the first ones are taken, each of another kind. Entries over the capacity are masked.

    Yields nothing if ids are not all that decides where rows go, or if routes differ in their sizes.
    """
    if not _has_samples(flow.routes):
        return
    plan, rng = flow.routes[0], np.random.default_rng(SEED)
    drawn = [(kind, log_odds(kind, plan.ep_size, plan.num_experts, rng)) for _ in range(POPULARITIES) for kind in SKEWS]
    shares = _expected_shares(np.array([odds for _, odds in drawn]), plan.top_k)
    rows = rng.binomial(plan.ep_size * plan.num_tokens, shares).reshape(len(drawn), plan.ep_size, -1).sum(axis=2).max(axis=1)
    off = np.log(np.maximum(rows, 1) / max(1, plan.max_rows))
    off = np.maximum(off, 0.0) if plan.expected_rows < plan.max_rows else np.abs(off)
    for kind, odds in (drawn[i] for i in np.argsort(off, kind="stable")[:ROUTINGS]):
        for ids in with_capacity(ids_by_odds(odds, plan.ep_size, plan.num_tokens, plan.top_k, rng), flow):
            yield kind, ids


def _has_samples(routes: tuple[tf.RoutePlan, ...]) -> bool:
    return len({(p.num_experts, p.top_k, p.num_tokens) for p in routes}) == 1 and not any(
        p.weights >= 0 or p.kind.is_of_tokens or p.tp_size > 1 for p in routes)


def with_capacity(ids: np.ndarray, flow: tf.Taskflow) -> list[np.ndarray]:
    """Returns the ids, with entries over the row capacity of a plan masked, in a list; an empty list if they do not fit."""
    ids = ids.copy()
    for route in flow.routes:
        _leave_out(ids, route)
    return [ids] if all(_has_capacity(ids, route) for route in flow.routes) else []


def _expected_shares(odds: np.ndarray, top_k: int) -> np.ndarray:
    """Returns the probability that a token takes each expert, [samples, num_experts], by the log popularities `odds`.

    Each expert's clock rings at the rate of its popularity; a token takes the experts whose clocks have rung at the time by
    which top_k are expected to have rung.
    """
    low, high = -odds.max(axis=1, keepdims=True) - STEPS, -odds.min(axis=1, keepdims=True) + STEPS
    for _ in range(STEPS):
        time = (low + high) / 2
        rung = -np.expm1(-np.exp(np.minimum(time + odds, STEPS)))
        few = rung.sum(axis=1, keepdims=True) < top_k
        low, high = np.where(few, time, low), np.where(few, high, time)
    return np.clip(rung, 0.0, 1.0)


def _leave_out(ids: np.ndarray, plan: tf.RoutePlan) -> None:
    """Masks the last entries for a rank that are over the row capacity of a plan."""
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
