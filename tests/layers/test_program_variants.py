"""Layers other than moe_ffn through the whole chain: values and gradients against JAX."""

import functools

import jax
import mindspore as ms
import numpy as np
import pytest
from helpers import assert_close, jax_vjp, run_spmd, stages, token_mask
from mindspore import mint
from variants import LAYER, VARIANTS, arguments, cotangents_of, differentiable

import hpmoe

STAGES = ("plain", "tiles", "queues", "fused")


def tokens_of(name, args):
    """The shape of a variant's arguments that begins with ranks and tokens."""
    return args[0].shape if name != "batched_hidden_states" else args[0].shape[::2]


@functools.cache
def masked(in_jax):
    """A variant of its arguments and a mask of tokens, [ep, T, 1], which clears rows of results that have one for each
    token."""
    def f(*args):
        *args, mask = args
        outs = jax.tree.leaves(in_jax(*args))
        return tuple(o * mask.reshape(o.shape[0], *(1,) * (o.ndim - 3), LAYER.T, 1) if o.ndim > 2 else o for o in outs)

    return f


@pytest.mark.parametrize("name", VARIANTS)
def test_a_variant(name):
    """Padding rows add nothing to any gradient, and are zero in results that have a row for each token.

    The kernel runs with padding; the stages before it run in turn, every second one without padding.
    """
    f, in_jax = VARIANTS[name]
    args, i = arguments(f, LAYER), list(VARIANTS).index(name)
    positions, cotangents = differentiable(args), cotangents_of(in_jax, args)
    at = {(2, 4): ("fused",), None: (STAGES[i % 3],)} if i % 2 else {(2, 4): (STAGES[i // 2 % 3], "fused")}
    if name == "summed_over_tokens":
        at = {None: STAGES}
    for lengths, chosen in at.items():
        want, want_grads = jax_vjp(masked(in_jax), [*args, token_mask(tokens_of(name, args), lengths)], tuple(cotangents),
                                   positions)
        for stage in chosen:
            outs, grads = run_spmd(stages()[stage](f), LAYER.ep, args, cotangents, lengths, positions=positions)
            assert_close([*outs, *grads], [*want, *want_grads], f"{name} of lengths {lengths} at stage {stage}:")


def test_sum_over_tokens_leaves_padding_out():
    (x,), cotangent = arguments(lambda x: x), np.ones((2, 4), np.float32)
    mask = token_mask(x.shape, (2, 4))
    for stage in STAGES:
        f = stages()[stage](lambda x: mint.sum(2.0 * x + 1.0, dim=0))
        outs, grads = run_spmd(f, 2, [x], [cotangent], (2, 4), positions=(0,))
        assert_close([*outs, *grads], [((2 * x + 1) * mask).sum(1), 2 * mask.repeat(x.shape[2], 2)])


TIES = np.float32([[1, 2, 2, 0], [3, 3, 1, 3]])


@pytest.mark.parametrize("stage", STAGES)
def test_equal_values_share_the_gradient_of_a_maximum(stage):
    other = np.float32([[1, 2, 3, -1], [0, 3, 1, 4]])
    f = hpmoe.spmd(stages()[stage](lambda x, y: (mint.maximum(x, y), mint.minimum(x, y), mint.amax(x, dim=-1))),
                   hpmoe.Mesh(1))
    for i, want in enumerate(([[[.5, .5, 0, 1], [1, .5, .5, 0]], [[.5, .5, 1, 0], [0, .5, .5, 1]]],
                              [[[.5, .5, 1, 0], [0, .5, .5, 1]], [[.5, .5, 0, 1], [1, .5, .5, 0]]],
                              [[[0, .5, .5, 0], [1 / 3, 1 / 3, 0, 1 / 3]], np.zeros((2, 4))])):
        grads = ms.grad(lambda x, y, i=i: f(x, y)[i].sum(), (0, 1))(*(ms.Tensor(a[None]) for a in (TIES, other)))
        assert_close([g.asnumpy()[0] for g in grads], want)


@pytest.mark.parametrize("stage", STAGES)
def test_one_value_for_each_row_returned_twice(stage):
    """The copy that makes the second result has the layout of what it copies, a column."""
    def f(x):
        peak = mint.amax(x, dim=-1)
        return peak, peak

    first, second = hpmoe.spmd(stages()[stage](f), hpmoe.Mesh(1))(ms.Tensor(TIES[None]))
    assert first.asnumpy().tolist() == second.asnumpy().tolist() == [[2, 3]]
