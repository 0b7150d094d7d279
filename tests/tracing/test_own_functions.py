"""Functions of a user's own: padding in them, shapes of received rows, what they close over, and how they are called."""

import mindspore as ms
import numpy as np
import pytest
from helpers import assert_close, fused, relative_error, stages
from mindspore import mint

import hpmoe

RNG = np.random.default_rng(0)
T, H, E, K = 5, 4, 3, 2


def normal(*shape):
    return ms.Tensor(RNG.standard_normal(shape).astype(np.float32))


def expert_ids(tokens, top_k=K):
    return ms.Tensor(np.argsort(RNG.random((tokens, E)), axis=-1)[:, :top_k].astype(np.int32))


def with_rank(*tensors):
    return [x.unsqueeze(0) for x in tensors]


# Padding: what has one row for each token is found from the function, not from the backward program alone.


def scaled(x, scale):
    return 1.5 - x / (scale * scale + 1)


@pytest.mark.parametrize("num_tokens", [0, 1, 3, T])
@pytest.mark.parametrize("stage", ["plain", "queues", "blocking", "fused"])
def test_a_backward_without_a_route_knows_its_tokens(stage, num_tokens):
    layer = hpmoe.spmd(stages()[stage](scaled), hpmoe.Mesh(1))
    x, scale = normal(1, T, H), normal(1, 1, H)
    dx, dscale = ms.grad(lambda *a: layer(*a, num_tokens=[num_tokens]).sum(), (0, 1))(x, scale)
    x, s = x.asnumpy()[0, :num_tokens].astype(np.float64), scale.asnumpy().astype(np.float64)
    want = np.zeros((1, T, H))
    want[0, :num_tokens] = -1 / (s * s + 1)
    assert_close([dx.asnumpy(), dscale.asnumpy()],
                 [want, (x[None] * 2 * s / (s * s + 1) ** 2).sum(1, keepdims=True)])


@pytest.mark.parametrize("stage", ["plain", "tiles", "fused"])
def test_the_gradient_of_a_scalar_on_a_rank_without_tokens(stage):
    layer = hpmoe.spmd(stages()[stage](lambda x, scale: x * scale), hpmoe.Mesh(2))
    x, scale = normal(2, 1, H), normal(2)
    grad = ms.grad(lambda s: layer(x, s, num_tokens=[0, 1]).sum())(scale)
    assert_close([grad.asnumpy()], [[0, x.asnumpy()[1].sum()]])


@pytest.mark.parametrize("stage", ["plain", "tiles", "fused"])
def test_a_table_of_as_many_rows_as_tokens_is_no_padding(stage):
    def embedded(x, ids, positions, table, weight):
        rows, route = hpmoe.dispatch(x + table[positions], ids, num_local_experts=E)
        return hpmoe.combine(hpmoe.grouped_matmul(rows, weight, route), route)

    args = normal(T, H), expert_ids(T), ms.Tensor(np.arange(T)[::-1].astype(np.int32)), normal(T, H), normal(E, H, H)
    layer = hpmoe.spmd(stages()[stage](embedded), hpmoe.Mesh(1))
    x, ids, positions, table, weight = (a.asnumpy() for a in args)
    want = np.stack([sum((x + table[positions])[t] @ weight[e] for e in ids[t]) for t in range(T)])
    want[3:] = 0
    assert_close([layer(*with_rank(*args), num_tokens=[3]).asnumpy()[0]], [want])
    if stage != "plain":
        return  # the gradient of a table sums rows into their places, which no tile does
    grad = ms.grad(lambda *a: layer(*a, num_tokens=[3]).sum(), 3)(*with_rank(*args))
    want = np.zeros((T, H))
    for t in range(3):
        want[positions[t]] = sum(weight[e].sum(1) for e in ids[t])
    assert_close([grad.asnumpy()[0]], [want])


def test_padding_of_tokens_in_groups_is_left_out_of_sums():
    def grouped_softmax(x):
        return x + mint.softmax(x.reshape(-1, 2, H // 2), dim=-1).reshape(-1, H).sum(0)

    x = normal(1, T, H)
    out = hpmoe.spmd(grouped_softmax, hpmoe.Mesh(1))(x, num_tokens=[3]).asnumpy()[0]
    x = x.asnumpy()[0, :3].astype(np.float64)
    powers = np.exp(x.reshape(-1, 2, H // 2))
    assert_close([out[:3]], [x + (powers / powers.sum(-1, keepdims=True)).reshape(-1, H).sum(0)])


def test_tiles_refuse_routes_of_different_numbers_of_tokens():
    def two(x, y, ids_x, ids_y):
        return [hpmoe.combine(*hpmoe.dispatch(a, ids, num_local_experts=E)) for a, ids in ((x, ids_x), (y, ids_y))]

    args = normal(T, H), normal(9, H), expert_ids(T), expert_ids(9)
    assert_close([o.asnumpy() for o in hpmoe.spmd(two, hpmoe.Mesh(1))(*with_rank(*args))],
                 [[K * args[0].asnumpy()], [K * args[1].asnumpy()]])
    with pytest.raises(hpmoe.TransformError, match="routes 9 tokens after a route of 5"):
        hpmoe.tile_partition(two)(*args)


# Shapes of received rows.

def through_rows(change):
    def layer(x, ids, weight):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=E)
        return hpmoe.combine(hpmoe.grouped_matmul(change(rows), weight, route), route)
    return layer


@pytest.mark.parametrize("change", [lambda r: r.unsqueeze(0)[0] * 2, lambda r: r.reshape(-1, 2, 2).reshape(-1, 4),
                                    lambda r: mint.tile(r, (1, 2))[:, 1:5], lambda r: r.unsqueeze(1).sum(-1) * r,
                                    lambda r: mint.tile(r.reshape(-1, 2, 2).sum(-1), (1, 2))],
                         ids=["unsqueeze", "groups", "tile", "sum", "sums of groups"])
@pytest.mark.parametrize("stage", ["tiles", "fused"])
def test_received_rows_in_another_shape_and_back(change, stage):
    f, args = through_rows(change), (normal(T, H), expert_ids(T), normal(E, H, H))
    assert_close([stages()[stage](f)(*args).asnumpy()], [f(*args).asnumpy()])


# Closed-over tensors.

@pytest.mark.parametrize("ep_size", [1, 2])
def test_the_gradient_of_a_captured_scalar(ep_size):
    scale = ms.Parameter(ms.Tensor(0.5, ms.float32), name="scale")
    layer, x = hpmoe.spmd(fused()(lambda x: x * scale), hpmoe.Mesh(ep_size)), normal(ep_size, T, H)
    _, (grad,) = ms.value_and_grad(lambda x: layer(x).sum(), None, [scale])(x)
    assert grad.shape == () and relative_error(grad.asnumpy(), x.asnumpy().sum()) < 1e-5


def test_the_gradient_of_a_captured_tensor_without_dimensions():
    holder, x = {}, normal(T, H)
    f = fused()(lambda x: x * holder["scale"])

    def loss(scale):
        holder["scale"] = scale
        return f(x).sum()

    scale = ms.Tensor(2.0, ms.float32)
    assert relative_error(loss(scale).asnumpy(), 2 * x.asnumpy().sum()) < 1e-5
    assert relative_error(ms.grad(loss)(scale).asnumpy(), x.asnumpy().sum()) < 1e-5


@pytest.mark.parametrize("derive", [lambda w: w.T, lambda w: w * 2, lambda w: w[:, :2] @ w[:2], lambda w: w],
                         ids=["T", "mul", "slice", "itself"])
def test_the_gradient_of_what_is_computed_from_a_captured_tensor(derive):
    holder = {}
    f = fused()(lambda x: x @ derive(holder["w"]))

    def loss(w, layer):
        holder["w"] = w
        return (layer(normal_x) ** 2).sum()

    normal_x, w = normal(T, H), normal(H, H)
    want = ms.grad(lambda w: loss(w, lambda x: x @ derive(holder["w"])))(w).asnumpy()
    for _ in range(3):
        assert_close([ms.grad(lambda w: loss(w, f))(w).asnumpy()], [want])


# Calls.

def keyword_only(x, *, weight, scale=2.0):
    return x @ weight * scale


@pytest.mark.parametrize("stage", ["tiles", "fused"])
def test_keyword_only_arguments(stage):
    f, x, weight = stages()[stage](keyword_only), normal(T, H), normal(H, H)
    assert_close([f(x, weight=weight).asnumpy(), f(x, weight=weight, scale=3.0).asnumpy()],
                 [keyword_only(x, weight=weight).asnumpy(), keyword_only(x, weight=weight, scale=3.0).asnumpy()])
    grad = ms.grad(lambda w: f(x, weight=w).sum())(weight)
    assert_close([grad.asnumpy()], [2 * x.asnumpy().sum(0)[:, None] * np.ones((1, H))])
    assert "weight:f32[4,4]" in str(hpmoe.trace(keyword_only, x, weight=weight))
    assert f.lower(x, weight=weight).provenance
    assert hpmoe.spmd(f, hpmoe.Mesh(1)).lower(x.unsqueeze(0), weight=weight.unsqueeze(0)).provenance


def test_equal_arguments_of_other_types_are_traced_again():
    f = hpmoe.tile_partition(lambda x, n: x * n if isinstance(n, float) else x + n)
    x = normal(T, H)
    for n in (1.0, 1, True):
        assert_close([f(x, n).asnumpy()], [x.asnumpy() * n if isinstance(n, float) else x.asnumpy() + n])


def test_calls_that_do_not_fit_name_the_argument():
    f = hpmoe.tile_partition(keyword_only)
    with pytest.raises(TypeError, match="keyword_only: missing a required .*argument: 'weight'"):
        f(normal(T, H))
    with pytest.raises(hpmoe.ArgumentError, match="keyword_only: scale is of type set; it must be an array, a tuple"):
        f(normal(T, H), weight=normal(H, H), scale={1, 2})
    with pytest.raises(hpmoe.TransformError, match="chain: transform 1 is an int; it must be a function from callable"):
        hpmoe.chain(hpmoe.tile_partition, 3)
    with pytest.raises(hpmoe.TransformError, match="f is under spmd, .*; spmd is the outermost"):
        hpmoe.tile_partition(hpmoe.spmd(keyword_only, hpmoe.Mesh(1)))
    with pytest.raises(hpmoe.TransformError, match=r"has f32\[4,0\], rows of no columns"):
        hpmoe.tile_partition(lambda x, w: x @ w)(normal(T, H), normal(H, 0))


@hpmoe.transform
def without_outputs(ir):
    return ir.replace(outputs=())


def test_a_transform_that_loses_an_output_is_refused():
    for stage in (without_outputs, lambda f: without_outputs(hpmoe.tile_partition(f))):
        with pytest.raises(hpmoe.TransformError, match="without_outputs: the rewrite returned 0 outputs; it must return as"):
            stage(lambda x: x + 1)(normal(T, H))


def test_parameters_named_like_run_options_reach_the_function():
    x = ms.Tensor(np.ones((4, 2), np.float32))
    staged = hpmoe.tile_partition(lambda x, seed=1.0, num_tokens=1.0: x * seed + num_tokens)
    assert staged(x, seed=3.0, num_tokens=2.0).asnumpy().tolist() == [[5.0, 5.0]] * 4
