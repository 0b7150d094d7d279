"""Copies of experts whose weights are quantised: every stage against NumPy in float64, and what is sent."""

import functools

import numpy as np
import pytest
from helpers import Layer, assert_close, lowered, run_spmd, stages
from rounded_rows import multiplied, rounded_rows, scaled_products

import hpmoe
from hpmoe import chain, moe_ffn, quantize_rows, quantize_weights, replicate_experts, save_for_backward

W8A8 = chain(quantize_rows, quantize_weights(row_dtype="int8"))
TRANSFORMS = {"int8": quantize_weights, "float8_e4m3fn": quantize_weights(dtype="float8_e4m3fn"),
              "mxfp8": quantize_weights(dtype="mxfp8"), "W8A8": W8A8}
LAYERS = {"uneven": Layer(ep=3, T=5, H=33, E=6, K=3, num_tokens=(5, 0, 3)),
          "one rank takes all": Layer(ep=4, T=7, H=70, E=8, K=2, routing="one rank"),
          "no tokens": Layer(ep=2, T=0)}
SENT_AGAIN = save_for_backward(policy="dispatched_rows")


def replicated(layer, replicas=2):
    return replicate_experts(loads=np.arange(layer.E) ** 3, replicas=replicas)


def int8_rows(x):
    return rounded_rows(x, {}) if x.size else x


CASES = [pytest.param(name, saved, is_npu, marks=[] if (saved, is_npu) == (False, name == "mxfp8") else pytest.mark.slow)
         for name in TRANSFORMS for saved in (False, True) for is_npu in (False, True)]


def sent(f, args, ep, direction):
    """Bytes of the matrices that a rank puts to copies, for each dtype."""
    flow, found = lowered(chain(hpmoe.tile_partition, hpmoe.overlap_comm)(f), args, ep, direction), {}
    for op in flow.ops:
        if op.opcode == "REPLICATE":
            buffer = flow.buffers[op.operands[0].buffer]
            found[buffer.dtype] = found.get(buffer.dtype, 0) + buffer.num_rows * buffer.row_bytes
    return found


def test_copies_are_sent_as_what_their_owners_rounded():
    layer = Layer(ep=2, T=6, H=64, I=32, E=4, K=2)
    args, copied = layer.arguments(), replicated(layer, 1)
    elements, columns = 3 * 64 * 32, 2 * 32 + 64
    assert sent(copied(moe_ffn), args, 2, "forward") == {"float32": 4 * elements}
    for saved in ([], [SENT_AGAIN]):
        f = chain(copied, *saved, quantize_weights)(moe_ffn)
        assert sent(f, args, 2, "forward") == {"int8": elements, "float32": 4 * columns}
    assert sent(f, args, 2, "backward") == {"int8": elements, "float32": 4 * columns}
    assert sent(chain(copied, quantize_weights)(moe_ffn), args, 2, "backward") == {}
    f = chain(copied, quantize_weights(dtype="mxfp8"))(moe_ffn)
    assert sent(f, args, 2, "forward") == {"uint8": elements + elements // 32}


@pytest.mark.parametrize("row_dtype", [None, "int8"])
def test_weights_that_come_quantised(row_dtype):
    """Results, and the gradients of rows and scales, which copies give back to the owners."""
    rng, (ep, experts, inner, cols, tokens) = np.random.default_rng(0), (3, 2, 33, 7, 9)
    x = rng.standard_normal((ep, tokens, inner)).astype(np.float32)
    ids = rng.choice(experts * ep, (ep, tokens, 1), p=(0.05, 0.05, 0.05, 0.05, 0.3, 0.5)).astype(np.int32)
    w = rng.integers(-128, 128, (ep, experts, inner, cols), np.int8)
    scale = rng.uniform(1e-3, 1e-2, (ep, experts, cols)).astype(np.float32)
    cotangent = rng.standard_normal((ep, tokens, cols)).astype(np.float32)
    rows = (int8_rows(x) if row_dtype else x).astype(np.float64)
    layer = functools.partial(multiplied, row_dtype=row_dtype)
    f = replicate_experts(layer, loads=[1, 1, 1, 1, 6, 10], replicas=2)
    for name in ("plain", "overlap", "fused"):
        (got,), grads = run_spmd(stages()[name](f), ep, [x, ids, w, scale], [cotangent], positions=(0, 3))
        assert_close([got, *grads], scaled_products(rows, ids, w.astype(np.float64), scale, cotangent))
