"""Layers other than moe_ffn through the whole chain: values and gradients against JAX."""

import jax
import numpy as np
import pytest
from helpers import assert_close, jax_vjp, run_spmd, stages
from variants import LAYER, VARIANTS, arguments

STAGES = ("plain", "tiles", "queues", "fused")


def differentiable(args):
    return tuple(i for i, a in enumerate(args) if a.dtype == np.float32)


def cotangents_of(in_jax, args):
    rng = np.random.default_rng(1)
    shapes = jax.tree.leaves(jax.eval_shape(in_jax, *args))
    return [rng.standard_normal(s.shape).astype(np.float32) for s in shapes]


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_at_every_stage(name):
    f, in_jax = VARIANTS[name]
    args = arguments(f, LAYER)
    positions, cotangents = differentiable(args), cotangents_of(in_jax, args)
    want, want_grads = jax_vjp(lambda *a: tuple(jax.tree.leaves(in_jax(*a))), args, tuple(cotangents), positions)
    for stage in STAGES:
        outs, grads = run_spmd(stages()[stage](f), LAYER.ep, args, cotangents, positions=positions)
        assert_close([*outs, *grads], [*want, *want_grads], f"{name} at stage {stage}:")
