"""Public functions that run call by call: an error by name in a graph that MindSpore compiles; staged ones are right."""

import threading

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, fused, tensors

import hpmoe
from hpmoe import ProgramError

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")

X, IDS = ms.Tensor(np.ones((4, 4), np.float32)), ms.Tensor(np.zeros((4, 1), np.int32))


def layer_and_more(*args):
    return hpmoe.moe_ffn(*args) + 1.0


def gated_twice(x):
    return hpmoe.swiglu(x) * 2.0


def sent(x, ids):
    return hpmoe.dispatch(x, ids, num_local_experts=2)[0]


def routed(x):
    return hpmoe.route(x, 2)[1]


ARGUMENTS = tensors(a[0] for a in Layer(ep=1).arguments())
CALLS = {"moe_ffn": (hpmoe.moe_ffn, ARGUMENTS), "moe_ffn inside": (layer_and_more, ARGUMENTS), "swiglu": (gated_twice, [X]),
         "dispatch": (sent, [X, IDS]), "route": (routed, [X])}


@pytest.mark.parametrize("call", CALLS)
def test_a_compiled_graph_says_what_it_cannot_contain(call):
    f, args = CALLS[call]
    name = call.partition(" ")[0]
    refused = f"hpmoe.{name}: MindSpore cannot compile it into a graph.* call a staged function"
    with pytest.raises(ProgramError, match=refused):
        ms.jit(f)(*args)
    with pytest.raises(ProgramError, match=f"hpmoe.{name}: MindSpore cannot compile it"):
        ms.jit(ms.grad(summed(f)))(*args)


def summed(f):
    def total(*args):
        return f(*args).sum()
    return total


def test_the_same_layer_staged_is_compiled():
    want = hpmoe.moe_ffn(*ARGUMENTS).asnumpy()
    np.testing.assert_allclose(ms.jit(fused()(hpmoe.moe_ffn))(*ARGUMENTS).asnumpy(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("call", ["moe_ffn", "dispatch", "permute"])
def test_values_are_not_recorded_as_constants(call):
    f, args = {**CALLS, "permute": (hpmoe.token_ops.permute, [X, IDS])}[call]

    def calls(*args):
        return f(*args)

    def record():  # in a thread, as MindSpore reads the source of each caller
        with pytest.raises(ProgramError, match="MindSpore cannot compile it into a graph"):
            ms.jit(calls, capture_mode="trace")(*args)
        refused.append(call)

    refused = []
    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    assert refused == [call]
    assert (X + 1.0).asnumpy().max() == 2.0
