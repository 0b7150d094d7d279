"""Gradients as MindSpore users take them: grad, value_and_grad, Parameters, cells, pytrees and optimizers."""

import concurrent.futures

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_close, fused, jax_moe_ffn, jax_vjp, stages, tensors
from mindspore import Parameter, Tensor, mint, nn, ops

import hpmoe
from hpmoe.support.mindspore_private import takes_gradient

ONE = Layer(ep=1, T=6, E=3, K=2)


def one_rank(layer=ONE, seed=0):
    return [a[0] for a in layer.arguments(seed)]


def oracle(args, cotangent, positions=(0, 2, 3, 4)):
    out, grads = jax_vjp(jax_moe_ffn, [a[None] for a in args], cotangent[None], positions)
    return out[0], [g[0] for g in grads]


COTANGENT = ONE.cotangent()[0]


def loss_of(f):
    return lambda *args: (f(*args) * Tensor(COTANGENT)).sum()


@pytest.mark.parametrize("stage, position", [("fused", 0), ("tiles", 2), ("tiles", (0, 3)), ("fused", (4, 2, 0))])
def test_grad_of_chosen_positions(stage, position):
    args = one_rank()
    f = stages()[stage](hpmoe.moe_ffn)
    got = ms.grad(loss_of(f), position)(*tensors(args))
    positions = position if isinstance(position, tuple) else (position,)
    _, want = oracle(args, COTANGENT, positions)
    assert_close([g.asnumpy() for g in (got if isinstance(got, tuple) else (got,))], want)


def test_call_outside_a_gradient_keeps_nothing():
    f, args = fused()(hpmoe.moe_ffn), one_rank()
    outside = f(*tensors(args)).asnumpy()
    (_, inside), _ = ms.value_and_grad(lambda *a: (loss_of(f)(*a), f(*a)), 0, has_aux=True)(*tensors(args))
    np.testing.assert_array_equal(outside, inside.asnumpy())
    assert_close([outside], [oracle(args, COTANGENT)[0]])


@pytest.mark.parametrize("stage", ["plain", "queues", "fused"])
def test_pytree_of_arguments_and_results(stage):
    x, ids, w, up, down = one_rank()

    def layer(batch, weights):
        y = hpmoe.moe_ffn(batch["x"], *batch["route"], **weights)
        return {"y": y, "pair": [y + 1.0, batch["x"]]}

    f = hpmoe.spmd(stages()[stage](layer), hpmoe.Mesh(1))
    stacked = [Tensor(a[None]) for a in (x, ids, w, up, down)]
    out = f({"x": stacked[0], "route": (stacked[1], stacked[2])}, {"gate_up_weight": stacked[3], "down_weight": stacked[4]})
    want, _ = oracle([x, ids, w, up, down], COTANGENT)
    assert sorted(out) == ["pair", "y"] and isinstance(out["pair"], list)
    assert_close([out["y"].asnumpy()[0], out["pair"][0].asnumpy()[0], out["pair"][1].asnumpy()[0]], [want, want + 1, x])


class Experts(nn.Cell):
    """Experts whose weights are Parameters, run through `transform`."""

    def __init__(self, up, down, transform):
        super().__init__()
        self.up, self.down = Parameter(Tensor(up), name="up"), Parameter(Tensor(down), name="down")
        self.staged = transform(self.plain)

    def plain(self, x, ids, w):
        return hpmoe.moe_ffn(x, ids, w, self.up, self.down)

    def construct(self, x, ids, w):
        return self.staged(x, ids, w)


@pytest.mark.parametrize("stage", ["tiles", "queues", "fused"])
def test_gradients_of_captured_parameters(stage):
    x, ids, w, up, down = args = one_rank()
    cell = Experts(up, down, stages()[stage])
    run = ms.value_and_grad(loss_of(cell), (0, 2), cell.trainable_params())
    _, (inputs, weights) = run(*tensors([x, ids, w]))
    _, want = oracle(args, COTANGENT)
    assert_close([g.asnumpy() for g in (*inputs, *weights)], want)


def test_changed_parameters_are_read_again():
    x, ids, w, up, down = one_rank()
    cell = Experts(up, down, fused())
    cell(*tensors([x, ids, w]))
    cell.up.set_data(Tensor(2 * up))
    want, _ = oracle([x, ids, w, 2 * up, down], COTANGENT)
    assert_close([cell(*tensors([x, ids, w])).asnumpy()], [want])


def test_captured_parameter_is_shared_by_the_ranks():
    """Under spmd a captured tensor goes to every rank whole, and its gradient is the sum over them."""
    layer = Layer(ep=2, T=3)
    args, scale = layer.arguments(), Parameter(Tensor(np.array([1.5], np.float32)), name="scale")
    f = hpmoe.spmd(fused()(lambda *a: hpmoe.moe_ffn(*a) * scale), hpmoe.Mesh(2))
    run = ms.value_and_grad(lambda *a: (f(*a) * Tensor(layer.cotangent())).sum(), None, (scale,))
    _, (grad,) = run(*tensors(args))
    _, want = jax_vjp(lambda s, *a: jax_moe_ffn(*a) * s, [scale.asnumpy(), *args], layer.cotangent(), (0,))
    assert_close([grad.asnumpy()], want)


class Network(nn.Cell):
    """A residual layer with a router, as in training."""

    def __init__(self, transform, rng):
        super().__init__()
        normal = lambda *s: Tensor((0.5 * rng.standard_normal(s)).astype(np.float32))  # noqa: E731
        self.router = Parameter(normal(4, 3), name="router")
        self.experts = Experts(normal(3, 4, 6).asnumpy(), normal(3, 3, 4).asnumpy(), transform)

    def construct(self, x):
        scores = mint.softmax(mint.matmul(x, self.router), -1)
        weights, ids = ops.topk(scores, 2)
        return x + self.experts(x, ids.astype(ms.int32), weights)


def train(transform, steps=5):
    rng = np.random.default_rng(3)
    network = Network(transform, rng)
    x, target = (Tensor(rng.standard_normal((6, 4)).astype(np.float32)) for _ in range(2))
    optimizer = nn.Adam(network.trainable_params(), learning_rate=0.05)
    step = ms.value_and_grad(lambda: mint.square(network(x) - target).mean(), None, optimizer.parameters)
    losses = []
    for _ in range(steps):
        loss, grads = step()
        optimizer(grads)
        losses.append(float(loss.asnumpy()))
    return losses, [p.asnumpy() for p in network.trainable_params()]


def test_training_equals_training_op_by_op():
    losses, weights = train(lambda f: f)
    fused_losses, fused_weights = train(fused())
    assert losses[-1] < losses[0]
    np.testing.assert_allclose(fused_losses, losses, rtol=1e-5)
    assert_close(fused_weights, weights, tolerance=1e-4)


def test_a_failure_inside_a_gradient_leaves_the_next_one_alone():
    @hpmoe.transform(requires="tiles")
    def fail(flow):
        raise RuntimeError("no luck")

    x = Tensor(np.ones((2, 4), np.float32))
    with pytest.raises(RuntimeError, match="no luck"):
        ms.grad(lambda v: fail(hpmoe.tile_partition(hpmoe.swiglu))(v).sum())(x)
    good = ms.grad(lambda v: hpmoe.tile_partition(hpmoe.swiglu)(v).sum())(x)
    assert_close([good.asnumpy()], [ms.grad(lambda v: hpmoe.swiglu(v).sum())(x).asnumpy()])


@pytest.mark.parametrize("kind", ["ids", "own error", "plain", "cell"])
def test_an_error_inside_a_gradient_leaves_empty_slices(kind):
    """MindSpore, left inside the first gradient, would divide by zero in C++ in the second one."""
    layer, cell = Layer(ep=1, T=4), hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=2, num_moe_experts=2)
    x, ids, *rest = tensors(a[0] for a in layer.arguments())

    def fails(x):
        if kind == "own error":
            raise ArithmeticError
        return {"ids": fused()(hpmoe.moe_ffn), "plain": hpmoe.moe_ffn}[kind](x, ids + 100, *rest).sum()

    with pytest.raises((hpmoe.ArgumentError, ArithmeticError)):
        ms.grad(cell if kind == "cell" else fails)(x[:, :3])
    assert not takes_gradient()
    empty = Tensor(np.zeros((0, 4), np.float32))
    assert ms.grad(lambda e: e[:, :2].sum())(empty).shape == (0, 4)
    np.testing.assert_array_equal(ms.grad(lambda v: (v[:, :2] ** 2).sum())(x).asnumpy()[:, :2], 2 * x.asnumpy()[:, :2])


def test_calls_from_several_threads_share_plans():
    layer, threads = Layer(ep=2, T=7, E=4, K=2), 4
    f = hpmoe.spmd(fused()(hpmoe.moe_ffn), hpmoe.Mesh(2))
    arguments = tensors(layer.arguments())
    expected = hpmoe.spmd(fused()(hpmoe.moe_ffn), hpmoe.Mesh(2))(*arguments).asnumpy()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        outs = list(pool.map(lambda _: f(*arguments).asnumpy(), range(8 * threads)))
    assert all((out == expected).all() for out in outs)
    assert f.cache_info().misses == 1
