"""Kinds of work, each with one colour, letter and name in every view of a timeline: picture, page, trace and text."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hpmoe.ir.taskflow import Taskflow, TileOp


class Kind(NamedTuple):
    """A kind of work."""

    name: str  # the entry of a legend
    letter: str  # the character of a text
    color: str  # of the palette of Okabe and Ito, which people with a colour vision deficiency can tell apart
    trace_color: str  # the nearest colour name of the Chrome trace format


DISPATCH = Kind("dispatch", "D", "#0072b2", "rail_response")
PRODUCTS = Kind("matrix products", "M", "#e69f00", "rail_idle")
SWIGLU = Kind("SwiGLU", "S", "#009e73", "rail_load")
COMBINE = Kind("combine", "C", "#cc79a7", "thread_state_uninterruptible")
GRADIENTS = Kind("gradients", "G", "#d55e00", "rail_animation")
OTHERS = Kind("other vector work", "V", "#56b4e9", "thread_state_runnable")
WAITING = Kind("waiting", ".", "#d9d9d9", "grey")
NOTHING = Kind("nothing", " ", "#ffffff", "white")
KINDS = (DISPATCH, PRODUCTS, SWIGLU, COMBINE, GRADIENTS, OTHERS, WAITING, NOTHING)

_BY_LABEL = {"permute": DISPATCH, "sort": DISPATCH, "relay": DISPATCH, "fan_out": DISPATCH,
             "unpermute": COMBINE, "unsort": COMBINE, "relay_back": COMBINE, "fan_in": COMBINE,
             "swiglu": SWIGLU, "row_dot": GRADIENTS}


def kind_of(op: TileOp) -> Kind:
    """Returns the kind of work of a tile operation.

    Example:
        >>> import hpmoe
        >>> flow = hpmoe.tile_partition(lambda x, w: hpmoe.swiglu(x @ w)).lower(
        ...     hpmoe.ShapeDtypeStruct((8, 4), "float32"), hpmoe.ShapeDtypeStruct((4, 6), "float32"))
        >>> [kind_of(op).name for op in flow.ops]
        ['matrix products', 'SwiGLU']
    """
    if (kind := _BY_LABEL.get(op.label)) is not None:
        return kind
    if "grad" in op.label:
        return GRADIENTS
    if op.label.startswith(("dispatch", "exchange")) and not op.primitive.is_back:
        return DISPATCH
    if op.label.startswith(("combine", "exchange")):
        return COMBINE
    return PRODUCTS if op.unit == "aic" or "matmul" in op.label else OTHERS


def kind_indices(flow: Taskflow) -> np.ndarray:
    """Returns the index in KINDS of each operation of a taskflow, [num_ops] int."""
    return np.array([KINDS.index(kind_of(op)) for op in flow.ops], int)


def kinds_in(*flows: Taskflow) -> list[Kind]:
    """Returns the kinds that occur in taskflows, and waiting: the entries of their legend."""
    found = {kind_of(op) for flow in flows for op in flow.ops}
    return [kind for kind in KINDS if kind in found or kind is WAITING]
