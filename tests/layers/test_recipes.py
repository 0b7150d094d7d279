"""The recipes of examples/12_recipes.py, output and every gradient, at every stage against JAX in float64."""

import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers import assert_close, at_stages, entry_weights, jax_moe_ffn, jax_vjp, kept_by_hand, run_spmd, stages
from mindspore import ops

RECIPES = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "12_recipes.py"), run_name="example")
ARGUMENTS = {name: (f, args, everywhere) for name, f, args, everywhere in RECIPES["recipes"]()}


def jax_expert_choice(x, ids, scores, up, down):
    """Each expert keeps the largest scores of each rank."""
    kept = jnp.sort(scores, axis=1)[:, -RECIPES["NUM_TOKENS"] * RECIPES["TOP_K"] // RECIPES["NUM_EXPERTS"]][:, None]
    return jax_moe_ffn(x, ids, jnp.where(scores >= kept, scores, 0), up, down)


def jax_interleaved(x, ids, weights, up, up_bias, down, down_bias):
    both = jnp.einsum("rth,rtkhn->rtkn", x, entry_weights(up, ids)) + entry_weights(up_bias, ids)
    gate, value = jnp.minimum(both[..., 0::2], 7.0), jnp.clip(both[..., 1::2], -7.0, 7.0)
    act = (value + 1) * gate * jax.nn.sigmoid(1.702 * gate)
    out = jnp.einsum("rtki,rtkih->rtkh", act, entry_weights(down, ids)) + entry_weights(down_bias, ids)
    return jnp.einsum("rtk,rtkh->rth", weights, out)


def jax_multi_head(x, ids, weights, into, up, down, out):
    heads = jnp.einsum("rth,rhn->rtn", x, into).reshape(x.shape[0], -1, up.shape[2])
    return jnp.einsum("rth,rhn->rtn", jax_moe_ffn(heads, ids, weights, up, down).reshape(x.shape), out)


def jax_replicated(x, ids, weights, up, down, into, out):
    return jax_moe_ffn(x, ids, weights, up, down) + jnp.einsum("rti,rih->rth", jax.nn.silu(x @ into), out)


ORACLES = {"expert choice": jax_expert_choice, "interleaved gate and up": jax_interleaved, "multi-head": jax_multi_head,
           "mixed precision": jax_moe_ffn, "replicated weights": jax_replicated}


def on_ranks(name):
    """Function, arguments with the rank axis first, and the positions of those with a gradient."""
    f, args, everywhere = ARGUMENTS[name]
    args = [a.asnumpy() for a in args]
    args = [np.repeat(a[None], RECIPES["EP_SIZE"], 0) if i in everywhere else a for i, a in enumerate(args)]
    return f, args, [i for i in range(len(args)) if i != 1]


def test_every_recipe_has_an_oracle():
    assert ORACLES.keys() == ARGUMENTS.keys()


@pytest.mark.parametrize("name, stage", at_stages(ORACLES))
def test_a_recipe(name, stage):
    f, args, positions = on_ranks(name)
    cotangent = np.random.default_rng(1).standard_normal(args[0].shape).astype(np.float32)
    want, want_grads = jax_vjp(ORACLES[name], args, cotangent, positions)
    (out,), grads = run_spmd(stages(4, 6)[stage](f), RECIPES["EP_SIZE"], args, [cotangent], positions=positions)
    assert_close([out, *grads], [want, *want_grads], tolerance=3e-2 if name == "mixed precision" else 1e-5)
    assert all(np.abs(g).max() > 0 for g in want_grads)


def test_clamps_of_gpt_oss_are_reached():
    _, args, _ = on_ranks("interleaved gate and up")
    with jax.experimental.enable_x64():
        both = jnp.einsum("rth,rtkhn->rtkn", args[0], entry_weights(args[3], args[1])) + entry_weights(args[4], args[1])
    assert (both[..., ::2] > 7).any() and (np.abs(both[..., 1::2]) > 7).any()


def test_experts_keep_the_tokens_they_choose():
    _, args, _ = on_ranks("expert choice")
    kept, _ = kept_by_hand(args[1], args[2], RECIPES["TOP_K"] / RECIPES["NUM_EXPERTS"], "probs", RECIPES["NUM_EXPERTS"])
    share = RECIPES["NUM_TOKENS"] * RECIPES["TOP_K"] // RECIPES["NUM_EXPERTS"]
    assert (kept.sum(1) == share).all() and len(set(kept.sum(2).reshape(-1).tolist())) > 1


def test_gradients_of_a_replicated_weight_are_summed():
    f, args, everywhere = ARGUMENTS["replicated weights"]
    cotangent = ops.ones_like(args[0])
    summed = RECIPES["value_and_grads"](RECIPES["to_kernel"](f), args, everywhere, cotangent)[-1]
    _, copies, _ = on_ranks("replicated weights")
    _, (each,) = run_spmd(RECIPES["to_kernel"](f), RECIPES["EP_SIZE"], copies, [cotangent.asnumpy()], positions=[6])
    assert summed.shape == each.shape[1:]
    assert_close([summed.asnumpy()], [each.sum(0)])
