"""Layers of few tokens: right beside NumPy in float64 in both dtypes and odd sizes, with the same bits for any number of
workers and threads."""

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, numpy_moe_ffn, tensors

import hpmoe
from hpmoe.kernels.native import load

# One row for each expert, few rows, one expert with all, sizes that no vector divides, and columns of several strips.
LAYERS = [Layer(ep=1, T=1, H=33, I=17, E=5, K=3), Layer(ep=1, T=3, H=70, I=45, E=2, K=2),
          Layer(ep=1, T=7, H=130, I=66, E=9, K=1, routing="one expert"), Layer(ep=2, T=2, H=1027, I=35, E=4, K=2)]
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}  # of the largest value: bfloat16 rounds what is stored between operations
DTYPES = pytest.mark.parametrize("dtype", TOLERANCE)


def passes(layer, dtype, workers=None):
    """The output and the gradients, as arrays."""
    staged = hpmoe.chain(hpmoe.tile_partition(machine=hpmoe.cpu(num_workers=workers)), hpmoe.overlap_comm,
                         hpmoe.assign_queues, hpmoe.fuse_persistent)
    f = hpmoe.spmd(staged(hpmoe.moe_ffn), layer.mesh)
    args, (cotangent,) = tensors(layer.arguments()), tensors([layer.cotangent()])
    x, ids, *weights = [a if a.dtype == ms.int32 else a.astype(getattr(ms, dtype)) for a in args]
    out, back = ms.vjp(lambda x, *weights: f(x, ids, *weights), x, *weights)
    return [a.astype(ms.float32).asnumpy() for a in (out, *back(cotangent.astype(getattr(ms, dtype))))]


@DTYPES
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_few_rows_are_right(layer, dtype):
    def as_stored(a):
        return a if a.dtype == np.int32 else ms.Tensor(a).astype(getattr(ms, dtype)).astype(ms.float32).asnumpy()

    out, grads = numpy_moe_ffn([as_stored(a) for a in layer.arguments()], as_stored(layer.cotangent()))
    for got, want in zip(passes(layer, dtype), (out, *grads), strict=True):
        assert np.abs(got - want).max() <= TOLERANCE[dtype] * np.abs(want).max()


@DTYPES
@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_few_rows_have_one_result_for_any_workers(layer, dtype, monkeypatch):
    want, library = passes(layer, dtype), load()
    launch = library.hpmoe_launch
    for workers, threads in ((1, 1), (2, 3), (3, 2)):
        monkeypatch.setattr(library, "hpmoe_launch", lambda *args, n=threads: launch(*args[:4], n, *args[5:]))
        for got, same in zip(passes(layer, dtype, workers), want, strict=True):
            np.testing.assert_array_equal(got, same)
