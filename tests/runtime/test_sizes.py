"""Sizes that no array has: refused by name before MindSpore, which ends the process by some, or memory meets them."""

import time

import numpy as np
import pytest
from mindspore import mint

import hpmoe
from hpmoe import ArgumentError, ShapeDtypeStruct, TransformError

X = ShapeDtypeStruct((4, 3), "float32")
LARGE = ShapeDtypeStruct((2**40,), "float32")
OVER = {
    "two dimensions": ((2**62, 16), "it must be of at most 2**59 elements"),
    "one dimension": ((2**59 + 1,), "it must be of at most 2**59 elements"),
    "an empty array": ((2**62, 0, 4), "it must be of at most 2**59 elements"),
    "NumPy's numbers": ((np.int64(2**62), np.int64(2**62)), "it must be of at most 2**59 elements"),
    "many dimensions": ((1,) * 33, "shape is of 33 dimensions; it must be of at most 32"),
    "more than 63 bits": ((2**63 + 1,), "it must be a tuple of ints that are not negative"),
    "a negative one": ((-1, 3), "it must be a tuple of ints that are not negative"),
    "a truth value": ((True, 3), "it must be a tuple of ints that are not negative"),
    "a fraction": ((4.0, 3), "it must be a tuple of ints that are not negative"),
}
RESULTS = {
    "broadcast": lambda: hpmoe.trace(lambda x: x.broadcast_to((2**62, 4, 3)), X),
    "product": lambda: hpmoe.trace(lambda x: x.reshape(-1, 1) * x.reshape(1, -1), LARGE),
    "matmul": lambda: hpmoe.trace(lambda x: x.reshape(-1, 1) @ x.reshape(1, -1), LARGE),
    "padding": lambda: hpmoe.trace(lambda x: mint.nn.functional.pad(x, (0, 2**62)), X),
    "new zeros": lambda: hpmoe.trace(lambda x: x.new_zeros((2**62, 16)), X),
    "join": lambda: hpmoe.trace(lambda x: mint.cat([x] * 3), ShapeDtypeStruct((2**58, 2), "float32")),
}


@pytest.mark.parametrize("what", OVER)
def test_an_aval_has_a_size_that_an_array_can_have(what):
    shape, text = OVER[what]
    with pytest.raises(ArgumentError) as error:
        hpmoe.trace(lambda x: x * 2.0, ShapeDtypeStruct(shape, "float32"))
    assert str(error.value).startswith("hpmoe.ShapeDtypeStruct: shape is ") and text in str(error.value)


@pytest.mark.parametrize("dtype", ["float32", "float64", "complex128", "bool"])
def test_the_largest_array_is_traced(dtype):
    assert hpmoe.trace(lambda x: x.reshape(-1), ShapeDtypeStruct((2**30, 2**29), dtype)).outputs[0].aval.shape == (2**59,)


@pytest.mark.parametrize("result", RESULTS)
def test_results_have_such_sizes(result):
    with pytest.raises(ArgumentError, match=r"must be of at most 2\*\*59 elements\.\n  written at .*test_sizes\.py:\d+"):
        RESULTS[result]()


@pytest.mark.parametrize("sizes, error", [
    ((2**50, 8, 8, 4), TransformError), ((2**30, 8, 8, 4), TransformError), ((4, 2**50, 8, 4), TransformError),
    ((4, 8, 2**50, 4), TransformError), ((4, 8, 8, 2**30), TransformError), ((4, 8, 8, 2**50), ArgumentError)])
def test_layers_of_such_sizes_are_refused_at_once(sizes, error):
    tokens, hidden, intermediate, experts = sizes
    avals = (ShapeDtypeStruct((tokens, hidden), "float32"), ShapeDtypeStruct((tokens, 2), "int32"),
             ShapeDtypeStruct((tokens, 2), "float32"),
             ShapeDtypeStruct((experts, hidden, 2 * intermediate),
                              "float32"), ShapeDtypeStruct((experts, intermediate, hidden), "float32"))
    begin, fused = time.monotonic(), hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.moe_ffn)))
    for call in (fused.lower, fused.memory):
        with pytest.raises(error):
            call(*avals)
    with pytest.raises((ArgumentError, TransformError)):
        hpmoe.autotune(hpmoe.moe_ffn).lower(*avals)
    assert time.monotonic() - begin < 20
