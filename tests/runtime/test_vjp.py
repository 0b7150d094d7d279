"""hpmoe.vjp(f, *args): outputs and gradients of a function at every level, against JAX."""

import numpy as np
import pytest
from helpers import Layer, assert_close, jax_moe_ffn, jax_vjp, stages, tensors

import hpmoe

LAYER = Layer(ep=2)


@pytest.mark.parametrize("stage", stages())
def test_outputs_and_gradients_are_those_of_jax(stage):
    args, cotangent = LAYER.arguments(), LAYER.cotangent()
    out, f_vjp = hpmoe.vjp(hpmoe.spmd(stages()[stage](hpmoe.moe_ffn), LAYER.mesh), *tensors(args))
    grads = f_vjp(tensors([cotangent])[0])
    want, want_grads = jax_vjp(jax_moe_ffn, args, cotangent, (0, 2, 3, 4))
    assert grads[1] is None
    assert_close([out.asnumpy(), *(g.asnumpy() for g in grads if g is not None)], [want, *want_grads])


def test_a_tree_of_outputs_takes_a_tree_of_cotangents():
    x = tensors([np.arange(6, dtype=np.float32).reshape(2, 3)])[0]
    out, f_vjp = hpmoe.vjp(lambda x: {"a": x * 2.0, "b": (x.argmax(-1), x.sum(-1))}, x)
    (grad,) = f_vjp({"a": out["a"], "b": (out["b"][0], out["b"][1])})
    np.testing.assert_allclose(grad.asnumpy(), 4 * x.asnumpy() + x.asnumpy().sum(-1, keepdims=True))
