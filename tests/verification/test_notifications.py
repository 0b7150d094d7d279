"""Puts that a NOTIFY signals for: it names the buffer that its put writes, so that operations may be moved."""

import dataclasses

import pytest
from helpers import Layer, assert_close, lowered, numpy_moe_ffn, run_spmd

import hpmoe
from hpmoe import TransformError, VerifyError, assign_queues, fuse_persistent, moe_ffn, overlap_comm, tile_partition
from hpmoe.tiling.rebuild import rebuild

LAYER = Layer(ep=2, T=12)


@hpmoe.transform(requires="tiles")
def move_notify(flow, *, last, shift):
    """Moves every NOTIFY after all other operations, or before them, and to a buffer `shift` further."""
    moved = sorted(flow.ops, key=lambda op: (op.opcode == "NOTIFY") == last)
    return rebuild(flow, tuple(op.replace(params=dataclasses.replace(op.params, buffer=op.params.buffer + shift))
                               if op.opcode == "NOTIFY" else op for op in moved))


def moved(signal, last, shift):
    return fuse_persistent(assign_queues(move_notify(overlap_comm(tile_partition(moe_ffn), signal=signal), last=last,
                                                     shift=shift)))


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("signal", ["peer", "expert"])
def test_a_moved_notify_is_of_the_put_whose_buffer_it_names(signal, last):
    for shift in (1, -100):
        with pytest.raises((TransformError, VerifyError), match="leg and buffer must be those of one put"):
            lowered(moved(signal, last, shift), LAYER.arguments(), LAYER.ep)
    outs, grads = run_spmd(moved(signal, last, 0), LAYER.ep, LAYER.arguments(), [LAYER.cotangent()])
    want, want_grads = numpy_moe_ffn(LAYER.arguments(), LAYER.cotangent())
    assert_close([*outs, *grads], [want, *want_grads])
