"""Chooses the groups of peers and the columns of puts for overlap_comm by the rates of a machine."""

from __future__ import annotations

import dataclasses
import math

from hpmoe.costs.work import link_rate
from hpmoe.ir import taskflow as tf
from hpmoe.machines.machine import Machine

PUT_US, LEAST_COLS = 6.0, 256  # time that a put should take; fewest columns of a put
FEW_PUTS, LEAST_US = 4, 1.0  # puts that each worker should have; shortest put that is cut to give workers as many
FILLING = 3  # more workers than FILLING times those that fill a link need no puts of their own
SIGNAL_SHARE = 0.2  # largest share of a put's time for its signals
MOST_PUTS, MANY_PUTS = 32768, 20480  # of an exchange: most puts of cut rows; puts above which there are fewer groups
PARTS, FEW_PARTS, GROUPS = 32, 16, 16  # most parts of a row; most of them if there are many puts; groups of peers then
EXPECTED_CAPACITY, CAPACITIES = 3, 4  # puts are sized for 3 times the expected rows, or a quarter of the row capacity
WHOLE_PUTS, WHOLE_GROUPS = 12288, 20  # of whole rows: puts above which there are fewer groups; about how many groups then


def expected_puts(flow: tf.Taskflow, op: tf.TileOp, machine: Machine) -> tuple[int, int | None]:
    """Returns the groups of peers for which a slot has puts of their own, and the columns of a put; None for whole rows.

    The expected rows of a slot from one rank take a worker about PUT_US, or less if workers would have fewer than FEW_PUTS
    each. If that makes many puts, first the groups become fewer, of which most have nothing to send, and then the parts.

    Args:
        op: the blocking exchange.
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
    """Returns the parts of the rows from one rank to one expert with which each sending worker has FEW_PUTS puts.

    Workers differ by one put with any routing, and a slot's rows are complete when its last put is."""
    filling = FILLING * machine.link.rate(plan.ep_size) / link_rate(machine, plan.ep_size)
    return FEW_PUTS * min(machine.num_aiv, filling) / (plan.num_local_experts * plan.ep_size)


def whole_row_groups(plan: tf.RoutePlan) -> int:
    """Returns the groups of peers for which a slot has puts of whole rows: one for each peer unless that makes many puts.

    Then there are about WHOLE_GROUPS: few enough to have rows to send, enough that rows for a hot rank delay few others.
    """
    ep_size = plan.ep_size
    if ep_size * _expected_capacity(plan).num_slots <= WHOLE_PUTS:
        return ep_size
    return -(-ep_size // max(1, round(ep_size / WHOLE_GROUPS)))


def _expected_capacity(plan: tf.RoutePlan) -> tf.RoutePlan:
    """Returns the plan with a row capacity that puts are sized for: slots past it are usually empty, their puts skipped."""
    return dataclasses.replace(plan, max_rows=min(plan.max_rows, math.ceil(
        max(EXPECTED_CAPACITY * plan.expected_rows, plan.max_rows / CAPACITIES))))


def _put_cols(cols: int, parts: float, least: int) -> int:
    """Returns the columns of a put of a row in at most `parts` parts, a multiple of `least`."""
    return -(-cols // max(1, int(parts)) // least) * least


def _num_groups(plan: tf.RoutePlan, parts: int) -> int:
    """Returns the groups of peers for which a slot has puts of their own, if rows are cut into `parts`.

    Halves GROUPS until there are at most MANY_PUTS puts, but keeps as many groups as are expected to have rows to send.
    """
    groups = GROUPS
    while groups > 1 and plan.num_slots * groups * parts > MANY_PUTS:
        groups //= 2
    return min(plan.ep_size, max(groups, _expected_groups(plan)))


def _expected_groups(plan: tf.RoutePlan) -> int:
    """Returns twice the ranks that a slot is expected to have rows of; these are neighbours, each in another group."""
    per_expert = max(1.0, plan.expected_rows / (plan.num_local_experts * plan.tile_rows))
    return min(plan.ep_size, 2 * math.ceil(plan.ep_size / per_expert))
