"""Sizes of the copies of the Ascend kernel, counted by the emulator."""

import numpy as np
import pytest
from ascend_helpers import npu

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, assign_queues, overlap_comm, tile_partition
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.support.dtypes import numpy_dtype

LARGE, PIECE = 16 * 1024, 8 * 1024  # the second: what a vector body works on at once
WHERE = {"to_ub": "to UB", "from_ub": "from UB", "to_l1": "to L1", "from_l0c": "from L0C"}


def share_of_copies(sizes, least):
    """Returns the share of bytes that copies of at least `least` bytes move, a power of two."""
    sizes = np.array(sizes)
    return sizes[least.bit_length() - 1:].sum() / sizes.sum()


@pytest.mark.slow
def test_large_copies_move_the_bytes(capsys):
    """Rows have 2048 bfloat16: copies of operands to L1 and of sums have 16 KB and more, separate rows of tokens are copies
    of their own, and vector work moves in pieces of 8 KB."""
    ep, tokens, hidden, inner = 2, 64, 2048, 256
    shapes = (ep, tokens, hidden), (ep, tokens, 2), (ep, tokens, 2), (ep, 1, hidden, 2 * inner), (ep, 1, inner, hidden)
    avals = [ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
    staged = assign_queues(overlap_comm(tile_partition(hpmoe.moe_ffn, rows=128, cols=256)), machine=npu())
    flow = hpmoe.spmd(staged, Mesh(ep)).lower(*avals)
    ids = np.tile(np.arange(2, dtype=np.int32), (tokens, 1))
    kernel = EMULATOR.compile([flow], 100.0)
    kernel.run([[ids if flow.buffers[b].dtype == "int32" else
                 np.ones(flow.buffers[b].shape, numpy_dtype(flow.buffers[b].dtype)) for b in flow.inputs]] * ep)
    counts = {where: list(getattr(kernel.state.counts, where)) for where in WHERE}
    with capsys.disabled():
        for where, sizes in counts.items():
            shares = ", ".join(f"{2**i} {b / sum(sizes):.2f}" for i, b in enumerate(sizes) if b > 0.005 * sum(sizes))
            print(f"\n{WHERE[where]}: of its bytes, by copies of so many and up to twice as many: {shares}", end="")
    assert share_of_copies(counts["to_l1"], LARGE) > 0.95 and share_of_copies(counts["from_l0c"], LARGE) > 0.95
    assert share_of_copies(counts["from_ub"], PIECE // 2) > 0.95  # rows of tokens, and pieces
