"""Logits that nothing may read, NaN and infinities, change no value and have a gradient of 0 in every router operator.

They stand in rows of padding, rows and entries of masked ids, dropped experts and masked experts. The expectation is the
same operator in float64 JAX of the other logits.
"""

import jax
import mindspore as ms
import numpy as np
import pytest
import router_oracle as oracle
from jax import numpy as jnp
from mindspore import Tensor, mint
from router_runs import EVERYWHERE, RUNS, SCORES, in_turn

import hpmoe
from hpmoe import router

N, T, E, K, SEED = 6, 9, 8, 3, 5  # real tokens, tokens with padding
BAD = np.array([np.nan, np.inf, -np.inf], np.float32)
RNG = np.random.default_rng(3)
Z = RNG.standard_normal((N, E)).astype(np.float32) * 2
BIAS = RNG.permutation(np.linspace(-0.4, 0.4, E)).astype(np.float32)
COUNTS = RNG.integers(1, 50, E).astype(np.int32)
UNIFORM = [oracle.uniform(SEED, stream, N, E) for stream in range(3)]  # of jitter, Gumbel noise and dropout
JITTER, GUMBEL = 1 + 0.2 * (2 * UNIFORM[0] - 1), -np.log(-np.log(UNIFORM[1]))
LEAST = 1e-20


def in_jax(f, *args):
    """(value, gradient by the first argument) of the sum of what f returns times COTANGENT, in float64."""
    with jax.experimental.enable_x64():
        wide = [jnp.asarray(np.asarray(a, np.float64)) for a in args]
        def loss(*wide):
            out = f(*wide)
            return (out * jnp.asarray(cotangent(out.shape))).sum(), out
        (_, out), grad = jax.value_and_grad(loss, has_aux=True)(*wide)
        return np.asarray(out), np.asarray(grad)


def cotangent(shape):
    return np.random.default_rng(8).standard_normal(shape)


def scored(z, score):
    if score == "softmax":
        return jax.nn.softmax(z, -1)
    return {"sigmoid": jax.nn.sigmoid, "sqrt_softplus": lambda z: jnp.sqrt(jax.nn.softplus(z))}.get(score, lambda z: z)(z)


def weights(z, ids, score, normalize=True, scale=1.0):
    """[T, K] of ids, some -1; a score that each expert has by itself is computed of chosen logits alone."""
    is_expert = ids >= 0
    def pick(x):
        return jnp.where(is_expert, jnp.take_along_axis(x, jnp.maximum(ids, 0), 1), -jnp.inf if "chosen" in score else 0.0)
    if score == "softmax_of_chosen":
        chosen = jnp.where(is_expert.any(1, keepdims=True), pick(z), 0.0)
        chosen = jnp.where(is_expert, jax.nn.softmax(chosen, -1), 0.0)
    else:
        chosen = jnp.where(is_expert, pick(scored(z, score)) if score == "softmax" else scored(pick(z), score), 0.0)
    return (chosen / (chosen.sum(1, keepdims=True) + LEAST) if normalize else chosen) * scale


def routed(score, noisy=lambda z: z, dropped=None, **options):
    """The weights of `hpmoe.route`, of logits that noise was added to, of which some are dropped."""
    ids, _ = oracle.route(np.asarray(noisy(Z.astype(np.float64))), K, dropped, score=score, **options)
    def f(z):
        z = noisy(z) if dropped is None else jnp.where(dropped, -jnp.inf, noisy(z))
        return weights(z, ids, score, options.get("normalize", True), options.get("scale", 1.0))
    return f


def shares(z, score):
    p = jax.nn.softmax(z, -1) if score.startswith("softmax") else scored(z, score)
    return p / (p.sum(-1, keepdims=True) + LEAST)


def balance(n, z, score):
    return E * (n / n.sum() * shares(z, score).mean(0)).sum()


def by_sequence(z, score):
    return sum(balance(oracle.counts(Z[i:i + N // 2], K, score), z[i:i + N // 2], score) for i in (0, N // 2)) / 2


GROUPS = {"bias": BIAS, "num_groups": 4, "topk_groups": 2, "scale": 2.5}
DROPPED = UNIFORM[2] < 0.3
DROPPED[(~DROPPED).sum(1) < K] = False


def routes(**options):
    return lambda z: hpmoe.route(z, K, **{k: Tensor(v) if k == "bias" else v for k, v in options.items()})[1]


# What each operator computes of logits [T, E], and the same in JAX.
OPERATORS = {
    **{f"route, {s}": (routes(score=s), routed(s)) for s in SCORES},
    **{f"route, {s}, groups": (routes(score=s, **GROUPS), routed(s, **GROUPS)) for s in SCORES[::2]},
    **{f"route, {s}, dropout": (routes(score=s, expert_dropout=0.3, seed=SEED), routed(s, dropped=DROPPED))
       for s in SCORES[1::2]},
    "route, jitter": (routes(jitter=0.2, seed=SEED), routed("softmax", lambda z: z * JITTER)),
    "route, temperature": (routes(temperature=0.5, seed=SEED), routed("softmax", lambda z: (z + GUMBEL) / 0.5)),
    "route, fusion": (routes(score="sigmoid", fusion=lambda w: w * w),
                      lambda z: routed("sigmoid", normalize=False)(z) ** 2),
    **{f"aux_loss, {s}": (lambda z, s=s: router.aux_loss(z, K, score=s),
                          lambda z, s=s: balance(oracle.counts(Z, K, s), z, s)) for s in SCORES},
    **{f"sequence_loss, {s}": (lambda z, s=s: router.sequence_loss(z, K, 3, score=s),
                               lambda z, s=s: by_sequence(z, s)) for s in SCORES},  # the last sequence is padding
    **{f"global_batch_loss, {s}": (lambda z, s=s: router.global_batch_loss(z, Tensor(COUNTS), score=s),
                                   lambda z, s=s: balance(COUNTS, z, s)) for s in SCORES},
    "z_loss": (lambda z: router.z_loss(z), lambda z: (jax.nn.logsumexp(z, 1) ** 2).mean()),
    "jitter": (lambda z: router.jitter(z, 0.2, SEED), lambda z: z * JITTER),
    "gumbel": (lambda z: router.gumbel(z, SEED), lambda z: z + GUMBEL),
    "straight_through": (lambda z: router.straight_through(mint.sign(z), mint.tanh(z)),
                         lambda z: jax.lax.stop_gradient(jnp.sign(z) - jnp.tanh(z)) + jnp.tanh(z)),
    "tokens_per_expert": (lambda z: router.tokens_per_expert(hpmoe.route(z, K)[0], num_experts=E) + 0 * z.sum(),
                          lambda z: oracle.counts(Z, K, "softmax") + 0 * z.sum()),
}


def assert_value_and_slope(f, z, want, slope, **options):
    """Values and gradients of f at z; what `want` does not have is 0 in both, though a gradient is asked of it."""
    def loss(z):
        out = f(z, **options)
        return (out * Tensor(placed(cotangent(want.shape), out.shape, 1.0), ms.float32)).sum(), out
    (_, out), grad = ms.value_and_grad(loss, 0, has_aux=True)(Tensor(z))
    np.testing.assert_allclose(out.asnumpy(), placed(want, out.shape), rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(grad.asnumpy(), placed(slope, z.shape), rtol=2e-4, atol=2e-6)


def placed(real, shape, others=0.0):
    """The rows of the first rank, or its scalar or vector, among those of all ranks."""
    out = np.full(shape, others)
    out[(0,) * (len(shape) - real.ndim) + tuple(map(slice, real.shape))] = real
    return out


@pytest.mark.parametrize("name, run", [
    pytest.param(name, RUNS[run], id=f"{name}-{run}") for i, name in enumerate(OPERATORS)
    for run in (["program", "kernel"] if i % 4 == 0 else ["kernel"])])
def test_padding_changes_nothing(name, run):
    """The first of two ranks has padding, and the second has only padding."""
    ours, theirs = OPERATORS[name]
    z = np.resize(BAD, (2, T, E))
    z[0, :N] = Z
    assert_value_and_slope(hpmoe.spmd(run(ours), hpmoe.Mesh(2)), z, *in_jax(theirs, Z), num_tokens=(N, 0))


IDS = np.array([[0, 5, 2], [-1, -1, -1], [-1, 3, -1], [7, -1, 1], [-1, -1, -1], [4, 6, -1]], np.int32)


def masked_logits(score, bad):
    """A value in all logits that no entry reads; a softmax reads the rows that have an expert."""
    reads = np.zeros((N, E), bool)
    reads[np.repeat(np.arange(N), K)[IDS.ravel() >= 0], IDS.ravel()[IDS.ravel() >= 0]] = True
    return np.where((IDS >= 0).any(1, keepdims=True) if score == "softmax" else reads, Z, bad).astype(np.float32)


@in_turn("score, normalize, bad", SCORES, [True, False], BAD)
def test_weigh_reads_no_logits_of_masked_entries(score, normalize, bad, run):
    f = run(lambda z: router.weigh(z, Tensor(IDS), score=score, normalize=normalize, scale=1.5))
    assert_value_and_slope(f, masked_logits(score, bad), *in_jax(lambda z: weights(z, IDS, score, normalize, 1.5), Z))


@in_turn("score, bad", SCORES, BAD)
def test_dropped_experts_have_no_value_and_no_gradient(score, bad, run):
    assert DROPPED.any()
    f = run(lambda z: hpmoe.route(z, K, score=score, expert_dropout=0.3, seed=SEED)[1])
    assert_value_and_slope(f, np.where(DROPPED, bad, Z).astype(np.float32), *in_jax(routed(score, dropped=DROPPED), Z))


@EVERYWHERE
@pytest.mark.parametrize("score", SCORES)
def test_experts_of_minus_infinity_are_never_chosen(score, run):
    """Masked experts: `hpmoe.route` of the others."""
    z = Z.copy()
    z[:, [2, 5]] = -np.inf
    others = np.delete(np.arange(E), [2, 5])
    ids, _ = oracle.route(Z[:, others].astype(np.float64), K, score=score)
    want, slope = in_jax(lambda z: weights(z[:, others], ids, score), Z)
    assert_value_and_slope(run(lambda z: hpmoe.route(z, K, score=score)[1]), z, want, slope)


@EVERYWHERE
@pytest.mark.parametrize("score", ["sigmoid", "sqrt_softplus"])
def test_scores_of_infinities_have_a_slope_of_zero(score, run):
    at = np.array([-np.inf, -1e30, -1e4, -90.0, -4.0, 0.0, 4.0, 29.9, 30.1, 90.0, 1e4, 1e30, np.inf])
    ids = np.arange(len(at), dtype=np.int32)[None]
    f = run(lambda z: router.weigh(z, Tensor(ids), score=score, normalize=False))
    s = 1 / (1 + np.exp(-np.clip(at, -700, 700)))
    soft = np.logaddexp(0, np.clip(at, -700, None))
    with np.errstate(invalid="ignore"):
        want, slope = {"sigmoid": (s, s * (1 - s)), "sqrt_softplus": (soft**0.5, s / soft**0.5 / 2)}[score]
    c = cotangent((1, len(at)))
    want = np.where(at == np.inf, {"sigmoid": 1.0}.get(score, np.inf), want)
    assert_value_and_slope(f, at[None].astype(np.float32), want[None], slope[None] * c)


def test_straight_through_has_no_gradient_by_hard():
    hard, soft = Tensor([[1.0, 0.0, 2.0]]), Tensor([[np.nan, np.inf, 3.0]])
    def f(hard, soft):
        return (router.straight_through(hard * hard, soft) * Tensor([[1.0, 2.0, 3.0]])).sum()
    assert router.straight_through(hard, soft).asnumpy().tolist() == [[1.0, 0.0, 2.0]]
    slopes = ms.grad(f, (0, 1))(hard, soft)
    assert [g.asnumpy().tolist() for g in slopes] == [[[0.0, 0.0, 0.0]], [[0.0, 0.0, 3.0]]]
