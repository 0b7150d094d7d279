"""hpmoe.route and hpmoe.router against a float64 oracle: eager, as a program and as a kernel; gradients; laws."""

import jax
import mindspore as ms
import numpy as np
import pytest
import router_oracle as oracle
from helpers import stages
from jax import numpy as jnp
from mindspore import Tensor, mint

import hpmoe
from hpmoe import router

T, E = 13, 24
SCORES = ("softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen")


@hpmoe.transform(requires="program")
def traced(program):
    """The program as it is, run by the references of its primitives."""
    return program


RUNS = {"eager": lambda f: f, "program": traced, "kernel": stages(rows=4, cols=5)["fused"]}
EVERYWHERE = pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)


def logits(seed=0, tokens=T, experts=E, scale=2.0):
    z = np.random.default_rng(seed).standard_normal((tokens, experts)).astype(np.float32) * np.float32(scale)
    z[1], z[2, ::2] = 0.25, z[2, 1::2]  # all equal, and in pairs
    return z


def route_by(run, z, k, **options):
    tensors = {name: v for name, v in options.items() if isinstance(v, Tensor)}
    fixed = {name: v for name, v in options.items() if name not in tensors}
    out = run(lambda z, tensors: hpmoe.route(z, k, **tensors, **fixed))(Tensor(z), tensors)
    return tuple(v.asnumpy() for v in out)


def assert_routes(got, want):
    """MindSpore's exp is exact to 7e-6 on a CPU."""
    assert got[0].dtype == np.int32 and got[1].dtype == np.float32
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], rtol=1e-5, atol=1e-7)


BIAS = np.linspace(-0.6, 0.6, E).astype(np.float32)[np.random.default_rng(9).permutation(E)]
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


@EVERYWHERE
@pytest.mark.parametrize("k", [1, 2, 6, 8])
@pytest.mark.parametrize("model", MODELS)
def test_routers_of_models(model, k, run):
    k = 1 if model == "llama 4" else k
    z, options = logits(k), MODELS[model]
    ours = {name: Tensor(v) if name == "bias" else v for name, v in options.items()}
    assert_routes(route_by(run, z, k, **ours), oracle.route(z, k, **options))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("k", range(1, 17))
def test_one_to_sixteen_choices(k, score):
    z = logits(k)
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
def test_scores_that_round_to_the_same_keep_the_order_of_their_logits(score, run):
    z = logits(scale=60.0)
    assert_routes(route_by(run, z, 6, score=score), oracle.route(z, 6, score=score))


@EVERYWHERE
@pytest.mark.parametrize("score", SCORES)
def test_the_logits_of_a_router_that_begins_with_zeros_have_their_slope(score, run):
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


@EVERYWHERE
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("score", SCORES)
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
def test_a_users_weight_fusion_takes_the_place_of_normalize_and_scale(run):
    z = logits()
    def fusion(chosen):
        return chosen * chosen / mint.sum(chosen * chosen, -1, True)
    ids, w = route_by(run, z, 3, score="sigmoid", scale=9.0, fusion=fusion)
    want_ids, s = oracle.route(z, 3, score="sigmoid", normalize=False)
    assert_routes((ids, w), (want_ids, s**2 / (s**2).sum(1, keepdims=True)))


@EVERYWHERE
def test_replayed_and_hashed_ids_are_weighed_by_this_steps_logits(run):
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


# Noise.

def seeded(seed=7):
    return Tensor(seed, ms.int32)


@EVERYWHERE
@pytest.mark.parametrize("seed", [0, 7, -3, 2**31 - 1])
def test_draws_are_those_of_philox(seed, run):
    """Bit by bit, for a seed that is an argument and one that is fixed."""
    u = np.float32(oracle.uniform(seed, 0, T, E))
    want = np.ones((T, E), np.float32) * (u * np.float32(0.4) + np.float32(0.8))
    got = run(lambda x, seed: router.jitter(x, 0.2, seed))(Tensor(np.ones((T, E), np.float32)), seeded(seed)).asnumpy()
    np.testing.assert_allclose(got, want, rtol=2e-7)
    fixed = run(lambda x: router.jitter(x, 0.2, seed))(Tensor(np.ones((T, E), np.float32))).asnumpy()
    np.testing.assert_array_equal(fixed, got)
    assert 0.79999 < got.min() < got.max() < 1.20001


@EVERYWHERE
@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_gumbel_noise_relaxed_by_a_temperature(temperature, run):
    z = logits()
    noisy = (z + -np.log(-np.log(oracle.uniform(7, 1, T, E)))) / temperature
    ids, w = route_by(run, z, 4, temperature=temperature, seed=seeded())
    want = oracle.route(noisy, 4)
    np.testing.assert_array_equal(ids, want[0])
    np.testing.assert_allclose(w, want[1], rtol=2e-4, atol=1e-6)


def test_gumbel_samples_without_replacement_with_the_probabilities_of_the_softmax():
    p = np.array([0.5, 0.25, 0.15, 0.1])
    z = Tensor(np.tile(np.log(p), (20000, 1)).astype(np.float32))
    ids = hpmoe.route(router.gumbel(z, 11), 2)[0].asnumpy()
    np.testing.assert_allclose(np.bincount(ids[:, 0], minlength=4) / len(ids), p, atol=0.012)
    second = ids[ids[:, 0] == 0, 1]
    np.testing.assert_allclose(np.bincount(second, minlength=4)[1:] / len(second), p[1:] / 0.5, atol=0.015)
    assert (ids[:, 0] != ids[:, 1]).all()


@EVERYWHERE
def test_straight_through_has_the_values_of_one_and_the_gradient_of_the_other(run):
    z = logits()
    def weights(z, hard):
        ids, soft = hpmoe.route(z, 1, normalize=False, temperature=0.7, seed=3)
        return router.straight_through(mint.zeros_like(soft) + 1.0 if hard is None else hard, soft)
    ones = Tensor(np.ones((T, 1), np.float32))
    assert (run(weights)(Tensor(z), ones).asnumpy() == 1).all()
    hard = ms.grad(run(lambda z, one: mint.sum(weights(z, one))))(Tensor(z), ones).asnumpy()
    soft = ms.grad(run(lambda z: mint.sum(hpmoe.route(z, 1, normalize=False, temperature=0.7, seed=3)[1])))(Tensor(z))
    np.testing.assert_allclose(hard, soft.asnumpy(), atol=1e-7)
    assert np.abs(hard).max() > 1e-3


@EVERYWHERE
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("rate", [0.1, 0.3, 0.5])
def test_expert_dropout(rate, score, run):
    z = logits()
    dropped = np.float32(oracle.uniform(7, 2, T, E)) < np.float32(rate)
    got = route_by(run, z, 6, score=score, expert_dropout=rate, seed=seeded())
    assert_routes(got, oracle.route(z, 6, dropped, score=score))
    assert not np.take_along_axis(dropped, got[0], 1).any() and abs(dropped.mean() - rate) < 0.1
    np.testing.assert_allclose(got[1].sum(1), 1, rtol=1e-6)


@EVERYWHERE
@pytest.mark.parametrize("options", [{}, {"num_groups": 4, "topk_groups": 2}, {"score": "softmax_of_chosen", "num_groups": 4,
                                     "topk_groups": 2}, {"score": "sigmoid", "bias": BIAS[:8], "num_groups": 2}])
def test_where_too_few_experts_are_left_none_is_dropped(options, run):
    """Of those in the best groups, which all are chosen from, dropped or not."""
    z = logits(experts=8)
    dropped = np.float32(oracle.uniform(5, 2, T, 8)) < 0.5
    assert 0 < ((~dropped).sum(1) < 4).sum() < T
    ours = {name: Tensor(v) if name == "bias" else v for name, v in options.items()}
    assert_routes(route_by(run, z, 4, expert_dropout=0.5, seed=seeded(5), **ours), oracle.route(z, 4, dropped, **options))


@EVERYWHERE
def test_nothing_is_drawn_in_evaluation(run):
    z = logits()
    noisy = {"jitter": 0.3, "expert_dropout": 0.5, "score": "sigmoid"}
    assert_routes(route_by(run, z, 4, **noisy), oracle.route(z, 4, score="sigmoid"))
    assert_routes(route_by(run, z, 4, temperature=1.0), oracle.route(z, 4))
    assert "draw" not in str(hpmoe.trace(lambda z: hpmoe.route(z, 4, **noisy), z))


def test_a_seed_that_is_an_argument_changes_without_another_trace():
    traces = []

    def f(z, seed):
        traces.append(1)
        return hpmoe.route(z, 4, temperature=1.0, seed=seed)
    kernel = stages(rows=4)["fused"](f)
    ids = [kernel(Tensor(logits()), seeded(s))[0].asnumpy() for s in (1, 2, 1)]
    assert len(traces) == 1 and (ids[0] != ids[1]).any() and (ids[0] == ids[2]).all()


def test_gradients_draw_nothing_again():
    """The backward pass reads what the forward drew, and a recomputation would draw the same."""
    program = hpmoe.trace(lambda z: hpmoe.route(z, 4, temperature=0.5, jitter=0.1, expert_dropout=0.2, seed=3)[1], logits())
    assert "draw" in str(program) and "draw" not in str(hpmoe.vjp(program))


def test_noise_of_tokens_and_experts_is_independent():
    u = np.log(router.jitter(Tensor(np.full((512, 64), 1.0, np.float32)), 0.5, 1).asnumpy())
    for a, b in ((u[:-1], u[1:]), (u[:, :-1], u[:, 1:])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.02


# Forced routing, counts and losses.

def test_forced_ids():
    ids = router.balanced_ids(T, E, 5).asnumpy()
    counts = np.bincount(ids.ravel(), minlength=E)
    assert counts.max() - counts.min() <= 1 and all(len(set(row)) == 5 for row in ids)
    for run in RUNS.values():
        even = run(lambda z, seed: (router.uniform_ids(4000, 6, 2, seed), z))(Tensor(logits()), seeded())[0].asnumpy()
        assert even.dtype == np.int32 and (even[:, 0] != even[:, 1]).all()
        np.testing.assert_allclose(np.bincount(even.ravel(), minlength=6) / 8000, 1 / 6, atol=0.02)


@EVERYWHERE
def test_counts_leave_out_what_is_no_expert(run):
    ids = np.random.default_rng(0).integers(-1, E, (T, 4)).astype(np.int32)
    got = run(lambda ids: router.tokens_per_expert(ids, num_experts=E))(Tensor(ids)).asnumpy()
    assert got.dtype == np.int32 and got.tolist() == [(ids == e).sum() for e in range(E)]


@EVERYWHERE
def test_the_bias_moves_against_the_load(run):
    n = np.random.default_rng(0).integers(0, 9, E).astype(np.int32)
    n[0] = n[-1] = 3
    got = run(lambda b, n: router.update_bias(b, n, rate=0.01))(Tensor(BIAS), Tensor(n)).asnumpy()
    np.testing.assert_allclose(got, oracle.update_bias(BIAS, n, 0.01), rtol=1e-6)


def test_the_bias_balances_a_router():
    """Loss-free balancing: after some steps the most loaded expert has far less than it had."""
    z = Tensor(logits(tokens=512) + np.linspace(2, -2, E).astype(np.float32))
    bias, loads = Tensor(np.zeros(E, np.float32)), []
    for _ in range(120):
        ids, _ = hpmoe.route(z, 4, score="sigmoid", bias=bias)
        counts = router.tokens_per_expert(ids, num_experts=E)
        loads.append(counts.asnumpy().max() / counts.asnumpy().mean())
        bias = router.update_bias(bias, counts, rate=0.01)
    assert loads[0] > 2.5 and loads[-1] < 1.3


LOSSES = {
    "aux": (lambda z, k, score: router.aux_loss(z, k, score=score, coefficient=0.5),
            lambda z, k, score: 0.5 * oracle.aux_loss(z, k, score)),
    "sequence": (lambda z, k, score: router.sequence_loss(z, k, 3, score=score, coefficient=0.5),
                 lambda z, k, score: 0.5 * oracle.sequence_loss(z, k, 3, score)),
    "global": (lambda z, k, score: router.global_batch_loss(z, Tensor(STEPS.sum(0)), score=score, coefficient=0.5),
               lambda z, k, score: 0.5 * oracle.global_batch_loss(z, STEPS, k, score)),
    "z": (lambda z, k, score: router.z_loss(z, coefficient=0.5), lambda z, k, score: 0.5 * oracle.z_loss(z)),
}
STEPS = np.random.default_rng(2).integers(0, 50, (4, E)).astype(np.int32)  # all-reduced counts of four steps


@EVERYWHERE
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients(name, score, run):
    """Values against the oracle; gradients against its differences, along one direction, in float64."""
    z, direction = logits(5, tokens=12), np.random.default_rng(6).standard_normal((12, E))
    z += np.random.default_rng(7).standard_normal(z.shape).astype(np.float32)  # no equals, which a step would part
    ours, theirs = LOSSES[name]
    f = run(lambda z: ours(z, 3, score))
    np.testing.assert_allclose(float(f(Tensor(z)).asnumpy()), theirs(z, 3, score), rtol=1e-5)
    at = lambda h: theirs(z.astype(np.float64) + h * direction, 3, score)  # noqa: E731
    slope = (at(1e-6) - at(-1e-6)) / 2e-6
    np.testing.assert_allclose((ms.grad(f)(Tensor(z)).asnumpy() * direction).sum(), slope, rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("run", [RUNS["program"], RUNS["kernel"]], ids=["program", "kernel"])
@pytest.mark.parametrize("name", LOSSES)
def test_losses_are_of_real_tokens(name, run):
    """Beside num_tokens: those of a rank's own rows, 0 without any; padding has no gradient."""
    ours, theirs = LOSSES[name]
    z, lengths = logits(5, tokens=36).reshape(3, 12, E), (12, 0, 8)
    f = hpmoe.spmd(run(lambda z: (ours(z, 3, "sigmoid"), z)), hpmoe.Mesh(3))
    got = f(Tensor(z), num_tokens=lengths)[0].asnumpy()
    of_some = (np.mean([0.5 * oracle.aux_loss(part, 3, "sigmoid") for part in (z[2, :4], z[2, 4:8])])
               if name == "sequence" else theirs(z[2, :8], 3, "sigmoid"))  # two of three sequences have tokens
    want = [theirs(z[0], 3, "sigmoid"), 0, of_some]
    np.testing.assert_allclose(got, want, rtol=1e-5)
    grad = ms.grad(lambda z: f(z, num_tokens=lengths)[0].sum())(Tensor(z)).asnumpy()
    assert np.isfinite(grad).all() and grad[0].any() and not grad[1].any() and not grad[2, 8:].any()


@pytest.mark.parametrize("name", ["aux", "sequence", "global"])
def test_losses_rise_with_imbalance(name):
    """From 1, where all experts get the same, with every push towards one of them."""
    base = np.kron(np.ones((10, 1)), 6 * np.eye(4)).astype(np.float32)
    def loss(push):
        z = base + push * np.eye(4, dtype=np.float32)[0]
        if name == "sequence":
            return float(router.sequence_loss(Tensor(z), 1, 2))
        counts = router.tokens_per_expert(hpmoe.route(Tensor(z), 1)[0], num_experts=4)
        return float(router.aux_loss(Tensor(z), 1) if name == "aux" else router.global_batch_loss(Tensor(z), counts))
    losses = [loss(push) for push in (0.0, 5.0, 6.5, 8.0, 12.0)]
    assert losses[0] == pytest.approx(1.0, rel=1e-5) and np.diff(losses).min() > -1e-5 and losses[-1] > 3.5


def test_the_z_loss_rises_with_the_logits():
    losses = [float(router.z_loss(Tensor(logits() * np.float32(s)))) for s in (0.0, 1.0, 2.0, 4.0)]
    assert losses == sorted(set(losses))


def test_a_step_down_the_auxiliary_loss_balances():
    z = Tensor(logits(tokens=64) + np.linspace(1, -1, E).astype(np.float32))
    def loss(z):
        return router.aux_loss(z, 4)
    before = float(loss(z))
    for _ in range(30):
        z = z - ms.grad(loss)(z) * 20
    assert float(loss(z)) < before - 0.1


def test_llama_multiplies_the_experts_input():
    """One function from hidden states to the weighted input of the one expert."""
    x, w = np.random.default_rng(1).standard_normal((T, 6)).astype(np.float32), logits(2, tokens=6)
    def f(x, w):
        ids, weights = hpmoe.route(x @ w, 1, score="sigmoid", normalize=False)
        return ids, x * weights
    for run in RUNS.values():
        ids, scaled = (v.asnumpy() for v in run(f)(Tensor(x), Tensor(w)))
        z = x.astype(np.float64) @ w
        np.testing.assert_array_equal(ids[:, 0], z.argmax(1))
        np.testing.assert_allclose(scaled, x / (1 + np.exp(-z.max(1, keepdims=True))), rtol=1e-5)
