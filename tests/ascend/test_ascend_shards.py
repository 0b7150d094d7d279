"""Experts whose columns lie on several ranks, on the emulator of the Ascend kernel: values and gradients of whole
experts."""

import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import emulator
from helpers import fused
from sharded_layers import assert_close, on_ranks, oracle, run, whole

import hpmoe
from hpmoe.ir.layout import received_rows
from hpmoe.kernels import host_launch
from hpmoe.support.errors import LaunchError

SCHEMES = {"direct": hpmoe.chain(), "once": hpmoe.send_rows(scheme="deduplicated"),
           "copies, once": hpmoe.chain(hpmoe.replicate_experts(loads=[9, 1, 1, 5]), hpmoe.send_rows(scheme="deduplicated"))}


@pytest.mark.parametrize("name, ep, tp", [("direct", 1, 2), ("direct", 1, 4), *((name, 2, 2) for name in SCHEMES)])
def test_values_and_gradients_are_those_of_whole_experts(name, ep, tp):
    num_tokens = [5, 0, 3, 1][:ep * tp]
    args, cotangent = whole(ep, tp)
    for rank, n in enumerate(num_tokens):
        args[2][rank, n:] = 0.0  # padding counts for nothing
    expected = oracle(args, cotangent)
    for rank, n in enumerate(num_tokens):
        expected[2][rank, n:] = 0.0
    f = emulator(SCHEMES[name](hpmoe.moe_ffn), rows=4)
    assert_close(run(f, hpmoe.Mesh(ep, tp=tp), args, cotangent, num_tokens), expected)


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_an_experts_shards_drop_the_same_entries(policy):
    """Output and drop counts equal the CPU's, with masked entries and equal weights."""
    args, _ = whole(2, 2, T=9, K=3)
    args[1][1, 2:4, 1] = -1
    args[2] = np.round(args[2] * 2) / 2
    mesh = hpmoe.Mesh(2, tp=2)

    def capped(*args):
        return hpmoe.moe_ffn(*args, capacity_factor=0.5, drop_policy=policy, return_drop_counts=True)

    tensors = [ms.Tensor(a) for a in on_ranks(args, mesh)]
    (out, counts), (want, dropped) = (hpmoe.spmd(g(capped), mesh)(*tensors)
                                      for g in (lambda f: emulator(f, rows=4), fused()))
    np.testing.assert_allclose(out.asnumpy(), want.asnumpy(), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(counts.asnumpy(), dropped.asnumpy())
    assert counts.asnumpy().sum() > 0


@pytest.mark.parametrize("wrong", [4, 5, 9, 2**31 - 1, -2])
def test_an_expert_that_the_model_does_not_have_is_named(monkeypatch, wrong):
    """By the kernel, where the host has counted other ids."""
    args, _ = whole(2, 2)
    mesh = hpmoe.Mesh(2, tp=2)
    split = on_ranks(args, mesh)
    kernel = hpmoe.spmd(emulator(hpmoe.moe_ffn, rows=4), mesh).lower(*map(ms.Tensor, split))
    inputs = [[np.ascontiguousarray(a[rank]) for a in split] for rank in range(4)]
    kernel.run(inputs)
    counted = received_rows(kernel.flow, inputs, None)
    monkeypatch.setattr(host_launch, "received_rows", lambda *args: counted)
    inputs[2][1][3, 1] = wrong
    with pytest.raises(LaunchError, match=f"topk_ids of rank 2 names expert {wrong}; there are 4"):
        kernel.run(inputs)
