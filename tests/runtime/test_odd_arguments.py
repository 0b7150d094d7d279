"""Arguments of odd types and sizes that are right: what a call computes from them is what the plain function does."""

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_close, numpy_moe_ffn, run_spmd, stages
from mindspore import Tensor, mint

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, overlap_comm, replicate_experts, spmd, tile_partition
from hpmoe.token_ops import permute

RNG = np.random.default_rng(0)
VALUES = RNG.standard_normal((6, 4)).astype(np.float32)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("size", [np.int64(3), np.int8(3), np.uint16(3)])
def test_numpy_integers_are_sizes(size):
    x = ShapeDtypeStruct((6, 4), "float32")
    text = str(tile_partition(lambda x: x * 2.0, rows=size, cols=size).lower(x))
    assert text == str(tile_partition(lambda x: x * 2.0, rows=3, cols=3).lower(x))
    assert Mesh(size) == Mesh(3) and repr(Mesh(size)) == "Mesh(ep=3)"
    assert hpmoe.cpu(size).num_queues == 3 and hpmoe.cpu(ep_size=size).num_queues == hpmoe.cpu(ep_size=3).num_queues
    assert hpmoe.machines.ascend_a3.replace(num_aic=size).num_aic == 3
    layer = Layer(ep=2, T=3)
    out = spmd(tile_partition(hpmoe.moe_ffn, rows=size), Mesh(2))(*layer.arguments(), num_tokens=[size, np.int32(1)])
    assert_close([out.asnumpy()], [numpy_moe_ffn(layer.arguments(), layer.cotangent(), (3, 1))[0]])
    assert permute(Tensor(VALUES), Tensor(np.zeros((6, 1), np.int32)), size)[0].shape == (3, 4)
    replicate_experts(hpmoe.moe_ffn, loads=[1, 2], replicas=size, min_load=size)
    overlap_comm(tile_partition(lambda x: x), put_cols=size)


@pytest.mark.parametrize("layer", [Layer(ep=1, T=3, E=1000, K=1), Layer(ep=3, T=2, H=1, I=1, E=3, K=3),
                                   Layer(ep=7, T=3, E=14, K=3)])
@pytest.mark.parametrize("sizes", [{"rows": 2**30, "cols": 2**30, "put_cols": 2**30}, {"rows": 1, "cols": 1, "put_cols": 1}],
                         ids=["huge", "one"])
def test_tiles_of_any_size(layer, sizes):
    args, cotangent = layer.arguments(), layer.cotangent()
    want, grads = numpy_moe_ffn(args, cotangent)
    outs, got = run_spmd(stages(**sizes)["fused"](hpmoe.moe_ffn), layer.ep, args, [cotangent])
    assert_close([*outs, *got], [want, *grads])


def test_a_decorated_method_is_one_of_its_instance():
    class Scale(ms.nn.Cell):
        def __init__(self, weight):
            super().__init__()
            self.weight = ms.Parameter(Tensor(weight), name="weight")

        @stages()["fused"]
        def construct(self, x, power=1):
            return x * self.weight ** power

    x, cells = Tensor(VALUES), [Scale(normal(4)), Scale(normal(4))]
    for cell in cells:
        weight = cell.weight.asnumpy()
        assert_close([cell(x).asnumpy(), cell(x, power=2).asnumpy()], [VALUES * weight, VALUES * weight**2])
        (grad,) = ms.grad(lambda x, cell=cell: cell(x).sum(), None, cell.trainable_params())(x)
        assert_close([grad.asnumpy()], [VALUES.sum(0)])
    assert str(Scale.construct.lower(cells[0], ShapeDtypeStruct((6, 4), "float32"))) == str(Scale.construct.lower(cells[1],
                                                                                                                  x))


@pytest.mark.parametrize("stage", stages())
def test_arguments_of_truth_values_and_those_nobody_reads(stage):
    def masked(x, mask, unused, words):
        return mint.where(mask, x, 0.0), mask, x > 0

    f, x, mask = stages()[stage](masked), Tensor(VALUES), VALUES > 0.3
    out, same, positive = f(x, Tensor(mask), VALUES.astype(np.complex64), "words")
    assert (out.asnumpy() == np.where(mask, VALUES, 0)).all()
    assert same.dtype == positive.dtype == ms.bool_
    assert (same.asnumpy() == mask).all() and (positive.asnumpy() == (VALUES > 0)).all()
    grad = ms.grad(lambda x: (f(x, Tensor(mask), VALUES.astype(np.int64), None)[0] * x).sum())(x)
    assert_close([grad.asnumpy()], [np.where(mask, 2 * VALUES, 0)])


VIEWS = {
    "of another order": np.asfortranarray,
    "backwards": lambda a: a[::-1, ::-1].copy()[::-1, ::-1],
    "a slice": lambda a: np.concatenate([a, a], 1)[:, :a.shape[1]],
    "read only": lambda a: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape),
    "a transposed tensor": lambda a: Tensor(a.T.copy()).T,
    "a narrowed tensor": lambda a: mint.narrow(Tensor(np.concatenate([a * 3, a])), 0, len(a), len(a)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_arguments_in_any_layout(view):
    x, w = normal(6, 4), normal(4, 4)
    f = stages()["fused"](lambda x, w: mint.nn.functional.silu(x @ w) * x)
    assert_close([f(VIEWS[view](x), VIEWS[view](w)).asnumpy()], [f(x, w).asnumpy()], tolerance=0)


def test_one_tensor_as_several_arguments_and_results():
    f = stages()["fused"](lambda x, y: (x @ y, x, y))
    square = normal(4, 4)
    x = Tensor(square)
    product, first, second = f(x, x)
    assert_close([product.asnumpy()], [square.astype(float) @ square])
    first[0] = 0.0
    assert (second.asnumpy() == square).all() and (x.asnumpy() == square).all()
    grad = ms.grad(lambda x: f(x, x)[0].sum())(x)
    assert_close([grad.asnumpy()], [square.sum(1)[None] + square.sum(0)[:, None]])


# Method forms whose arguments are in another order, or have other defaults, than those of the operation.

METHODS = {
    "select": lambda x, y: x.select(x > 0, y),
    "where": lambda x, y: x.where(x > 0, y),
    "where of truth values": lambda x, y: (x > 0.5).where(x > 0, y > 0) * x,
    "split": lambda x, y: x.split((1, 3), axis=1),
    "sum to a dtype": lambda x, y: x.sum(0, ms.float32),
    "sum that keeps": lambda x, y: x.sum(0, None, True),
    "var": lambda x, y: x.var(),
    "var of columns": lambda x, y: x.var(0),
    "var by n - 1": lambda x, y: x.var(axis=1, ddof=1, keepdims=True),
    "std": lambda x, y: x.std(None, 0),
    "std by n - 1": lambda x, y: x.std(axis=1, ddof=1, keepdims=True),
    "std by a correction": lambda x, y: x.std(0, correction=1),
    "softplus with a threshold": lambda x, y: mint.nn.functional.softplus(x, 2, 1),
    "softplus of the negative": lambda x, y: mint.nn.functional.softplus(x, -2, 1),
}


def test_a_mean_of_nothing_is_not_a_number():
    """NumPy returns NaN, too; MindSpore returns uninitialised memory."""
    for f in (lambda x: mint.mean(x, 0), lambda x: x.mean()):
        assert np.isnan(stages()["fused"](f)(Tensor(np.zeros((0, 3), np.float32))).asnumpy()).all()


@pytest.mark.parametrize("method", METHODS)
def test_methods_are_what_mindspore_runs(method):
    f, args = METHODS[method], (Tensor(normal(6, 4)), Tensor(normal(6, 4)))
    want, got = f(*args), hpmoe.transform(lambda ir: ir)(f)(*args)
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for a, b in pairs:
        assert a.dtype == b.dtype and a.shape == b.shape
        assert_close([a.asnumpy()], [b.asnumpy()])


def test_experts_without_an_intermediate_size_give_zeros():
    x, ids, w, up, down = (a[0] for a in Layer(ep=1, T=3).arguments())
    hpmoe.moe_ffn(*map(Tensor, (x, ids, w, up, down)))  # leaves numbers in memory
    out = hpmoe.moe_ffn(*map(Tensor, (x, ids, w, up[..., :0], down[:, :0])))
    assert out.shape == x.shape and (out.asnumpy() == 0).all()
