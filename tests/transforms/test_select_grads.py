"""select_grads, and tensors that MindSpore knows to be frozen: other gradients stay bitwise, work for these is left out."""

import itertools

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, run_spmd, stages, tensors

import hpmoe
from hpmoe import select_grads
from hpmoe.runtime.one_call import Traced

NAMES = ("hidden_states", "topk_weights", "gate_up_weight", "down_weight")
SUBSETS = [s for n in (1, 2, 3) for s in itertools.combinations(NAMES, n)]


@pytest.fixture
def asked(monkeypatch):
    """The equations of the backward programs that calls under autograd asked for."""
    seen, find = [], Traced.asked

    def spy(self, needed):
        traced = find(self, needed)
        seen.append([e.primitive.name for e in traced.linearized.backward.equations])
        return traced
    monkeypatch.setattr(Traced, "asked", spy)
    return seen


@pytest.mark.parametrize("i, stage", [*enumerate(("plain", "tiles", "queues", "fused"))])
def test_gradients_of_each_subset_are_those_of_all(i, stage):
    layer = Layer(ep=2, T=5, num_tokens=(5, 3))
    args, cotangent = layer.arguments(), layer.cotangent()
    outs, grads = run_spmd(stages()[stage](hpmoe.moe_ffn), 2, args, [cotangent], num_tokens=layer.num_tokens)
    for of in SUBSETS if stage == "fused" else SUBSETS[i::3]:
        f = stages()[stage](select_grads(hpmoe.moe_ffn, of=of))
        again, chosen = run_spmd(f, 2, args, [cotangent], num_tokens=layer.num_tokens)
        np.testing.assert_array_equal(again[0], outs[0])
        for name, got, want in zip(NAMES, chosen, grads, strict=True):
            np.testing.assert_array_equal(got, want if name in of else np.zeros_like(want), f"{name} of {of}")


def test_what_a_frozen_input_leaves_out():
    def names(*of):
        avals = [hpmoe.ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in Layer().arguments()]
        program = select_grads(hpmoe.moe_ffn, of=of).lower(*avals, mesh=hpmoe.Mesh(2), direction="backward")
        return [e.primitive.name for e in program.equations]
    assert names("down_weight").count("grouped_weight_grad") == 1 and "swiglu_grad" not in names("down_weight")
    assert "grouped_weight_grad" not in names("hidden_states") and "combine" in names("hidden_states")
    assert "combine" not in names("gate_up_weight", "down_weight")


def test_frozen_parameters_and_stopped_tokens_skip_their_work(asked):
    x, ids, weights, up, down = tensors([a[0] for a in Layer(ep=1).arguments()])
    f = stages()["fused"](hpmoe.moe_ffn)
    want = ms.grad(lambda *a: f(a[0], ids, *a[1:]).sum(), (0, 1, 2, 3))(x, weights, up, down)
    frozen, trained = ms.Parameter(up, name="up", requires_grad=False), ms.Parameter(down, name="down")
    dx, (d_down,) = ms.grad(lambda x: f(x, ids, weights, frozen, trained).sum(), 0, ms.ParameterTuple([trained]))(x)
    np.testing.assert_array_equal(dx.asnumpy(), want[0].asnumpy())
    np.testing.assert_array_equal(d_down.asnumpy(), want[3].asnumpy())
    assert asked[-1].count("grouped_weight_grad") == 1

    stop = ms.ops.stop_gradient
    (d_down,) = ms.grad(lambda: f(stop(x), ids, stop(weights), frozen, trained).sum(), None, ms.ParameterTuple([trained]))()
    np.testing.assert_array_equal(d_down.asnumpy(), want[3].asnumpy())
    assert "combine" not in asked[-1] and "swiglu_grad" not in asked[-1]


def test_a_layer_of_which_nothing_is_asked(asked):
    x, ids, weights, up, down = tensors([a[0] for a in Layer(ep=1).arguments()])
    f, stop = stages()["fused"](hpmoe.moe_ffn), ms.ops.stop_gradient
    grad = ms.grad(lambda s: (s * f(stop(x), ids, stop(weights), stop(up), stop(down))).sum(), 0)(ms.Tensor(2.0))
    np.testing.assert_allclose(grad.asnumpy(), f(x, ids, weights, up, down).asnumpy().sum(), rtol=1e-5)


def test_a_compiled_graph_takes_the_named_gradients():
    given = tensors([a[0] for a in Layer(ep=1).arguments()])
    dx, _ = _gradients_in_a_graph(stages()["fused"](hpmoe.moe_ffn), given)
    again, nothing = _gradients_in_a_graph(stages()["fused"](select_grads(hpmoe.moe_ffn, of=("hidden_states",))), given)
    np.testing.assert_array_equal(again.asnumpy(), dx.asnumpy())
    assert dx.asnumpy().any() and not nothing.asnumpy().any()


def _gradients_in_a_graph(f, given):
    """Those of the tokens and of a weight."""
    def loss(*args):
        return f(*args).sum()
    return ms.jit(ms.grad(loss, (0, 3)))(*given)
