"""Quantised rows and weights beside experts filled up with zeros, rows sent by relays or once, and bfloat16, all at once."""

import dataclasses

import numpy as np
import pytest
from helpers import Layer, assert_close, fused, run_half, run_spmd

import hpmoe
from hpmoe import chain, deduplicate_rows, moe_ffn, quantize_rows, quantize_weights, relay_rows

LAYER = Layer(ep=4, T=7, E=8, K=3, H=40, I=6, num_tokens=(7, 0, 3, 5))
RELAYED = dataclasses.replace(LAYER, node_size=2)
W8A8 = quantize_weights(row_dtype="int8")
ALL = {"int8": quantize_rows, "mxfp8 both ways": quantize_rows(dtype="mxfp8", combine=True, backward="quantized"),
       "W8": quantize_weights, "W8A8": chain(quantize_rows, W8A8)}


def aligned(a):
    def f(x, ids, weights, gate_up, down):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=gate_up.shape[0], expert_alignment=a)
        act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, gate_up, route))
        return hpmoe.combine(hpmoe.grouped_matmul(act, down, route), route, weights)
    return f


@pytest.mark.parametrize("name", ALL)
def test_rows_of_zeros_that_fill_up_experts(name):
    """They are rounded to zeros, so nothing changes."""
    args, cotangent = LAYER.arguments(), LAYER.cotangent()
    mine, theirs = (run_spmd(fused()(ALL[name](aligned(a))), LAYER.mesh, args, [cotangent], LAYER.num_tokens)
                    for a in (4, 1))
    assert_close([*mine[0], *mine[1]], [*theirs[0], *theirs[1]])


SENT = {"once": (LAYER, deduplicate_rows), "by relays": (RELAYED, relay_rows)}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("order", ["sent first", "quantised first"])
@pytest.mark.parametrize("sent", SENT)
@pytest.mark.parametrize("name", ["int8", "W8A8"])
def test_rows_that_are_sent_another_way(name, sent, order, dtype):
    """As what is sent directly; in bfloat16 but for roundings of it, and within a step of int8 where those add up to one."""
    layer, scheme = SENT[sent]
    both = chain(scheme, ALL[name]) if order == "sent first" else chain(ALL[name], scheme)
    if dtype == "bfloat16":
        direct, other = (run_half(fused()(f(moe_ffn)), dataclasses.replace(layer, num_tokens=None), dtype)
                         for f in (ALL[name], both))
        assert_close(other, direct, tolerance=0.03)
        return
    args, cotangent = layer.arguments(), layer.cotangent()
    (out, grads), (other, their) = (run_spmd(fused()(f(moe_ffn)), layer.mesh, args, [cotangent], layer.num_tokens)
                                    for f in (ALL[name], both))
    assert_close([*other, *their], [*out, *grads])


@pytest.mark.parametrize("name", ALL)
def test_bfloat16_is_as_call_by_call(name):
    kernel, plain = (run_half(f(moe_ffn), dataclasses.replace(LAYER, num_tokens=None), "bfloat16")
                     for f in (chain(ALL[name], fused()), ALL[name]))
    assert_close(kernel, plain, tolerance=0.03)
    assert all(np.isfinite(a).all() for a in kernel)
