"""More of error_cases.py: weights that are quantised, and their scales."""

import mindspore as ms
import numpy as np
from ascend_helpers import emulator
from error_cases import cases
from mindspore import ops

import hpmoe
from hpmoe import ShapeDtypeStruct, moe_ffn, quantize_weights, trace
from hpmoe.rewriting import primitives

X, IDS = ShapeDtypeStruct((4, 3), "float32"), ShapeDtypeStruct((4, 1), "int32")
WEIGHT, SCALE = ShapeDtypeStruct((2, 3, 5), "int8"), ShapeDtypeStruct((2, 5), "float32")
LAYER = (X, IDS, ShapeDtypeStruct((4, 1), "float32"), ShapeDtypeStruct((2, 3, 4), "float32"),
         ShapeDtypeStruct((2, 2, 3), "float32"))
GIVEN = ops.ones((4, 3)), ms.Tensor(np.zeros((4, 1), np.int32)), ops.ones((2, 3, 5), ms.int8), ops.ones((2, 5))


def multiplied(x, ids, weight, scale, **options):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=2)
    return hpmoe.grouped_matmul(rows, weight, route, scale=scale, **options)


def traced(x=X, weight=WEIGHT, scale=SCALE, **options):
    return lambda: trace(lambda *args: multiplied(*args, **options), x, IDS, weight, scale)


def called(x=GIVEN[0], weight=GIVEN[2], scale=GIVEN[3], **options):
    return lambda: multiplied(x, GIVEN[1], weight, scale, **options)


def bare(primitive, *avals, **params):
    """A primitive of received rows and what follows the route."""
    def f(x, ids, *others):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=2)
        return primitive(rows, *others[:-1], route, **params) if primitive is primitives.expert_scale else primitive(
            rows, others[0], route, *others[1:], **params)
    return lambda: trace(f, X, IDS, *avals)


def nested():
    def loss(x):
        return multiplied(x, *GIVEN[1:]).sum()
    return ms.grad(lambda x: ms.grad(loss)(x).sum())(GIVEN[0])


def on_emulator(f, *avals):
    return lambda: emulator(f).lower(*avals)


INT8 = {"element": "int8", "transpose": False}
cases("quantised weights", {
    "a scale beside floats": traced(weight=ShapeDtypeStruct((2, 3, 5), "float32")),
    "int8 rows beside floats": lambda: trace(lambda x, ids, w: multiplied(x, ids, w, None, row_dtype="int8"), X, IDS,
                                             ShapeDtypeStruct((2, 3, 5), "float32")),
    "no scale beside int8": lambda: trace(lambda x, ids, w: multiplied(x, ids, w, None), X, IDS, WEIGHT),
    "rows of another dtype": traced(row_dtype="int4"),
    "int8 rows beside fp8": traced(weight=ShapeDtypeStruct((2, 3, 5), "uint8"), row_dtype="int8"),
    "int8 weights of fewer experts": traced(weight=ShapeDtypeStruct((1, 3, 5), "int8")),
    "int8 weights of other rows": traced(weight=ShapeDtypeStruct((2, 4, 5), "int8")),
    "a scale of other columns": traced(scale=ShapeDtypeStruct((2, 4), "float32")),
    "rows that are none": lambda: trace(lambda x, ids, w, s: hpmoe.grouped_matmul(
        x, w, hpmoe.dispatch(x, ids, num_local_experts=2)[1], scale=s), X, IDS, WEIGHT, SCALE),
    "rows that are ids": traced(x=ShapeDtypeStruct((4, 3), "int32")),
    "more products than an int32 sums": traced(x=ShapeDtypeStruct((4, 2**18), "float32"),
                                               weight=ShapeDtypeStruct((2, 2**18, 5), "int8"),
                                               row_dtype="int8"),
    "an element of another dtype": bare(primitives.grouped_matmul_quantized, ShapeDtypeStruct((2, 3, 5), "uint8"), SCALE,
                                        **INT8),
    "scale rows of experts": bare(primitives.expert_scale, ShapeDtypeStruct((2, 4), "float32"), SCALE),
    "called with two dimensions": called(weight=ops.ones((2, 3), ms.int8)),
    "called with rows of another size": called(x=ops.ones((4, 7))),
    "called with another scale": called(scale=ops.ones((2, 7))),
    "called with a number for a scale": called(scale=1.0),
    "called with more products": called(ops.ones((4, 2**18)), ops.ones((2, 2**18, 1), ms.int8), ops.ones((2, 1)),
                                        row_dtype="int8"),
    "a gradient of a gradient of int8": nested,
    "int8 weights on an NPU in a plan for a CPU": on_emulator(multiplied, X, IDS, WEIGHT, SCALE),
    "fp8 rows on an NPU": on_emulator(hpmoe.quantize_rows(moe_ffn, dtype="float8_e4m3fn"), *LAYER),
    "wide rows to int8 on an NPU": on_emulator(hpmoe.quantize_rows(lambda x, ids: hpmoe.dispatch(
        x, ids, num_local_experts=2)[0]), ShapeDtypeStruct((4, 8193), "float32"), IDS),
    "weights to another dtype": lambda: quantize_weights(moe_ffn, dtype="mxfp4"),
    "mxfp8 weights and int8 rows": lambda: quantize_weights(moe_ffn, dtype="mxfp8", row_dtype="int8"),
    "mxfp8 weights and scales of columns": bare(primitives.grouped_matmul_quantized, ShapeDtypeStruct((2, 5, 3), "uint8"),
                                                SCALE,
                                                element="mxfp8", transpose=True),
    "weights and other rows": lambda: quantize_weights(moe_ffn, row_dtype="float8_e4m3fn"),
    "fp8 weights and int8 rows": lambda: quantize_weights(moe_ffn, dtype="float8_e4m3fn", row_dtype="int8"),
    "weights and another backward": lambda: quantize_weights(moe_ffn, backward="exact"),
    "quantised gradients of rows as they are": lambda: quantize_weights(moe_ffn, backward="quantized"),
    "no weights to quantise": lambda: quantize_weights(lambda x: x + 1.0).lower(X),
    "a weight to another dtype": lambda: trace(lambda w: primitives.quantize_weight(w, dtype="int4"),
                                               ShapeDtypeStruct((2, 3, 5), "float32")),
    "a weight of two dimensions": lambda: trace(lambda w: primitives.quantize_weight(w, dtype="int8"), X),
})
