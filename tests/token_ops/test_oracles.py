"""Every token operator with each of its options against the formulas of CANN's: values and gradients in each dtype, called
on tensors, traced and in compiled graphs."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np
import pytest
import token_oracles as oracle
from mindspore import Tensor

import hpmoe
from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.support.dtypes import numpy_dtype

N, K, H, E = 7, 3, 5, 4
RNG = np.random.default_rng(0)
IDS = RNG.integers(0, E, (N, K)).astype(np.int32)
ALONE = IDS[:, 0].copy()
INDEX = np.array([[0, 3], [3, 6], [3, 1]], np.int32)
X, PROBS = RNG.standard_normal((N, H)), RNG.uniform(0.1, 1, (N, K))
S, S_ALONE, DROPPED = oracle.places_of(IDS), oracle.places_of(ALONE), oracle.places_with_capacity(IDS, 6, 4)
TOLERANCE = {"float32": 2e-6, "float16": 4e-3, "bfloat16": 3.2e-2}
RANGES = {"none": None, "all": (), "a part": (4, 15), "nothing": (6, 6), "the end": (20, 21)}


class Case(NamedTuple):
    """An operator with its options: of ids or places, and float arrays, its float outputs; the same by the formulas, and
    their gradients."""

    call: Callable[..., Any]
    index: np.ndarray
    arrays: tuple[np.ndarray, ...]
    values: Callable[..., tuple[np.ndarray, ...]]
    grads: Callable[..., tuple[np.ndarray, ...]]  # of the cotangents, a tuple, and the arrays


# Calls that MindSpore's parser of graphs reads: nested functions, not lambdas.

def first_of(operator, *options):
    def call(index, x):
        return operator(x, index, *options)[0]
    return call


def with_probs_of(operator, *options):
    def call(index, x, probs):
        out = operator(x, index, probs, *options)
        return out[0], out[2]
    return call


def alone(operator, *options):
    def call(index, x):
        return operator(x, index, *options)
    return call


def weighted(operator, *options):
    def call(index, x, probs):
        return operator(x, index, probs, *options)
    return call


def permuted(call, ids, end):
    places, top_k = oracle.places_of(ids), ids.size // N
    return Case(call, ids, (X,), lambda x: (oracle.permute(x, places, top_k, 0, end),),
                lambda cts, x: (oracle.permute_grad(cts[0], places, top_k, 0, end),))


def permuted_with_probs(given):
    start, end = given or (0, N * K)

    def values(x, p):
        return (oracle.permute(x, S, K, start, end), oracle.permute(p.reshape(-1, 1), S, 1, start, end)[:, 0])

    def grads(cts, x, p):
        return (oracle.permute_grad(cts[0], S, K, start, end),
                oracle.permute_grad(cts[1][:, None], S, 1, start, end).reshape(p.shape))
    return Case(with_probs_of(hpmoe.token_ops.permute_with_ep, given), IDS, (X, PROBS), values, grads)


def unpermuted(call, places, top_k, start, end, *probs):
    rows = RNG.standard_normal((end - start, H))
    return Case(call, places.astype(np.int32), (rows, *probs),
                lambda r, *p: (oracle.unpermute(r, places, top_k, start, *p),),
                lambda cts, r, *p: oracle.unpermute_grad(cts[0], r, places, top_k, start, *p))


def summed(num_rows):
    return unpermuted(weighted(hpmoe.token_ops.unpermute), S, K, 0, num_rows, PROBS)


def moved(num_rows):
    return unpermuted(alone(hpmoe.token_ops.unpermute), S_ALONE, 1, 0, num_rows)


def summed_of_range(given):
    return unpermuted(weighted(hpmoe.token_ops.unpermute_with_ep, given), S, K, *(given or (0, N * K)), PROBS)


def moved_of_range(given):
    return unpermuted(alone(hpmoe.token_ops.unpermute_with_ep, None, given), S_ALONE, 1, *(given or (0, N)))


def padded(call, *probs):
    return Case(call, INDEX.reshape(-1), (RNG.standard_normal((INDEX.size, H)), *probs),
                lambda r, *p: (oracle.sum_picked(r, INDEX, N, *p),),
                lambda cts, r, *p: oracle.sum_picked_grad(cts[0], r, INDEX, *p))


CASES = {
    "permute": permuted(first_of(hpmoe.token_ops.permute), IDS, N * K),
    "permute, int64": permuted(first_of(hpmoe.token_ops.permute), IDS.astype(np.int64), N * K),
    "permute, of [N]": permuted(first_of(hpmoe.token_ops.permute), ALONE, N),
    "permute, the first 5": permuted(first_of(hpmoe.token_ops.permute, 5), IDS, 5),
    "permute, padded": Case(first_of(hpmoe.token_ops.permute, 0, True), INDEX, (X,), lambda x: (oracle.pick(x, INDEX),),
                            lambda cts, x: (oracle.sum_picked(cts[0], INDEX, N),)),
    "unpermute": summed(N * K), "unpermute, the first 9": summed(9),
    "unpermute, moved": moved(N), "unpermute, the first 4 moved": moved(4),
    "unpermute, padded": padded(alone(hpmoe.token_ops.unpermute, None, True, (N, H))),
    "unpermute, padded and weighted": padded(weighted(hpmoe.token_ops.unpermute, True, (N, H)),
                                             PROBS.reshape(-1)[:6].reshape(3, 2)),
    **{f"permute_with_ep, {name}": permuted_with_probs(given) for name, given in RANGES.items()},
    "permute_with_ep, no probs": permuted(first_of(hpmoe.token_ops.permute_with_ep), IDS, N * K),
    **{f"unpermute_with_ep, {name}": summed_of_range(given) for name, given in RANGES.items()},
    **{f"unpermute_with_ep, {given}, moved": moved_of_range(given) for given in (None, (), (2, 5), (6, 6))},
    **{f"init_routing, active {n}": permuted(first_of(hpmoe.token_ops.init_routing, n), IDS, min(n or 999, N * K))
       for n in (0, 5, 999)},
    "init_routing, drops": Case(
        first_of(hpmoe.token_ops.init_routing, 0, 4, 6, 1), IDS, (X,),
        lambda x: (oracle.permute(x, DROPPED, K, 0, 24).reshape(6, 4, H),),
        lambda cts, x: (oracle.permute_grad(cts[0].reshape(24, H), DROPPED, K, 0, 24),)),
}


def eager(case, arrays, cotangents, compile=lambda f: f):
    given = list(map(Tensor, (case.index, *arrays)))
    outs, grads = (as_tuple(compile(f)(*given)) for f in (case.call, gradient(case, cotangents)))
    return [o.asnumpy() for o in outs], [g.asnumpy() for g in grads]


def compiled(case, arrays, cotangents):
    return eager(case, arrays, cotangents, ms.jit)


def traced(case, arrays, cotangents):
    given = [case.index, *arrays]
    program = hpmoe.trace(case.call, *given)
    parts = linearize(program)
    outs, count = interpret(parts.forward, [given])[0], len(cotangents)
    grads = interpret(parts.backward, [[*(given[i] for i in parts.kept_inputs), *outs[len(program.outputs):],
                                       *(cotangents[i] for i in parts.cotangents)]])[0]
    return outs[:count], grads


def as_tuple(x):
    return tuple(x) if isinstance(x, (tuple, list)) else (x,)


def gradient(case, cotangents):
    """The gradients of the sum of the outputs times their cotangents."""
    call, first, last = case.call, *(Tensor(np.asarray(cotangents[i], np.float32)) for i in (0, -1))

    def loss(*args):
        return (call(*args).astype(ms.float32) * first).sum()

    def loss_of_both(*args):
        out = call(*args)
        return (out[0].astype(ms.float32) * first).sum() + (out[1].astype(ms.float32) * last).sum()
    return ms.grad(loss if len(cotangents) == 1 else loss_of_both, tuple(range(1, 1 + len(case.arrays))))


def assert_as_the_oracle(name, dtype, stage):
    case = CASES[name]
    stored = functools.partial(np.asarray, dtype=numpy_dtype(dtype))
    arrays = [stored(a) for a in case.arrays]
    exact = [a.astype(np.float64) for a in arrays]
    wanted = case.values(*exact)
    cotangents = [stored(np.random.default_rng(1).standard_normal(w.shape)) for w in wanted]
    outs, grads = stage(case, arrays, cotangents)
    for got, want in zip([*outs, *grads], [*wanted, *case.grads([c.astype(np.float64) for c in cotangents], *exact)],
                         strict=True):
        assert got.shape == want.shape and (got.size == 0 or str(got.dtype) == dtype)
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@pytest.mark.parametrize("stage", [eager, traced])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name, dtype, stage):
    assert_as_the_oracle(name, dtype, stage)


EMPTY = [name for name, case in CASES.items() if 0 in (a.size for a in (*case.arrays, *case.values(*case.arrays)))]


IN_GRAPHS = ("permute", "permute, padded", "unpermute", "unpermute, padded and weighted", "permute_with_ep, a part",
             "unpermute_with_ep, a part", "init_routing, drops")


@pytest.mark.parametrize("name, dtype", [
    *((name, "float32") for name in IN_GRAPHS),
    *(pytest.param(name, [*TOLERANCE][i % 3], marks=pytest.mark.slow)
      for i, name in enumerate(sorted(CASES.keys() - {*EMPTY, *IN_GRAPHS}))),
    *(pytest.param(name, ("float16", "bfloat16")[i % 2], marks=pytest.mark.slow) for i, name in enumerate(IN_GRAPHS))])
def test_values_and_gradients_in_graphs(name, dtype):
    """Each case in a dtype, and of each operator some in several: eager and traced calls have each in all of them."""
    assert_as_the_oracle(name, dtype, compiled)


@pytest.mark.parametrize("name", EMPTY)
def test_no_rows_in_a_graph_are_refused_by_name(name):
    with pytest.raises(hpmoe.ArgumentError, match=r"in a graph is of shape \(0, 5\); it must be of at least one element"):
        assert_as_the_oracle(name, "float32", compiled)


@pytest.mark.parametrize("how", ["eager", "traced", "jit"])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize("name", ["none", "cumsum", "count"])
def test_places_and_counts(name, mode, how):
    def both(x, ids):
        out = hpmoe.token_ops.init_routing(x, ids, 0, 4, 6, mode, name)
        return out[1], out[2]

    def places(x, ids):
        return (hpmoe.token_ops.init_routing(x, ids, 0, 4, 6, mode)[1],)

    f, args = places if name == "none" else both, (X.astype(np.float32), IDS)
    if how == "traced":
        got = interpret(hpmoe.trace(f, *args), [list(args)])[0]
    else:
        got = [o.asnumpy() for o in (ms.jit(f) if how == "jit" else f)(*map(Tensor, args))]
    want = [DROPPED if mode else S]
    if name != "none":
        want.append(np.cumsum(oracle.counts(IDS, 6)) if name == "cumsum" else oracle.counts(IDS, 6))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_array_equal(g, w)


def test_512_choices():
    ids = np.random.default_rng(0).integers(0, 100, (3, 512)).astype(np.int32)
    x = np.arange(6.0).reshape(3, 2)
    rows, places = hpmoe.token_ops.permute(Tensor(x.astype(np.float32)), Tensor(ids))
    np.testing.assert_array_equal(places.asnumpy(), oracle.places_of(ids))
    np.testing.assert_array_equal(rows.asnumpy(), oracle.permute(x, places.asnumpy(), 512, 0, ids.size))
    probs = np.random.default_rng(1).random((3, 512))
    back = hpmoe.token_ops.unpermute(rows, places, Tensor(probs.astype(np.float32)))
    np.testing.assert_allclose(back.asnumpy(), oracle.unpermute(rows.asnumpy(), places.asnumpy(), 512, 0, probs), rtol=1e-5)


@pytest.mark.slow
def test_as_many_entries_as_may_be():
    entries = 16_777_214
    ids = np.random.default_rng(0).integers(0, 1024, entries, np.int32).reshape(-1, 2)
    x = np.arange(entries // 2, dtype=np.float32).reshape(-1, 1)
    rows, places = (t.asnumpy() for t in hpmoe.token_ops.permute(Tensor(x), Tensor(ids)))
    order = np.argsort(ids.reshape(-1).astype(np.int16), kind="stable")
    np.testing.assert_array_equal(places[order], np.arange(entries))
    np.testing.assert_array_equal(rows[:, 0], order // 2)
