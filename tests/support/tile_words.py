"""What an operation says, in plain words and numbers: nothing here asks a definition how it behaves."""

import dataclasses

from hpmoe.tile_ops.domains import AllRows, CompletionFlags, Copies, Experts, Once, Slots, Tiles

KINDS = {Once: "once", CompletionFlags: "once", Tiles: "tiles", Slots: "slots", Experts: "experts", AllRows: "experts",
         Copies: "copies"}


def kind(op):
    """What the row coordinate of its tasks counts."""
    return KINDS[type(op.domain)]


def params(op):
    """What its body is told, in order; of sums a block's rows, rows, whether padding is left out, and the first expert."""
    told = tuple(getattr(op.params, field.name) for field in dataclasses.fields(op.params))
    if kind(op) != "experts":
        return told
    return (*(told or (0,)), *(vars(op.domain).get(name, 0) for name in ("height", "of_tokens", "first_expert")))


def moves_copies(op):
    """Whether it moves weights to copies of experts, or their gradients back."""
    return op.opcode in ("REPLICATE", "RETURN_GRADS")
