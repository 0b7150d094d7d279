"""hpmoe.route against a float64 oracle: choices, weights and their gradients; eager, as a program and as a kernel."""

import jax
import mindspore as ms
import numpy as np
import pytest
import router_oracle as oracle
from jax import numpy as jnp
from mindspore import Tensor, mint
from router_runs import BIAS, EVERYWHERE, RUNS, SCORES, E, T, assert_routes, in_turn, logits, route_by

import hpmoe
from hpmoe import router

MODELS = {
    "deepseek v3": {"score": "sigmoid", "bias": BIAS, "num_groups": 8, "topk_groups": 4, "scale": 2.5},
    "glm": {"score": "sigmoid", "bias": BIAS},
    "kimi k2": {"score": "sigmoid", "bias": BIAS, "scale": 2.827},
    "deepseek v4": {"score": "sqrt_softplus", "scale": 1.5},
    "qwen3": {"score": "softmax", "normalize": False},
    "mixtral": {"score": "softmax"},
    "gpt-oss": {"score": "softmax_of_chosen"},
    "llama 4": {"score": "sigmoid", "normalize": False},
    "nodes": {"score": "softmax", "num_groups": 4, "topk_groups": 2},
    "groups of one": {"score": "softmax_of_chosen", "bias": BIAS, "num_groups": E, "topk_groups": 20},
}


@in_turn("model, k", MODELS, [1, 2, 6, 8])
def test_routers_of_models(model, k, run):
    k = 1 if model == "llama 4" else k
    z, options = logits(k), MODELS[model]
    ours = {name: Tensor(v) if name == "bias" else v for name, v in options.items()}
    assert_routes(route_by(run, z, k, **ours), oracle.route(z, k, **options))


@pytest.mark.parametrize("k", range(1, 17))
def test_one_to_sixteen_choices(k):
    z, score = logits(k), SCORES[k % 4]
    assert_routes(route_by(RUNS["kernel"], z, k, score=score), oracle.route(z, k, score=score))


@pytest.mark.parametrize("run", [RUNS["eager"], RUNS["kernel"]], ids=["eager", "kernel"])
@pytest.mark.parametrize("score", SCORES)
def test_extreme_logits_have_weights_and_gradients(score, run):
    z = np.array([[80.0, -80.0, 0.0, 3.0], [-90.0, -80.0, -60.0, -70.0], [1e4, -1e4, 5e3, 0.0]], np.float32)
    f = run(lambda z: mint.sum(hpmoe.route(z, 2, score=score)[1] * Tensor([[1.0, 2.0]])))
    assert_routes(route_by(run, z[:2], 2, score=score), oracle.route(z[:2], 2, score=score))
    assert np.isfinite(ms.grad(f)(Tensor(z)).asnumpy()).all()


@EVERYWHERE
@pytest.mark.parametrize("score", SCORES)
def test_scores_that_round_equal_keep_the_order_of_logits(score, run):
    z = logits(scale=60.0)
    assert_routes(route_by(run, z, 6, score=score), oracle.route(z, 6, score=score))


@EVERYWHERE
@pytest.mark.parametrize("score", SCORES)
def test_logits_of_a_zero_router_have_their_slope(score, run):
    """And those at which a formula changes."""
    at = np.array([0.0, -4.0])
    z = np.repeat(at, 3).reshape(2, 3).astype(np.float32)
    c = Tensor(np.array([[1.0, 0.0]] * 2, np.float32))
    got = ms.grad(run(lambda z: mint.sum(hpmoe.route(z, 2, score=score, normalize=False)[1] * c)))(Tensor(z)).asnumpy()
    s = 1 / (1 + np.exp(-at))
    slopes = {"softmax": [[2 / 9, -1 / 9, -1 / 9]] * 2, "softmax_of_chosen": [[1 / 4, -1 / 4, 0]] * 2,
              "sigmoid": np.outer(s * (1 - s), [1, 0, 0]),
              "sqrt_softplus": np.outer(s / 2 / np.log1p(np.exp(at))**0.5, [1, 0, 0])}
    np.testing.assert_allclose(got, slopes[score], rtol=2e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", [ms.bfloat16, ms.float16])
def test_half_precision_logits_are_routed_in_float32(dtype):
    half = Tensor(logits()).astype(dtype)
    wide = half.astype(ms.float32).asnumpy()
    for run in RUNS.values():
        got = tuple(v.asnumpy() for v in run(lambda z: hpmoe.route(z, 3, score="sigmoid"))(half))
        assert_routes(got, oracle.route(wide, 3, score="sigmoid"))


def jax_weights(z, ids, score, scale=1.0, normalize=True):
    softplus = jnp.sqrt(jax.nn.softplus(z))
    s = {"softmax": jax.nn.softmax(z, -1), "sigmoid": jax.nn.sigmoid(z), "sqrt_softplus": softplus}.get(score, z)
    w = jnp.take_along_axis(s, ids, 1)
    w = jax.nn.softmax(w, -1) if score == "softmax_of_chosen" else w
    return (w / w.sum(-1, keepdims=True) if normalize else w) * scale


@in_turn("score, normalize", SCORES, [True, False])
def test_gradients_are_those_of_the_chosen_weights(score, normalize, run):
    z, c = logits(3), np.random.default_rng(4).standard_normal((T, 4)).astype(np.float32)
    options = {"score": score, "normalize": normalize, "scale": 2.5, "num_groups": 6, "topk_groups": 3}
    f = run(lambda z, b, c: mint.sum(hpmoe.route(z, 4, bias=b, **options)[1] * c))
    got = ms.grad(f)(Tensor(z), Tensor(BIAS), Tensor(c)).asnumpy()
    ids, _ = oracle.route(z, 4, bias=BIAS, **options)
    want = jax.grad(lambda z: (jax_weights(z, ids, score, 2.5, normalize) * c).sum())(z)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert not ms.grad(f, grad_position=1)(Tensor(z), Tensor(BIAS), Tensor(c)).asnumpy().any()


@EVERYWHERE
def test_a_weight_fusion_replaces_normalize_and_scale(run):
    z = logits()
    def fusion(chosen):
        return chosen * chosen / mint.sum(chosen * chosen, -1, True)
    ids, w = route_by(run, z, 3, score="sigmoid", scale=9.0, fusion=fusion)
    want_ids, s = oracle.route(z, 3, score="sigmoid", normalize=False)
    assert_routes((ids, w), (want_ids, s**2 / (s**2).sum(1, keepdims=True)))


@pytest.mark.parametrize("name", ["scale", "temperature"])
def test_factors_may_be_ints_of_more_than_64_bits(name):
    whole, real = (hpmoe.route(Tensor(logits()), 3, **{name: f})[1].asnumpy() for f in (2**70, 2.0**70))
    np.testing.assert_array_equal(whole, real)


@EVERYWHERE
def test_replayed_and_hashed_ids_are_weighed_by_current_logits(run):
    z, rng = logits(), np.random.default_rng(1)
    table, words = rng.permuted(np.tile(np.arange(E), (50, 1)), axis=1)[:, :4].astype(np.int32), rng.integers(0, 50, T)
    f = run(lambda z, table, words: (ids := router.hash_ids(words, table), router.weigh(z, ids, score="sqrt_softplus")))
    ids, w = (v.asnumpy() for v in f(Tensor(z), Tensor(table), Tensor(words.astype(np.int32))))
    s = np.array([oracle.scores(row[i].astype(np.float64), "sqrt_softplus") for row, i in zip(z, table[words], strict=True)])
    assert_routes((ids, w), (table[words], s / s.sum(1, keepdims=True)))
    own = route_by(run, z, 5, score="sigmoid")
    again = run(lambda z, ids: router.weigh(z, ids, score="sigmoid"))(Tensor(z), Tensor(own[0])).asnumpy()
    np.testing.assert_array_equal(again, own[1])


@EVERYWHERE
@pytest.mark.parametrize("score", SCORES)
def test_an_id_that_is_no_expert_has_no_weight(score, run):
    """Nor do tokens without any expert disturb a gradient."""
    z, ids = logits(), route_by(RUNS["eager"], logits(), 4, score=score)[0]
    ids[0], ids[3, 1:] = -1, -1
    f = run(lambda z, ids: router.weigh(z, ids, score=score))
    w = f(Tensor(z), Tensor(ids)).asnumpy()
    assert not w[ids < 0].any()
    np.testing.assert_allclose(w.sum(1), (ids >= 0).any(1), rtol=1e-5)
    slope = ms.grad(run(lambda z, ids: mint.sum(router.weigh(z, ids, score=score) ** 2)))(Tensor(z), Tensor(ids)).asnumpy()
    assert np.isfinite(slope).all() and not slope[0].any() and slope[5].any()
