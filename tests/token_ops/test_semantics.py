"""permute, unpermute, their kin of a range, init_routing: values and gradients against the formulas of CANN's operators,
written as loops in float64; on tensors, in compiled graphs and traced, in each dtype."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor

import hpmoe
from hpmoe import ArgumentError, ProgramError
from hpmoe.support.dtypes import numpy_dtype

TOLERANCE = {"float32": 1e-6, "float16": 2e-3, "bfloat16": 1.6e-2}  # two roundings of the result


def example(tokens=7, top_k=3, cols=5, experts=4, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((tokens, cols)).astype(numpy_dtype(dtype))
    ids = rng.integers(0, experts, (tokens, top_k)).astype(np.int32)
    return x, ids, rng.uniform(0.1, 1, (tokens, top_k)).astype(numpy_dtype(dtype))


def places_of(ids):
    flat = ids.reshape(-1)
    order = sorted(range(flat.size), key=lambda i: (flat[i], i))
    return np.array([order.index(i) for i in range(flat.size)])


def permuted(x, places, top_k, start, end):
    out = np.zeros((end - start, x.shape[1]))
    for i, s in enumerate(places):
        if start <= s < end:
            out[s - start] = x[i // top_k]
    return out


def unpermuted(rows, places, top_k, start, probs):
    out = np.zeros((len(places) // top_k, rows.shape[1]))
    for i, s in enumerate(places):
        if 0 <= s - start < len(rows):
            out[i // top_k] += (1 if probs is None else probs.reshape(-1)[i]) * rows[s - start]
    return out


def unpermuted_grads(grad, rows, places, top_k, start, probs):
    d_rows, d_probs = np.zeros(rows.shape), np.zeros(len(places))
    for i, s in enumerate(places):
        if 0 <= s - start < len(rows):
            d_rows[s - start] = grad[i // top_k] * probs.reshape(-1)[i]
            d_probs[i] = grad[i // top_k] @ rows[s - start]
    return d_rows, d_probs.reshape(-1, top_k)


def wide(*arrays):
    return [np.asarray(a, np.float64) for a in arrays]


def close(got, want, dtype):
    got = got.asnumpy() if isinstance(got, Tensor) else got
    assert got.shape == want.shape and (got.size == 0 or str(got.dtype) == dtype)
    np.testing.assert_allclose(wide(got)[0], want, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] * 4)


def grads_of(f, cotangent, *arrays):
    """The gradients of <f, cotangent> for all arrays."""
    def loss(*args):
        return (f(*args).astype(ms.float32) * Tensor(cotangent, ms.float32)).sum()
    grads = ms.grad(loss, tuple(range(len(arrays))))(*map(Tensor, arrays))
    return grads if isinstance(grads, tuple) else (grads,)


RANGES = {"plain": None, "empty": (), "a part": (4, 15), "nothing": (6, 6), "all": (0, 21)}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("given", RANGES)
def test_a_range_of_the_sorted_rows_and_back(dtype, given):
    x, ids, probs = example(dtype=dtype)
    places, (start, end) = places_of(ids), RANGES[given] or (0, ids.size)
    rows, sorted_indices, moved = hpmoe.permute_with_ep(*map(Tensor, (x, ids, probs)), RANGES[given])
    np.testing.assert_array_equal(sorted_indices.asnumpy(), places)
    np.testing.assert_array_equal(rows.asnumpy(), permuted(x, places, 3, start, end).astype(x.dtype))
    np.testing.assert_array_equal(moved.asnumpy(),
                                  permuted(probs.reshape(-1, 1), places, 1, start, end)[:, 0].astype(x.dtype))
    grad = np.random.default_rng(1).standard_normal(rows.shape)
    (d_x,) = grads_of(lambda x: hpmoe.permute_with_ep(x, Tensor(ids), None, RANGES[given])[0], grad, x)
    close(d_x, unpermuted(np.asarray(grad, np.float32).astype(x.dtype).astype(float), places, 3, start, None), dtype)
    (d_p,) = grads_of(lambda p: hpmoe.permute_with_ep(Tensor(x), Tensor(ids), p, RANGES[given])[2], grad[:, 0], probs)
    close(d_p.reshape(-1, 1), unpermuted(grad[:, :1].astype(x.dtype).astype(float), places, 1, start, None), dtype)
    back = hpmoe.unpermute_with_ep(rows, sorted_indices, Tensor(probs), RANGES[given])
    close(back, unpermuted(*wide(rows.asnumpy()), places, 3, start, *wide(probs)), dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("span", [(0, 21), (4, 15), (0, 9)])
def test_gradients_of_unpermute(dtype, span):
    x, ids, probs = example(dtype=dtype)
    places, (start, end) = places_of(ids), span
    rows = permuted(x, places, 3, start, end).astype(x.dtype)
    grad = np.random.default_rng(1).standard_normal(x.shape).astype(x.dtype)
    got = grads_of(lambda r, p: hpmoe.unpermute_with_ep(r, Tensor(places.astype(np.int32)), p, span),
                   grad.astype(np.float32), rows, probs)
    for g, want in zip(got, unpermuted_grads(*wide(grad, rows), places, 3, start, *wide(probs)), strict=True):
        close(g, want, dtype)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_without_probs_rows_are_moved(dtype):
    x, ids, _ = example(top_k=1, dtype=dtype)
    rows, places = hpmoe.permute(Tensor(x), Tensor(ids), 4)
    assert rows.shape == (4, 5)
    np.testing.assert_array_equal(hpmoe.unpermute(rows, places).asnumpy(),
                                  unpermuted(rows.asnumpy(), places.asnumpy(), 1, 0, None).astype(x.dtype))


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_padded_rows_are_those_that_the_indices_name(dtype):
    x, _, _ = example(dtype=dtype)
    index = np.array([[0, 3], [3, 6], [3, 1]], np.int32)
    probs = np.arange(1, 7).reshape(3, 2).astype(x.dtype)
    rows, picked = hpmoe.permute(Tensor(x), Tensor(index), padded_mode=True)
    np.testing.assert_array_equal(rows.asnumpy(), x[index.reshape(-1)])

    def sums(rows, factors):
        out = np.zeros(x.shape)
        np.add.at(out, index.reshape(-1), rows * factors.reshape(-1, 1))
        return out

    back = hpmoe.unpermute(rows, picked, Tensor(probs), True, x.shape)
    products = (wide(rows.asnumpy())[0] * wide(probs)[0].reshape(-1, 1))
    close(back, sums(products, np.ones(6)), dtype)
    grad = np.random.default_rng(1).standard_normal(rows.shape).astype(x.dtype)
    (d_x,) = grads_of(lambda x: hpmoe.permute(x, Tensor(index), padded_mode=True)[0], grad.astype(np.float32), x)
    close(d_x, sums(*wide(grad), np.ones(6)), dtype)
    plain = hpmoe.unpermute(rows, picked, padded_mode=True, restore_shape=x.shape)
    close(plain, sums(*wide(rows.asnumpy()), np.ones(6)), dtype)


def routed(x, ids, experts, capacity):
    """Rows and their places, entry after entry."""
    out, places, used = np.zeros((experts, capacity, x.shape[1])), np.full(ids.size, -1), [0] * experts
    for i, e in enumerate(ids.reshape(-1)):
        if used[e] < capacity:
            out[e, used[e]], places[i] = x[i // ids.shape[1]], e * capacity + used[e]
            used[e] += 1
    return out, places


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_init_routing_drops_what_finds_no_place(dtype):
    x, ids, _ = example(dtype=dtype)
    want, places = routed(x, ids, 6, 4)
    assert (places == -1).any() and not want[5].any()

    def rows_of(x):
        return hpmoe.init_routing(x, Tensor(ids), 0, 4, 6, 1)[0]

    rows, got, counts = hpmoe.init_routing(Tensor(x), Tensor(ids), 0, 4, 6, 1, "count")
    np.testing.assert_array_equal(rows.asnumpy(), want.astype(x.dtype))
    np.testing.assert_array_equal(got.asnumpy(), places)
    assert counts.asnumpy().tolist() == np.bincount(ids.reshape(-1), minlength=6).tolist()
    grad = np.random.default_rng(1).standard_normal(want.shape).astype(x.dtype)
    (d_x,) = grads_of(rows_of, grad.astype(np.float32), x)
    close(d_x, unpermuted(*wide(grad.reshape(-1, 5)), places, 3, 0, None), dtype)


@pytest.mark.parametrize("active", [0, 5, 999])
def test_init_routing_keeps_the_first_rows(active):
    x, ids, _ = example()
    rows, got, counts = hpmoe.init_routing(Tensor(x), Tensor(ids), active, expert_num=4, counts="cumsum")
    kept = min(active or ids.size, ids.size)
    np.testing.assert_array_equal(rows.asnumpy(), permuted(x, places_of(ids), 3, 0, kept).astype(np.float32))
    np.testing.assert_array_equal(got.asnumpy(), places_of(ids))
    assert counts.asnumpy().tolist() == np.cumsum(np.bincount(ids.reshape(-1), minlength=4)).tolist()
    assert hpmoe.init_routing(Tensor(x), Tensor(ids))[2] is None


# The same in compiled graphs and traced, to the bit.

def there_and_back(x, ids, probs):
    rows, places, moved = hpmoe.permute_with_ep(x, ids, probs, range=(4, 15))
    return hpmoe.unpermute_with_ep(rows * rows, places, probs, (4, 15)), moved


def all_there_and_back(x, ids, probs):
    rows, places = hpmoe.permute(x, ids, num_out_tokens=15)
    return hpmoe.unpermute(rows * rows, places, probs), rows


def padded_there_and_back(x, ids, probs):
    rows, places = hpmoe.permute(x, ids, padded_mode=True)
    return hpmoe.unpermute(rows * rows, places, probs, padded_mode=True, restore_shape=(7, 5)), rows


def with_capacity(x, ids, probs):
    rows, places, counts = hpmoe.init_routing(x, ids, expert_capacity=4, expert_num=4, drop_pad_mode=1, counts="count")
    return rows * rows, counts.astype(ms.float32)


@pytest.mark.parametrize("f", [there_and_back, all_there_and_back, padded_there_and_back, with_capacity])
def test_graphs_and_traces_compute_the_same(f):
    arrays = example()
    eager = f(*map(Tensor, arrays))
    for got, want in zip(hpmoe.evaluate(hpmoe.trace(f, *arrays), [arrays])[0], eager, strict=True):
        np.testing.assert_allclose(got, want.asnumpy(), rtol=1e-6)

    def loss(x, ids, probs):
        first, second = f(x, ids, probs)
        return (first * first).sum() + second.sum()

    want = ms.grad(loss, (0, 2))(*map(Tensor, arrays))
    for got, grad in zip(ms.jit(ms.grad(loss, (0, 2)))(*map(Tensor, arrays)), want, strict=True):
        np.testing.assert_allclose(got.asnumpy(), grad.asnumpy(), rtol=1e-5, atol=1e-6)


def test_calls_repeat_to_the_bit():
    x, ids, probs = example(tokens=3000, top_k=8, cols=200, experts=64)

    def run():
        rows, places = hpmoe.permute(Tensor(x), Tensor(ids))
        return hpmoe.unpermute(rows, places, Tensor(probs)).asnumpy().tobytes()

    assert run() == run()


def test_experts_of_any_number_and_wide_ids():
    x, _, _ = example(tokens=300, cols=2)
    ids = np.random.default_rng(0).integers(-2**31, 2**31 - 1, (300, 2)).astype(np.int32)
    for given in (ids, ids.astype(np.int64) * 2**20):
        np.testing.assert_array_equal(hpmoe.permute(Tensor(x), Tensor(given))[1].asnumpy(), places_of(ids))


X, IDS = Tensor(np.zeros((4, 3), np.float32)), Tensor(np.zeros((4, 2), np.int32))
PLACES = Tensor(np.arange(8, dtype=np.int32))


@pytest.mark.parametrize("call, text", {
    "K": (lambda: hpmoe.permute(X, Tensor(np.zeros((4, 513), np.int32))), "top_k is 513; it must be in 1..512"),
    "entries": (lambda: hpmoe.permute(Tensor(np.zeros((2**20, 1), np.float32)), Tensor(np.zeros((2**20, 16), np.int32))),
                "indices is 16777216 entries; it must be at most 16777214"),
    "K of probs": (lambda: hpmoe.unpermute(X, PLACES, Tensor(np.zeros((4, 513), np.float32))), "top_k is 513"),
    "range": (lambda: hpmoe.permute_with_ep(X, IDS, None, (3, 9)), "range is \\(3, 9\\)"),
    "turned": (lambda: hpmoe.permute_with_ep(X, IDS, None, (3, 2)), "range is \\(3, 2\\)"),
    "rows of range": (lambda: hpmoe.unpermute_with_ep(X, PLACES, None, (1, 3)), "permuted is of shape \\(4, 3\\)"),
    "probs": (lambda: hpmoe.permute_with_ep(X, IDS, X), "probs is of shape \\(4, 3\\)"),
    "floats": (lambda: hpmoe.permute(X.astype(ms.int32), IDS), "tokens is of Int32"),
    "id": (lambda: hpmoe.init_routing(X, IDS + 2, 0, 1, 2, 1), "expert_idx\\[0, 0\\] is 2; it must be an expert id in 0..1"),
    "mode": (lambda: hpmoe.init_routing(X, IDS, drop_pad_mode=2), "drop_pad_mode is 2"),
    "capacity": (lambda: hpmoe.init_routing(X, IDS, 0, 5, 2, 1), "expert_capacity is 5; it must be an int in 1..4"),
    "counts": (lambda: hpmoe.init_routing(X, IDS, counts="all"), "counts is 'all'"),
    "number": (lambda: hpmoe.init_routing(X, IDS, counts="count"), "expert_num is 0"),
    "places": (lambda: hpmoe.init_routing(X, IDS, 0, 4, 2**23, 1), "expert_num \\* expert_capacity is 33554432"),
    "active": (lambda: hpmoe.init_routing(X, IDS, -1), "active_num is -1"),
    "padded ids": (lambda: hpmoe.permute(X, IDS + 4, padded_mode=True), "indices is with \\[4\\]; it must be in 0..3"),
    "restored": (lambda: hpmoe.unpermute(X, PLACES, restore_shape=(4, 3)), "restore_shape is \\(4, 3\\)"),
    "shape": (lambda: hpmoe.unpermute(X, PLACES[:4], None, True, (4, 4)), "restore_shape is \\(4, 4\\)"),
    "not a sort": (lambda: ms.grad(lambda r: hpmoe.unpermute(r, PLACES * 0).sum())(X), "naming row 0 twice"),
}.values())
def test_what_does_not_fit_is_named(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()


def test_a_gradient_of_the_gradient_is_refused():
    def first(x):
        return ms.grad(lambda x: (hpmoe.permute(x, IDS)[0] ** 2).sum())(x).sum()
    with pytest.raises(ProgramError, match="a gradient is taken of its gradient"):
        ms.grad(first)(X)


@pytest.mark.parametrize("f, use", [
    (lambda x, i: hpmoe.permute(x, i)[0], "hpmoe.dispatch, or hpmoe.exchange"),
    (lambda x, i: hpmoe.init_routing(x, i, 0, 2, 3, 1)[0], "hpmoe.dispatch with a capacity_factor"),
    (lambda x, i: hpmoe.init_routing(x, i, expert_num=3, counts="count")[2], "hpmoe.router.tokens_per_expert"),
    (lambda x, i: hpmoe.unpermute(x, i.reshape(-1)), "hpmoe.combine"),
])
def test_tiles_say_what_to_write_instead(f, use):
    with pytest.raises(hpmoe.TransformError, match=use):
        hpmoe.tile_partition(f).lower(hpmoe.Aval((8, 3), "float32"), hpmoe.Aval((8, 1), "int32"))
