"""Facts about operations in plain words and numbers, written without their definitions."""

import dataclasses

from hpmoe.tile_ops.domains import AllRows, CompletionFlags, Copies, Experts, Once, Slots, Tiles

KINDS = {Once: "once", CompletionFlags: "once", Tiles: "tiles", Slots: "slots", Experts: "experts", AllRows: "experts",
         Copies: "copies"}


def kind(op):
    """Returns the unit that the row coordinate of its tasks counts."""
    return KINDS[type(op.domain)]


def params(op):
    """Returns its params in order; for sums a block's rows, rows, whether padding is left out, and the first expert."""
    told = tuple(getattr(op.params, field.name) for field in dataclasses.fields(op.params))
    if kind(op) != "experts":
        return told
    return (*(told or (0,)), *(vars(op.domain).get(name, 0) for name in ("height", "of_tokens", "first_expert")))


def moves_copies(op):
    """Returns True if it moves weights to expert replicas, or their gradients back."""
    return op.opcode in ("REPLICATE", "RETURN_GRADS")
