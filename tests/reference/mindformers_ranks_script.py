"""Script of test_mindformers.py on two ranks: MindFormers' MoELayer, its experts sharded, beside virtual ranks."""

import os
import sys
from types import SimpleNamespace

import mindformers_parts
import mindspore as ms
import numpy as np
import pytest
from mindformers_parts import fill, make_config
from test_mindformers import inputs, results

import hpmoe
import hpmoe.mindformers
from hpmoe.mindformers import grouped_mlp

style, mesh, patch = sys.argv[1], hpmoe.world(), pytest.MonkeyPatch()
parts = mindformers_parts.load(patch)
patch.setattr(parts.expert_parallel, "get_rank", lambda: mesh.rank)
config = make_config(moe_router_topk=3, shared_expert_num=1)
whole = parts.moe_layer.MoELayer(config)  # without hpmoe
fill(whole, 2)
given = [inputs(config, 3 + rank) for rank in range(mesh.size)]
expected = [results(whole, *mine) for mine in given]
hpmoe.mindformers.enable()


def sharded():
    layer = parts.moe_layer.MoELayer(config)
    fill(layer, 2)
    getattr(parts.parallelize, style)()._apply(layer.experts, SimpleNamespace(size=mesh.size, rank=mesh.rank))
    return layer


# What all ranks would give to a launch goes to virtual ranks.
calls = []


def recorded(who, f, transforms, ranks, in_axes, frozen):
    calls.append(f)
    return lambda *args: calls.append(args) or args[0]


with pytest.MonkeyPatch.context() as recording:
    recording.setattr(grouped_mlp, "transformed", recorded)
    layer = sharded()
    [layer(x) for x, _ in given]
f, *args = calls
told = [[t.asnumpy() for t in of_rank] for of_rank in args]
weights = [np.split(p.asnumpy(), mesh.size) for p in (whole.experts.weight1, whole.experts.weight2)]
stacked = [ms.Tensor(np.stack([of_rank[i] for of_rank in told])) for i in range(3)]
stacked += [ms.Tensor(np.stack(halves)) for halves in weights]
chain = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
virtual = hpmoe.spmd(chain(f), hpmoe.Mesh(mesh.size))
experts = sharded().experts
own = experts.call_on(mesh.size)(*(ms.Tensor(array) for array in told[mesh.rank][:3]), experts.weight1, experts.weight2)
assert own.asnumpy().tobytes() == virtual(*stacked)[mesh.rank].asnumpy().tobytes()

# And the layer trains as the one of MindFormers that has all experts.
found, mine = results(sharded(), *given[mesh.rank]), expected[mesh.rank]
for name in ("output", "x"):
    np.testing.assert_allclose(found[name], mine[name], rtol=1e-5, atol=1e-5, err_msg=name)
for name in sorted(found.keys() - {"output", "x"}):
    total = sum(of_rank[name] for of_rank in expected)
    if name.startswith("experts."):
        grad, total = found[name], np.split(total, mesh.size)[mesh.rank]
    else:
        grad = hpmoe.all_reduce_gradients(ms.Tensor(found[name]), mesh).asnumpy()
    np.testing.assert_allclose(grad, total, rtol=1e-5, atol=1e-5, err_msg=name)
os.write(1, f"rank {mesh.rank} is as MindFormers and as virtual ranks\n".encode())  # in one piece
