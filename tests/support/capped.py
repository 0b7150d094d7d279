"""A MoE-FFN with a capacity, beside the same computed token by token."""

import mindspore as ms
import numpy as np
from helpers import TOLERANCE, assert_close, kept_by_hand, numpy_moe_ffn, tensors

import hpmoe


def capped(factor, policy):
    """moe_ffn that returns its drop counts too."""
    def f(x, ids, w, up, down):
        return hpmoe.moe_ffn(x, ids, w, up, down, capacity_factor=factor, drop_policy=policy, return_drop_counts=True)
    return f


def assert_drops_by_hand(stage, layer, args, factor=None, policy="error", message=""):
    """Compares a level of moe_ffn with drops by hand: output, gradients and drop counts.

    Returns:
        The output and the gradients of hidden_states, topk_weights and both weights, and how many entries were dropped.
    """
    cotangent, counts = layer.cotangent(), []
    kept, dropped = kept_by_hand(args[1], args[2], factor or 1e9, policy, layer.E, layer.num_tokens)

    def without_counts(*a):  # counts are checked by a second output, which no loss reads
        out, count = hpmoe.spmd(stage(capped(factor, policy)), hpmoe.Mesh(layer.ep))(*a, num_tokens=layer.num_tokens)
        counts.append(count)
        return out

    given, weight = tensors(args), ms.Tensor(cotangent)

    def loss(x, w, up, down):
        out = without_counts(x, given[1], w, up, down)
        return (out * weight).sum(), out

    (_, out), grads = ms.value_and_grad(loss, (0, 1, 2, 3), has_aux=True)(given[0], *given[2:])
    got = [out.asnumpy(), *(g.asnumpy() for g in grads)]
    want, (d_x, d_weights, *d_experts) = numpy_moe_ffn(args, cotangent, layer.num_tokens, kept)
    assert_close([*got[:2], *got[3:]], [want, d_x, *d_experts], message)
    # A routing weight's gradient is a dot product. Its rounding is relative to the terms, whose sum may be small.
    unweighted, _ = numpy_moe_ffn([*args[:2], np.ones_like(args[2]), *args[3:]], cotangent, layer.num_tokens, kept)
    sizes = [np.abs(a).max(initial=0.0) for a in (got[2] - d_weights, d_weights, unweighted, cotangent)]
    assert sizes[0] <= TOLERANCE * max(sizes[1], sizes[2] * sizes[3]), message
    assert counts[0].dtype == ms.int32 and counts[0].asnumpy().tolist() == dropped.tolist()
    return got, int(dropped.sum())
