"""spmd and plans: routing changes from call to call without a new plan, and plans are bounded."""

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_close, fused, numpy_moe_ffn, stages, tensors

import hpmoe
from hpmoe import Mesh, spmd
from hpmoe.interpreters.interpret import interpret


@pytest.mark.parametrize("stage", ["tiles", "queues"])
def test_any_legal_order_computes_the_same(stage):
    layer = Layer(ep=2, T=4)
    args = layer.arguments()
    flow = spmd(stages()[stage](hpmoe.moe_ffn), Mesh(2)).lower(*tensors(args))
    inputs = [[a[r] for a in args] for r in range(2)]
    want, _ = numpy_moe_ffn(args, layer.cotangent())
    for seed in range(10):
        outputs = interpret(flow, inputs, seed=seed)
        assert_close([np.stack([o[0] for o in outputs])], [want])


def test_arrays_of_numpy_and_default_arguments():
    def scaled(x, factor=2.0):
        return x * factor

    x = np.ones((2, 3, 4), np.float32)
    f = spmd(fused()(scaled), Mesh(2))
    np.testing.assert_array_equal(f(x).asnumpy(), 2 * x)
    np.testing.assert_array_equal(f(x, 3.0).asnumpy(), 3 * x)
    np.testing.assert_array_equal(f(x, factor=4.0).asnumpy(), 4 * x)


def test_gradients_are_taken_of_the_callables_themselves():
    """Several callables of one level have their own gradients."""
    (x,) = tensors([np.arange(12, dtype=np.float32).reshape(1, 4, 3)])
    for scale in (2.0, 3.0):
        def scaled(x, scale=scale):
            return x * x * scale

        for f, y in ((fused()(scaled), x[0]), (spmd(fused()(scaled), Mesh(1)), x)):
            assert (ms.grad(f)(y) == 2 * scale * y).all() and (ms.grad(ms.jit(f))(y) == 2 * scale * y).all()
            value, gradient = ms.value_and_grad(f)(y)
            assert (value == scale * y * y).all() and (gradient == 2 * scale * y).all()


def test_faces_are_kept():
    f = spmd(fused()(hpmoe.moe_ffn), Mesh(2))
    assert f.__name__ == "moe_ffn" and "mixture-of-experts" in f.__doc__
    assert list(f.__signature__.parameters)[:2] == ["hidden_states", "topk_ids"]
