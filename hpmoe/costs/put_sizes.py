"""Chooses how many peers a put is for, and how many columns it moves, where that is left to the machine's rates."""

from __future__ import annotations

import dataclasses
import math

from hpmoe.costs.work import link_rate
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine

PUT_US, LEAST_COLS = 6.0, 256
FEW_PUTS, LEAST_US = 4, 1.0  # of a worker, fewer of which would end apart; of a put that is cut for that
FILLING = 3  # times the workers that fill a link, more of which need no puts of their own
SIGNAL_SHARE = 0.2  # of the time of a put, the most for its signals
MOST_PUTS, MANY_PUTS = 32768, 20480  # of an exchange: the most of rows that are cut; for which there are fewer groups
PARTS, FEW_PARTS, GROUPS = 32, 16, 16  # the most of a row; where that is many puts; groups of peers, where these are few
# times the expected rows, the most that puts are sized for; no smaller share of a plan's capacity
EXPECTED_CAPACITY, CAPACITIES = 3, 4
WHOLE_PUTS, WHOLE_GROUPS = 12288, 20  # of whole rows: for which there are fewer groups; about how many then


def expected_puts(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> tuple[int, int | None]:
    """For how many peers, or groups of them, a slot has puts of their own, and columns of a put; None for whole rows.

    What a slot is likely to have of one rank takes a worker about PUT_US, or less where workers would have fewer than
    FEW_PUTS each. Where that makes many puts, there are fewer groups first, of which most have nothing to send, and then
    fewer parts.

    Args:
        op: the exchange, which blocks.
    """
    plan, sent = _expected_capacity(flow.routes[op.domain.route]), flow.buffers[op.operands[0].buffer]
    rows = min(flow.tile_rows, plan.expected_rows / (plan.num_local_experts * flow.ep_size))
    us = rows * sent.row_bytes / link_rate(machine, flow.ep_size)
    made = [made.tile_cols for made in flow.ops if op.operands[1].buffer in (a.buffer for a in made.outputs)]
    least = max([LEAST_COLS, *made])
    most = min(PARTS, max(FEW_PARTS, MOST_PUTS / max(1, plan.num_slots * plan.ep_size)))
    parts = min(max(us / PUT_US, min(us / LEAST_US, _parts_for_all(plan, machine))), most, -(-sent.cols // least))
    if op.primitive.is_back:  # a signal for each event that rows of one expert are counted in
        returns = min(plan.num_returns, rows * plan.num_experts / (plan.top_k * plan.return_tokens))
        parts = min(parts, SIGNAL_SHARE * us / (max(1.0, returns) * max(machine.sync.signal_us, 1e-9)))
    num_peers = _num_groups(plan, -(-sent.cols // _put_cols(sent.cols, parts, least)))
    cols = _put_cols(sent.cols, min(parts, MOST_PUTS / max(1, plan.num_slots * num_peers)), least)
    return num_peers, cols if cols < sent.cols else None


def _parts_for_all(plan: tf.RoutePlan, machine: Machine) -> float:
    """Of what a rank sends to each expert, with which every worker that sends has FEW_PUTS: some have one more than others,
    whatever the routing, and rows of a slot have come when the last of their puts has."""
    filling = FILLING * machine.link.rate(plan.ep_size) / link_rate(machine, plan.ep_size)
    return FEW_PUTS * min(machine.num_aiv, filling) / (plan.num_local_experts * plan.ep_size)


def whole_row_groups(plan: tf.RoutePlan) -> int:
    """For how many peers, or groups of them, a slot has puts of whole rows: for all, but where that makes very many puts for
    so many groups that what is sent to a hot rank holds up few others, or as few as are likely to have rows to send."""
    ep_size = plan.ep_size
    if ep_size * _expected_capacity(plan).num_slots <= WHOLE_PUTS:
        return ep_size
    return -(-ep_size // max(1, round(ep_size / WHOLE_GROUPS)))


def _expected_capacity(plan: tf.RoutePlan) -> tf.RoutePlan:
    """With room for no more than EXPECTED_CAPACITY times the expected rows, or 1 / CAPACITIES of its own: what is past them
    is
    empty as
    a rule, and its puts are passed by."""
    return dataclasses.replace(plan, max_rows=min(plan.max_rows, math.ceil(
        max(EXPECTED_CAPACITY * plan.expected_rows, plan.max_rows / CAPACITIES))))


def _put_cols(cols: int, parts: float, least: int) -> int:
    """Of a row in no more than so many parts, in multiples of `least`."""
    return -(-cols // max(1, int(parts)) // least) * least


def _num_groups(plan: tf.RoutePlan, parts: int) -> int:
    """For how many peers, or groups of them, a slot has puts of their own, where rows go in so many parts: GROUPS, half of
    them, and so on, as MANY_PUTS allow, but no fewer than are likely to have rows to send; just those where most slots
    are likely to be empty."""
    groups = GROUPS
    while groups > 1 and plan.num_slots * groups * parts > MANY_PUTS:
        groups //= 2
    return min(plan.ep_size, max(groups, _expected_groups(plan)))


def _expected_groups(plan: tf.RoutePlan) -> int:
    """Twice as many as a slot is likely to have rows of; these are neighbours, so no two are of one group."""
    per_expert = max(1.0, plan.expected_rows / (plan.num_local_experts * plan.tile_rows))
    return min(plan.ep_size, 2 * math.ceil(plan.ep_size / per_expert))
