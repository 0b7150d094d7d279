"""Copies of staged functions, also in Cells, and pickles: they compute the same and share nothing with the original."""

import copy
import pickle

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, fused, tensors
from mindspore import nn

import hpmoe
from hpmoe import Mesh, spmd

CHAIN = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda x: pickle.loads(pickle.dumps(x))}


def layers():
    args = tensors(Layer().arguments())
    return {"fused": (CHAIN(hpmoe.moe_ffn), [a[0] for a in tensors(Layer(ep=1).arguments())]),
            "spmd": (spmd(CHAIN(hpmoe.moe_ffn), Mesh(2)), args)}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", ["fused", "spmd"])
def test_a_copy_of_a_function_that_was_called(kind, how):
    layer, args = layers()[kind]
    want = layer(*args).asnumpy()
    other = COPIES[how](layer)
    assert other.cache_info().currsize == 0 and layer.cache_info().currsize == 1
    assert (other(*args).asnumpy() == want).all() and repr(other) == repr(layer)
    assert other.__name__ == "moe_ffn" and other.__signature__ == layer.__signature__
    assert layer.cache_info().misses == 1 and other.cache_info().misses == 1

    def call(*args):
        return other(*args)

    assert (ms.jit(call)(*args).asnumpy() == want).all()
    assert layer.cache_info().hits == 0 and other.cache_info().hits == 1, "a graph called the original"


class Net(nn.Cell):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.down = layer, ms.Parameter(tensors(Layer().arguments())[4], name="down")

    def construct(self, *args):
        return self.layer(*args, self.down)


def test_a_copied_cell_has_parameters_of_its_own():
    net, args = Net(spmd(fused()(hpmoe.moe_ffn), Mesh(2))), tensors(Layer().arguments())[:4]
    want = net(*args).asnumpy()
    other = copy.deepcopy(net)
    other.down.set_data(2.0 * other.down)
    assert (net(*args).asnumpy() == want).all() and (other(*args).asnumpy() == 2 * want).all()


def test_transforms_are_copied_by_name():
    for transform in (hpmoe.tile_partition, hpmoe.assign_queues, hpmoe.fuse_persistent):
        assert pickle.loads(pickle.dumps(transform)) is transform is copy.deepcopy(transform)


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_copies_of_every_stage_are_the_same_and_go_on_alike(how, direction):
    """Rewrites and gradients ask which primitive an equation is of."""
    args = [a[0] for a in Layer(ep=1).arguments()]
    program = hpmoe.trace(hpmoe.moe_ffn, *tensors(args))
    other = COPIES[how](program)
    assert str(other) == str(program) and str(hpmoe.rewriting.vjp(other)) == str(hpmoe.rewriting.vjp(program))
    assert all(a.primitive is b.primitive for a, b in zip(other.equations, program.equations, strict=True))
    for f in (CHAIN(hpmoe.moe_ffn).function, CHAIN(hpmoe.moe_ffn)):
        ir = f.lower(*tensors(args), direction=direction)
        assert str(COPIES[how](ir)) == str(ir)


@pytest.mark.parametrize("how", COPIES)
def test_a_copied_kernel_has_counters_of_its_own(how):
    args = [a[0] for a in Layer(ep=1).arguments()]
    kernel = CHAIN(hpmoe.moe_ffn).lower(*tensors(args))
    other = COPIES[how](kernel)
    assert not np.may_share_memory(kernel.state.counters, other.state.counters)
    for _ in range(2):
        assert (other.run([args])[0][0] == kernel.run([args])[0][0]).all()
