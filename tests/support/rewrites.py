"""Assertions for every rewrite that changes how rows are sent: send_rows and replicate_experts."""

import numpy as np
from helpers import assert_close, fused, jax_vjp, run_half, run_spmd
from variants import VARIANTS, arguments

from hpmoe import chain, moe_ffn


def assert_agrees_with_jax(rewrite, layer, name):
    """Asserts that a rewritten variant of moe_ffn returns JAX's outputs and gradients."""
    f, in_jax = VARIANTS[name]
    args = arguments(f, layer)
    positions = tuple(i for i, a in enumerate(args) if a.dtype == np.float32)
    cotangent = np.random.default_rng(3).standard_normal(args[0].shape).astype(np.float32)
    outs, grads = run_spmd(fused()(rewrite(f)), layer.mesh, args, [cotangent], positions=positions)
    want, want_grads = jax_vjp(in_jax, args, cotangent, positions)
    assert_close([*outs, *grads], [want, *want_grads])


def assert_rounds_once_more(rewrite, layer, dtype):
    """Asserts that a returned sum is rounded once more than without the rewrite, and that runs repeat bit by bit."""
    rewritten = chain(rewrite, fused())
    for a, b, c in zip(*(run_half(stage(moe_ffn), layer, dtype) for stage in (fused(), rewritten, rewritten)), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=2.0 ** -6 * np.abs(a).max())
        assert (b == c).all()


def assert_drops_the_same(rewrite, layer, stage, policy):
    """Asserts that the rewrite drops and counts the same entries over an expert capacity."""
    args, cotangent = layer.arguments(), layer.cotangent()

    def f(*a):
        return moe_ffn(*a, capacity_factor=0.5, drop_policy=policy, return_drop_counts=True)

    counts = np.zeros((layer.ep, layer.E), np.float32)
    plain, rewritten = (run_spmd(stage(g), layer.mesh, args, [cotangent, counts], layer.num_tokens) for g in (f, rewrite(f)))
    assert plain[0][1].sum() > 0 and (plain[0][1] == rewritten[0][1]).all()
    assert_close([rewritten[0][0], *rewritten[1]], [plain[0][0], *plain[1]])
