"""Images whose tasks are tile bodies alone, and running them natively."""

import numpy as np
from native.image_builder import ImageBuilder

from hpmoe.kernels import launch
from hpmoe.kernels.protocol import Domain, Dtype
from hpmoe.support.dtypes import numpy_dtype


def run(builder, buffers, num_tokens=0):
    image = builder.pack()
    epoch = np.zeros((2, 1, len(builder.tables["event_runs"])), np.int64)
    launch(image, [buffers], [num_tokens], *epoch, 30.0)


class Tiles:
    """One op over all row tiles of arrays: `cols` columns at a time."""

    def __init__(self, rng, num_rows=11, tile_rows=4):
        self.rng, self.num_rows, self.builder, self.buffers = rng, num_rows, ImageBuilder(1, tile_rows), []

    def array(self, cols, rows=None, values=None, dtype=Dtype.FLOAT32):
        shape = (self.num_rows if rows is None else rows, cols)
        values = self.rng.standard_normal(shape) if values is None else values
        with np.errstate(all="ignore"):  # of NaN and overflow in halves
            self.buffers.append(values.astype(np.float32).astype(numpy_dtype(dtype.name.lower())))
        return self.builder.buffer(cols, shape[0], dtype=dtype)

    def run(self, opcode, *operands, columns=((0, 0),), num_tokens=0, **fields):
        fields = {"num_rows": self.num_rows} | fields
        op = self.builder.op(opcode, Domain.TILES, *operands, **fields)
        for tile in range(-(-self.num_rows // self.builder.tile_rows)):
            for cols in columns:
                self.builder.task(op, tile, cols)
        run(self.builder, self.buffers, num_tokens)


def tiles(seed=0, **sizes):
    return Tiles(np.random.default_rng(seed), **sizes)


def expert_rows(rng, num_experts=3, num_tokens=23, k=7, n=10):
    """A builder whose route sends tokens to experts 0 and 2 only, and arrays of received rows."""
    b = ImageBuilder(1, 4)
    route = b.route(num_experts, num_tokens, 1, 12)
    ids = rng.choice([0, 2], num_tokens).astype(np.int32)[:, None]
    counts = np.bincount(ids[:, 0], minlength=num_experts)
    buffers = [ids] + [rng.standard_normal((48, cols)).astype(np.float32) for cols in (k, n)]
    x, dy = b.buffer(k, 48), b.buffer(n, 48)
    starts = np.concatenate([[0], np.cumsum(counts)])
    return b, route, buffers, x, dy, [slice(starts[e], starts[e + 1]) for e in range(num_experts)]
