"""Puts that a NOTIFY signals for: it names the buffer that its put writes, so that operations may be moved."""

import dataclasses

import pytest
from helpers import Layer, assert_close, numpy_moe_ffn, run_spmd

import hpmoe
from hpmoe import TransformError, VerifyError, assign_queues, fuse_persistent, moe_ffn, overlap_comm, tile_partition
from hpmoe.tiling.rebuild import rebuild

LAYER = Layer(ep=2, T=12)


@hpmoe.transform(requires="tiles")
def notify_last(flow, *, shift):
    """Every NOTIFY after all other operations, and of a buffer so many further."""
    moved = sorted(flow.ops, key=lambda op: op.opcode == "NOTIFY")
    return rebuild(flow, tuple(op.replace(params=dataclasses.replace(op.params, buffer=op.params.buffer + shift))
                               if op.opcode == "NOTIFY" else op for op in moved))


def moved(signal, shift):
    last = notify_last(overlap_comm(tile_partition(moe_ffn), signal=signal), shift=shift)
    return fuse_persistent(assign_queues(last))


@pytest.mark.parametrize("signal", ["peer", "expert"])
def test_a_moved_notify_is_of_the_put_whose_buffer_it_names(signal):
    for shift in (1, -100):
        with pytest.raises((TransformError, VerifyError), match="tells of the put into buffer -?\\d+, of which there are 0"):
            run_spmd(moved(signal, shift), LAYER.ep, LAYER.arguments(), [LAYER.cotangent()])
    outs, grads = run_spmd(moved(signal, 0), LAYER.ep, LAYER.arguments(), [LAYER.cotangent()])
    want, want_grads = numpy_moe_ffn(LAYER.arguments(), LAYER.cotangent())
    assert_close([*outs, *grads], [want, *want_grads])
