"""Choosing and ordering operations of routers: references, tiles and gradients against NumPy and JAX."""

import jax
import mindspore as ms
import numpy as np
import optree
import pytest
from ascend_helpers import npu
from helpers import stages
from jax import numpy as jnp
from mindspore import Tensor, mint, ops
from router_runs import traced

import hpmoe
from hpmoe import ShapeDtypeStruct
from hpmoe.kernels.ascendc.rules import check_flow
from hpmoe.primitives.columns import take_columns
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import ArgumentError, LaunchError

F = mint.nn.functional
T, E, K = 11, 9, 4
NAN, INF = np.nan, np.inf


def staged(stage, **options):
    return traced if stage == "program" else stages(**options)[stage]


def arrays(dtype="float32", seed=0):
    """Rows [T, E] with equals, infinities and NaN, and indices [T, K]."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((T, E)).astype(np.float32)
    x[:, 3], x[1], x[2, 4:], x[3, :2] = x[:, 4], 0.0, NAN, (INF, -INF)
    x[4] = np.round(x[4])
    return x.astype(numpy_dtype(dtype)), rng.integers(0, E, (T, K)).astype(np.int32)


def by_hand(row, k, largest):
    """Stable selection, one at a time: NaN above everything, the smaller index first."""
    left, out = list(range(len(row))), []
    for _ in range(k):
        def better(i, j):
            a, b = (row[i], row[j]) if largest else (row[j], row[i])
            return (np.isnan(a) and not np.isnan(b)) or a > b
        best = left[0]
        for i in left[1:]:
            best = i if better(i, best) else best
        out.append(best)
        left.remove(best)
    return out


CASES = {
    "topk": lambda x, i: mint.topk(x, 3),
    "topk of all": lambda x, i: mint.topk(x, E),
    "smallest": lambda x, i: mint.topk(x, 5, dim=-1, largest=False, sorted=False),
    "old topk": lambda x, i: ops.topk(x, 2),
    "method": lambda x, i: x.topk(1, -1),
    "sort": lambda x, i: mint.sort(x),
    "sort down": lambda x, i: mint.sort(x, dim=1, descending=True, stable=True),
    "old sort": lambda x, i: ops.sort(x, axis=1, descending=True),
    "argsort": lambda x, i: mint.argsort(x, descending=True),
    "gather": lambda x, i: mint.gather(x, 1, i),
    "gather_elements": lambda x, i: ops.gather_elements(x, 1, i),
    "gather of integers": lambda x, i: mint.gather(i, 1, i // 3),
    "by topk": lambda x, i: mint.gather(x, 1, mint.topk(x, 2)[1]),
    "scatter_add": lambda x, i: mint.zeros_like(x).scatter_add(1, i, mint.gather(x, 1, i)),
    "scatter": lambda x, i: (x.scatter(1, i, 2.0), mint.scatter(x, 1, i[:, :1], x[:, 2:3]), (x > 0).scatter(1, i, True)),
    "numbers by choices": lambda x, i: mint.sum(x, 0)[i],
    "cumsum": lambda x, i: mint.cumsum(x, 1),
    "integer cumsum": lambda x, i: mint.cumsum(i, -1),
    "old cumsum": lambda x, i: ops.CumSum(True, True)(x, 1),
    "round": lambda x, i: mint.round(x * 2),
    "max": lambda x, i: mint.max(x, dim=1, keepdim=True),
    "min": lambda x, i: mint.min(x, dim=1, keepdim=True),
    "argmax": lambda x, i: mint.argmax(x, 1, True),
    "one_hot": lambda x, i: F.one_hot(i[:, 0], E),
    "old one_hot": lambda x, i: ops.one_hot(i[:, 1], 5, 2.0, -1.0),
    "one_hot of choices": lambda x, i: (F.one_hot(i.astype(ms.int64), E).astype(ms.float32).sum(1),
                                        ops.one_hot(i, E, 1.0, 0.0)),
    "logsumexp": lambda x, i: mint.logsumexp(x, 1, True),
    "integers": lambda x, i: (i * 3 - 7, i // 2, (i - 4) // 3, (i - 4) % 3, -i, mint.abs(i - 4), mint.maximum(i, 4)),
    "wide integers": lambda x, i: i.astype(ms.int64) * 1000003 * 1000003,
    "comparisons": lambda x, i: (i == 3, i != 3, i < 3, i >= 4, x > 0, mint.logical_xor(i > 2, i > 5)),
    "masked": lambda x, i: (mint.where((i > 2) & (i < 7), i, -1), mint.where(i > 2, True, i < 1),
                            (i > 2).masked_fill(i > 5, False)),
    "casts": lambda x, i: (i.astype(ms.float32) / 2, (x * 3).astype(ms.int32), (x * 3).astype(ms.int64), x.astype(ms.bool_)),
    "sums": lambda x, i: (mint.sum(i, 1, True), mint.sum(i, 0), mint.sum(i == 2, 0), mint.amax(i, 1, True)),
    "columns": lambda x, i: mint.cat([i[:, 1:], i[:, :1]], dim=-1),
    "finite": lambda x, i: (mint.isfinite(x), mint.isinf(x)),
}


def ours(name, x, i, run):
    return optree.tree_leaves(run(CASES[name])(Tensor(x), Tensor(i)))


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("name, dtype", [
    (name, dtype) for i, name in enumerate(CASES)
    for dtype in ["float32", *[("bfloat16", "float16")[i // 2 % 2]] * (i % 2)]])
def test_every_level_computes_the_same_in_mindspores_dtypes(name, dtype):
    """The plain program, tiles in any order and the kernel; bit by bit but for sums, whose order differs."""
    x, i = arrays(dtype)
    program = hpmoe.trace(CASES[name], x, i)
    results = [ours(name, x, i, staged(stage, rows=4, cols=4)) for stage in ("program", "tiles", "fused")]
    for var, *values in zip(program.outputs, *results, strict=True):
        wanted = [v.astype(ms.float32).asnumpy() if v.dtype in (ms.bfloat16,) else v.asnumpy() for v in values]
        assert {str(v.dtype).lower() for v in values} == {var.aval.dtype} and wanted[0].shape == var.aval.shape
        for got in wanted[1:]:
            np.testing.assert_allclose(got, wanted[0], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, E])
def test_the_order_is_that_of_a_selection_by_hand(k, largest):
    x, i = arrays()
    values, ids = (v.asnumpy() for v in stages(rows=4)["fused"](lambda x: mint.topk(x, k, largest=largest))(Tensor(x)))
    assert ids.dtype == np.int64 and ids.tolist() == [by_hand(row, k, largest) for row in x]
    np.testing.assert_array_equal(values, np.take_along_axis(x, ids, 1))


def test_wide_rows_and_many_choices():
    x = np.random.default_rng(1).integers(-50, 50, (6, 1024)).astype(np.float32)
    ids = stages(rows=4)["fused"](lambda x: mint.topk(x, 16)[1])(Tensor(x)).asnumpy()
    np.testing.assert_array_equal(ids, np.argsort(-x, axis=1, kind="stable")[:, :16])


def test_mindspores_own_results_where_its_cpu_has_them():
    x, i = (Tensor(a) for a in arrays(seed=3))
    x = Tensor(np.nan_to_num(x.asnumpy(), posinf=3, neginf=-3))
    for f in (lambda x, i: mint.gather(x, 1, i), lambda x, i: mint.max(x, dim=1)[0], lambda x, i: mint.min(x, dim=1)[0],
              lambda x, i: ops.cumsum(x, 1), lambda x, i: ops.sort(x, axis=1)[0], lambda x, i: ops.topk(x, 3)[0],
              lambda x, i: i // 2, lambda x, i: (i - 4) % 3, lambda x, i: mint.round(x), lambda x, i: ops.one_hot(i, 5),
              lambda x, i: ops.logsumexp(x, 1)):
        np.testing.assert_allclose(traced(f)(x, i).asnumpy(), f(x, i).asnumpy(), rtol=1e-6)


def test_another_dimension_is_turned_and_tiles_refuse_it():
    x, _ = arrays(seed=5)
    x = np.nan_to_num(x, posinf=3, neginf=-3)
    run = lambda f: [o.asnumpy() for o in optree.tree_leaves(traced(f)(Tensor(x)))]  # noqa: E731
    np.testing.assert_array_equal(run(lambda x: mint.topk(x, 2, dim=0))[1], np.argsort(-x, axis=0, kind="stable")[:2])
    np.testing.assert_allclose(run(lambda x: mint.cumsum(x, 0))[0], np.cumsum(x, 0), rtol=1e-6)
    np.testing.assert_array_equal(run(lambda x: mint.sort(x[:, 0]))[1], np.argsort(x[:, 0], kind="stable"))
    with pytest.raises(hpmoe.TransformError, match=r"\(transpose\) of <lambda> transposes .* and mixes rows"):
        hpmoe.tile_partition(lambda x: mint.topk(x, 2, dim=0)).lower(x)


GRADIENTS = {
    "topk": (lambda x, i: mint.topk(x, 3)[0], lambda x, i: jax.lax.top_k(x, 3)[0]),
    "smallest": (lambda x, i: mint.topk(x, 3, largest=False)[0], lambda x, i: jnp.sort(x, axis=1)[:, :3]),
    "sort": (lambda x, i: mint.sort(x)[0], lambda x, i: jnp.sort(x, axis=1)),
    "gather": (lambda x, i: mint.gather(x, 1, i), lambda x, i: jnp.take_along_axis(x, i, 1)),
    "scatter_add": (lambda x, i: x.scatter_add(1, i, mint.gather(x * x, 1, i)),
                    lambda x, i: x.at[jnp.arange(T)[:, None], i].add(jnp.take_along_axis(x * x, i, 1))),
    "scatter": (lambda x, i: (x * x).scatter(1, i[:, :1], x[:, 2:3] * 3),
                lambda x, i: (x * x).at[jnp.arange(T)[:, None], i[:, :1]].set(x[:, 2:3] * 3)),
    "numbers by choices": (lambda x, i: x.sum(0)[i], lambda x, i: x.sum(0)[i]),
    "cumsum": (lambda x, i: mint.cumsum(x, 1), lambda x, i: jnp.cumsum(x, 1)),
    "reversed cumsum": (lambda x, i: ops.CumSum(True, True)(x, 1),
                        lambda x, i: jnp.cumsum(x[:, ::-1], 1)[:, ::-1] - x),
    "logsumexp": (lambda x, i: mint.logsumexp(x * 40, 1, True), lambda x, i: jax.nn.logsumexp(x * 40, 1, keepdims=True)),
    "round": (lambda x, i: x * mint.round(x), lambda x, i: x * jax.lax.stop_gradient(jnp.round(x))),
    "max": (lambda x, i: mint.max(x, dim=1, keepdim=True)[0], lambda x, i: jax.lax.top_k(x, 1)[0]),
    "chosen softmax": (lambda x, i: mint.gather(mint.softmax(x, -1), 1, mint.topk(x, 2)[1]),
                       lambda x, i: jax.lax.top_k(jax.nn.softmax(x, -1), 2)[0]),
}


@pytest.mark.parametrize("name, stage", [
    (name, stage) for i, name in enumerate(GRADIENTS) for stage in ["fused", *["program"] * (i % 3 == 0)]])
def test_gradients_are_those_of_jax(name, stage):
    rng = np.random.default_rng(7)
    x, i = rng.standard_normal((T, E)).astype(np.float32), rng.integers(0, E, (T, K)).astype(np.int32)
    f, reference = GRADIENTS[name]
    c = np.asarray(jax.eval_shape(reference, x, i).shape)
    c = rng.standard_normal(c).astype(np.float32)
    run = staged(stage, rows=4, cols=4)(lambda x, i, c: mint.sum(f(x, i) * c))
    got = ms.grad(run)(Tensor(x), Tensor(i), Tensor(c)).asnumpy()
    want = jax.grad(lambda x: (reference(x, i) * c).sum())(x)
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


def test_of_equals_the_smaller_index_has_the_gradient():
    x = Tensor(np.array([[1.0, 2.0, 2.0, 0.0]], np.float32))
    for stage in ("program", "fused"):
        grad = ms.grad(staged(stage)(lambda x: mint.sum(mint.topk(x, 1)[0])))(x)
        assert grad.asnumpy().tolist() == [[0.0, 1.0, 0.0, 0.0]]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, for infinities
def test_logsumexp_of_infinities():
    x = np.array([[-INF, -INF], [INF, 0.0], [-INF, 2.0]], np.float32)
    for stage in ("program", "fused"):
        assert staged(stage)(lambda x: mint.logsumexp(x, 1))(Tensor(x)).asnumpy().tolist() == [-INF, INF, 2.0]


def test_negative_indices_count_from_the_end_others_are_errors():
    x, i = arrays()
    f = stages(rows=4)["fused"](lambda x, i: mint.gather(x, 1, i))
    np.testing.assert_array_equal(f(Tensor(x), Tensor(i - E)).asnumpy(), f(Tensor(x), Tensor(i)).asnumpy())
    with pytest.raises(LaunchError, match="index"):
        f(Tensor(x), Tensor(i + E))


def test_rows_past_those_of_tokens_do_not_exist():
    """Padding is neither counted nor written."""
    x, i = arrays()
    f = lambda x: mint.topk(mint.softmax(x, -1), 2)  # noqa: E731
    program, flow = hpmoe.trace(f, x), hpmoe.tile_partition(f, rows=4).lower(x)
    for a, b in zip(hpmoe.interpret(program, [[x]], num_tokens=[5])[0], hpmoe.interpret(flow, [[x]], num_tokens=[5])[0],
                    strict=True):
        np.testing.assert_allclose(a[:5], b[:5], rtol=1e-6)
        assert not a[5:].any() and not b[5:].any()


def test_an_npu_refuses_wide_rows_by_name():
    for f, words in ((lambda x: mint.topk(x, 2)[0], "top_k: the widest of its rows, in bytes, is 8196"),
                     (lambda x: mint.cumsum(x, 1), "cumsum: the widest of its rows, in bytes, is 8196")):
        flow = hpmoe.assign_queues(hpmoe.tile_partition(f, rows=4), machine=npu())
        check_flow(flow.lower(ShapeDtypeStruct((T, 2048), "float32")), "ascend")
        with pytest.raises(ArgumentError, match=words):
            check_flow(flow.lower(ShapeDtypeStruct((T, 2049), "float32")), "ascend")


def test_ids_that_only_go_through_int64_are_not_cast():
    text = str(hpmoe.trace(lambda x: mint.topk(x, 2)[1].astype(ms.int32), ShapeDtypeStruct((T, E), "float32")))
    assert "cast" not in text and "top_k[k=2 largest=True]" in text


def test_one_row_of_indices_serves_all_rows():
    """hpmoe.route expands groups to their experts like this; checks its gradient, too."""
    x, index = np.random.default_rng(2).standard_normal((T, E)).astype(np.float32), np.array([2, 2, 0, E - 1, -1], np.int32)
    for stage in ("program", "fused"):
        f = staged(stage, rows=4)(lambda x: take_columns(x, Tensor(index)))
        np.testing.assert_array_equal(f(Tensor(x)).asnumpy(), x[:, index])
        grad = ms.grad(staged(stage, rows=4)(lambda x: mint.sum(mint.square(take_columns(x, Tensor(index))))))(Tensor(x))
        np.testing.assert_allclose(grad.asnumpy(), jax.grad(lambda x: (x[:, index] ** 2).sum())(x), rtol=1e-6)
