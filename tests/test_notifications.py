"""Puts that a NOTIFY signals for: it names its put by number, so whoever moves operations numbers it anew, or is told."""

import pytest
from helpers import Layer, assert_close, numpy_moe_ffn, run_spmd

import hpmoe
from hpmoe import VerifyError, assign_queues, fuse_persistent, moe_ffn, overlap_comm, tile_partition
from hpmoe.taskflow import rebuild

LAYER = Layer(ep=2, T=12)


@hpmoe.transform(requires="tiles")
def notify_last(flow, *, renumbered):
    """Every NOTIFY after all other operations."""
    order = sorted(range(len(flow.ops)), key=lambda i: flow.ops[i].opcode == "NOTIFY")
    ops = [flow.ops[i] for i in order]
    if renumbered:
        ops = [op.replace(params=(op.params[0], order.index(op.params[1]))) if op.opcode == "NOTIFY" else op for op in ops]
    return rebuild(flow, tuple(ops))


def moved(signal, renumbered):
    last = notify_last(overlap_comm(tile_partition(moe_ffn), signal=signal), renumbered=renumbered)
    return fuse_persistent(assign_queues(last))


@pytest.mark.parametrize("signal", ["peer", "expert"])
def test_a_moved_notify_is_of_the_put_that_it_numbers(signal):
    with pytest.raises(VerifyError, match=r"ops\[\d+\], NOTIFY \w+, has params \(\d, \d+\), the second of which numbers"):
        run_spmd(moved(signal, False), LAYER.ep, LAYER.arguments(), [LAYER.cotangent()])
    outs, grads = run_spmd(moved(signal, True), LAYER.ep, LAYER.arguments(), [LAYER.cotangent()])
    want, want_grads = numpy_moe_ffn(LAYER.arguments(), LAYER.cotangent())
    assert_close([*outs, *grads], [want, *want_grads])
