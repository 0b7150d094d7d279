"""Checks that a taskflow is well formed: tables and objects are of their classes, with room for what they name."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.limits import check_limits
from hpmoe.machines.machine import Machine
from hpmoe.support.dtypes import FLOATS
from hpmoe.support.errors import TransformError, VerifyError, kind_of, with_article

TABLES = {"events": tf.EVENT, "waits": tf.WAIT, "signals": tf.SIGNAL}
ITEMS = {"buffers": tf.Buffer, "ops": tf.TileOp, "routes": tf.RoutePlan, "blocks": tf.EventBlock}


def check_well_formed(flow: tf.Taskflow) -> None:
    """Raises VerifyError if a table of a Taskflow is no array of its record dtype, or another field is not of its type."""
    _check_class("deps", flow.deps, tf.Dependencies)
    for name, dtype in TABLES.items():
        table = getattr(flow.deps, name)
        if not isinstance(table, np.ndarray) or table.dtype != dtype or table.ndim != 1:
            raise VerifyError(f"verify: {name} is {kind_of(table)}; it must be an array of "
                              f"{len(dtype.names or ())} columns: {', '.join(dtype.names or ())}")
    for name, found, cls in (("machine", flow.machine, Machine), ("origin", flow.deps.origin, tf.Origin)):
        if found is not None:
            _check_class(name, found, cls, " or None")
    for name in ("queues", "inputs", "outputs", *ITEMS):
        items = getattr(flow.deps if name == "blocks" else flow, name)
        if not isinstance(items, tuple):
            raise VerifyError(f"verify: {name} is {kind_of(items)}; it must be a tuple")
        for x in [x for x in items if not isinstance(x, ITEMS.get(name, object))][:1]:
            raise VerifyError(f"verify: one of {name} is of type {type(x).__name__}; it must be of {ITEMS[name].__name__}")


def _check_class(name: str, found: object, cls: type, other: str = "") -> None:
    if not isinstance(found, cls):
        raise VerifyError(f"verify: {name} is {kind_of(found)}; it must be {with_article(cls.__name__)}{other}")


def check_sizes(flow: tf.Taskflow) -> None:
    """Raises VerifyError if sizes of buffers, routes or operations of a taskflow contradict each other or a limit."""
    _check_rows(flow)
    try:
        check_limits(flow.name, flow.ep_size, flow.buffers, flow.ops, flow.routes)
    except TransformError as error:
        raise VerifyError(f"verify: {error}") from None
    if flow.ep_size < 1 or flow.tile_rows < 1:
        raise VerifyError(f"verify: {flow.name} is for {flow.ep_size} ranks and tiles of {flow.tile_rows} rows; both must "
                          "be at least 1. tile_partition(rows=) sets the rows of a tile")
    for i, plan in enumerate(flow.routes):
        if not _can_be(plan, i, flow):
            raise VerifyError(f"verify: routes[{i}] is {plan}; its sizes must fit each other, and the ranks, tile rows, "
                              "ids and tokens of the taskflow")
    for i, plan in enumerate(flow.routes):
        if fault := _way_fault(flow.routes, i):
            raise VerifyError(f"verify: routes[{i}] passes over routes[{plan.over}]; {fault}")
    for b in (b for b in (*flow.inputs, *flow.outputs) if 0 <= b < len(flow.buffers)):  # no task sees other buffers
        buffer = flow.buffers[b]
        rows = 1 if buffer.num_rows is None else buffer.num_rows
        if math.prod(d for d in buffer.shape if isinstance(d, int)) != rows * buffer.cols:
            raise VerifyError(f"verify: buffers[{b}] is of shape {buffer.shape} in {buffer.num_rows} rows of {buffer.cols} "
                              "columns; both must have as many elements")


def _check_rows(flow: tf.Taskflow) -> None:
    """Raises VerifyError unless a buffer has rows of its own or of one route, and events of returned rows whole tiles."""
    for b, buffer in enumerate(flow.buffers):
        if (buffer.num_rows is None) != (buffer.route >= 0):
            raise VerifyError(f"verify: buffers[{b}] has num_rows {buffer.num_rows} and route {buffer.route}; its rows "
                              "must be of one of the two")
    for i, plan in enumerate(flow.routes):
        if plan.return_tokens < 1 or plan.return_tokens % max(1, flow.tile_rows):
            raise VerifyError(f"verify: routes[{i}] has events for the combined rows of {plan.return_tokens} tokens; they "
                              f"must be whole tiles of {flow.tile_rows}")


def _can_be(plan: tf.RoutePlan, index: int, flow: tf.Taskflow) -> bool:
    """Returns True if a route by given ids sends tokens of the flow's ranks to equally many experts of each rank."""
    if not plan.kind.is_possible() or not 0 <= plan.expected_rows <= plan.max_rows \
            or (plan.ep_size, plan.tile_rows, plan.num_tokens) != (flow.ep_size, flow.tile_rows, flow.routes[0].num_tokens):
        return False
    if plan.kind.is_of_tokens:
        of = flow.routes[plan.of] if 0 <= plan.of < index else None
        return of is not None and (plan.kind.by_ids, plan.ids) == (of.kind, of.ids) \
            and plan.max_rows >= plan.kind.rows_of(of.max_rows)
    return plan.of < 0 and _is_of_choices(flow, plan.ids, plan, ("int32",)) and (
        not plan.drops_by_weight or _is_of_choices(flow, plan.weights, plan, FLOATS))


def _way_fault(routes: Sequence[tf.RoutePlan], index: int) -> str:
    """Returns the fault in the way of a route's rows over the stops of another route, or "" if there is no fault."""
    plan = routes[index]
    if plan.over == -1:
        return ""
    over = routes[plan.over] if 0 <= plan.over < len(routes) else None
    if over is None or not over.kind.is_of_tokens or over.of != (plan.of if plan.kind.is_of_tokens else index):
        return "it must be a route of tokens to the same experts"
    if any(other.over == plan.over for i, other in enumerate(routes) if i != index):
        return "only one route may come over it"
    before, steps = plan.over, 0
    while before != -1 and steps < len(routes):
        before, steps = routes[before].over if 0 <= before < len(routes) else -1, steps + 1
    return plan.kind.way_fault(over.kind) if before == -1 else "the way has no beginning"


def _is_of_choices(flow: tf.Taskflow, b: int, plan: tf.RoutePlan, dtypes: tuple[str, ...]) -> bool:
    """Returns True if an input has a value for each choice of each token."""
    if b not in flow.inputs or not 0 <= b < len(flow.buffers):
        return False
    buffer = flow.buffers[b]
    return (buffer.num_rows, buffer.cols) == (plan.num_tokens, plan.num_choices) and buffer.dtype in dtypes
