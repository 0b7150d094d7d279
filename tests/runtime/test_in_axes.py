"""spmd(in_axes=): replicated arguments are given once, and their gradients are the sum of all ranks' in their order."""

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_close, bitwise_equal, fused, jax_moe_ffn, jax_vjp, stages, tensors
from jax import numpy as jnp
from mindspore import mint

import hpmoe
from hpmoe import Mesh, spmd
from hpmoe.support.dtypes import rounded

LAYER = Layer(ep=3, T=4, E=6)


def scaled_moe(x, ids, weights, up, down, shared):
    """Computes a layer with a shared expert; `shared` is a tree that all ranks have."""
    act = mint.nn.functional.silu(x @ shared["in"])
    return hpmoe.moe_ffn(x, ids, weights, up, down) + (act @ shared["out"]) * shared["scale"][0]


def jax_scaled_moe(x, ids, weights, up, down, into, out, scale):
    hidden = x @ into
    return jax_moe_ffn(x, ids, weights, up, down) + (hidden / (1 + jnp.exp(-hidden))) @ out * scale


def arguments():
    rng = np.random.default_rng(5)
    shared = [rng.standard_normal(s).astype(np.float32) for s in ((LAYER.H, 5), (5, LAYER.H), (LAYER.H,))]
    return LAYER.arguments(), shared


def run(layer, wrap=lambda f: f):
    args, shared = arguments()
    x, ids, *rest = tensors(args)
    cotangent = ms.Tensor(LAYER.cotangent())

    def loss(x, weights, up, down, into, out, scale):
        y = layer(x, ids, weights, up, down, {"in": into, "out": out, "scale": [scale]})
        return (y * cotangent).sum(), y
    (_, y), grads = wrap(ms.value_and_grad(loss, tuple(range(7)), has_aux=True))(x, *rest, *tensors(shared))
    return [y.asnumpy(), *(g.asnumpy() for g in grads)]


IN_AXES = (0, 0, 0, 0, 0, {"in": None, "out": None, "scale": [None]})


@pytest.mark.parametrize("in_axes", [IN_AXES, [0, 0, 0, 0, 0, None]], ids=["tree", "prefix"])
@pytest.mark.parametrize("stage", stages())
def test_every_stage_against_jax(stage, in_axes):
    args, shared = arguments()
    want, grads = jax_vjp(jax_scaled_moe, [*args, *shared], LAYER.cotangent(), (0, 2, 3, 4, 5, 6, 7))
    assert_close(run(spmd(stages()[stage](scaled_moe), Mesh(3), in_axes=in_axes)), [want, *grads])


def test_compiled_graphs_and_the_interpreter():
    layer = spmd(fused()(scaled_moe), Mesh(3), in_axes=IN_AXES)
    found = run(layer)
    assert bitwise_equal(run(layer, ms.jit), found)
    args, shared = arguments()
    given = (*tensors(args), dict(zip(("in", "out", "scale"), [*tensors(shared[:2]), tensors(shared[2:])], strict=True)))
    assert_close([layer.interpret(*given, seed=3).asnumpy()], found[:1])
    _, launches = hpmoe.measure(layer, *given)
    assert [launch.flow.name for launch in launches] == ["scaled_moe"]
    names = layer.lower(*given).flow
    assert {b.name: b.shape for b in names.buffers}["shared_in"] == (LAYER.H, 5)
    assert layer.memory(*given).ranks == 3


@pytest.mark.parametrize("half", [ms.bfloat16, ms.float16])
def test_gradients_are_summed_in_float32_and_rounded_once(half):
    rng = np.random.default_rng(6)
    x, w = (ms.Tensor(rng.standard_normal(s), half) for s in ((3, 5, 4), (4,)))
    layer = spmd(fused()(lambda x, w: x * w), Mesh(3), in_axes=(0, None))
    each = spmd(fused()(lambda x, w: x * w), Mesh(3))
    got = ms.grad(lambda w: layer(x, w).astype(ms.float32).sum())(w)
    parts = ms.grad(lambda w: each(x, w).astype(ms.float32).sum())(mint.broadcast_to(w, (3, 4)))
    a, b, c = parts.astype(ms.float32).asnumpy()
    want = rounded((a + b) + c, str(half).lower())
    np.testing.assert_array_equal(got.astype(ms.float32).asnumpy(), want.astype(np.float32))


def test_a_main_gradient_of_what_is_replicated_has_its_shape():
    rng = np.random.default_rng(7)
    x, w = (ms.Tensor(rng.standard_normal(s), ms.float32) for s in ((3, 5, 4), (4, 2)))
    main = ms.Tensor(rng.standard_normal((4, 2)), ms.float32)
    before = main.asnumpy().copy()
    layer = spmd(fused()(hpmoe.accumulate_grads(lambda x, w: x @ w, into={"w": main})), Mesh(3), in_axes=(0, None))
    ms.grad(lambda w: (layer(x, w) ** 2).sum())(w)
    rows = x.asnumpy().reshape(15, 4).astype(np.float64)
    assert_close([main.asnumpy() - before], [2 * rows.T @ (rows @ w.asnumpy())])


def test_one_number_for_all_and_what_is_named():
    def f(x, w, factor=1.0, *, b):
        return x * w * factor + b
    x, w = ms.ops.ones((2, 3, 4)), ms.ops.ones((3, 4))
    assert spmd(f, Mesh(2), in_axes=(0, None))(x, w, b=x).shape == (2, 3, 4)
    assert spmd(f, Mesh(2), in_axes=None)(w, w, 2.0, b=w).asnumpy().tolist() == np.full((2, 3, 4), 3.0).tolist()
    assert spmd(f, Mesh(2), in_axes=[0, None])(x, w=w, b=x).shape == (2, 3, 4)
