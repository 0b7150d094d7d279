"""hpmoe.mindformers in MindFormers' own modules: the same Parameters, outputs and gradients as its GroupedMLP alone."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import mindformers_parts
import mindspore as ms
import numpy as np
import pytest
from mindformers_parts import fill, make_config
from mindspore import Tensor

import hpmoe
import hpmoe.mindformers
from hpmoe.mindformers import grouped_mlp
from hpmoe.ranks.starting import start_ranks

pytestmark = pytest.mark.reference
S, B = 7, 3

CASES = {
    "as it is": {},
    "one expert a token": {"moe_router_topk": 1, "norm_topk_prob": False},
    "DeepSeek-V3": {"moe_router_score_function": "sigmoid", "moe_router_num_groups": 4, "moe_router_group_topk": 2,
                    "moe_router_enable_expert_bias": True, "moe_router_topk_scaling_factor": 2.5, "shared_expert_num": 1,
                    "moe_router_topk": 3},
    "DeepSeek-V4": {"moe_router_score_function": "sqrtsoftplus", "activation_func_clamp_value": 0.2},
    "a gate before the shared expert": {"shared_expert_num": 2, "use_shared_expert_gating": True, "num_moe_experts": 5},
    "gelu": {"hidden_act": "gelu"},
    "weights of what experts are given": {"moe_apply_probs_on_input": True, "hidden_act": "silu"},
    "no gate": {"hidden_act": "silu", "gated_linear_unit": False},
}


@pytest.fixture
def parts(monkeypatch):
    found = mindformers_parts.load(monkeypatch)
    if found is None:
        pytest.skip("MindFormers is not installed: pip install --no-deps mindformers==2.1.0")
    yield found
    hpmoe.mindformers.disable()


def results(layer, x, cotangent):
    """(output, gradient of x, gradients of Parameters by their names) of a layer."""
    weights = layer.trainable_params()

    def loss_of(x):
        out = layer(x)
        return (out * cotangent).sum(), out
    (_, out), (x_grad, grads) = ms.value_and_grad(loss_of, 0, weights, has_aux=True)(x)
    names = {id(p): name for name, p in layer.parameters_and_names()}
    found = {names[id(p)]: grad.asnumpy() for p, grad in zip(weights, grads, strict=True)}
    return {"output": out.asnumpy(), "x": x_grad.asnumpy(), **found}


def inputs(config, seed=1):
    x, cotangent = np.random.default_rng(seed).standard_normal((2, S, B, config.hidden_size))
    return Tensor(x, ms.float32), Tensor(cotangent, ms.float32)


def check_equal(found, expected):
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("case", CASES)
def test_a_layer_of_mindformers(case, parts):
    """Its MoELayer without and with hpmoe: router and shared expert are MindFormers', the experts' arithmetic is ours."""
    config = make_config(**CASES[case])
    theirs = parts.moe_layer.MoELayer(config)
    hpmoe.mindformers.enable()
    ours = parts.moe_layer.MoELayer(config)
    assert type(ours.experts) is not type(theirs.experts) and isinstance(ours.experts, parts.experts.GroupedMLP)
    fill(theirs, 2)
    fill(ours, 2)
    assert [(name, p.shape, p.dtype) for name, p in ours.parameters_and_names()] == [
        (name, p.shape, p.dtype) for name, p in theirs.parameters_and_names()]
    check_equal(results(ours, *inputs(config)), results(theirs, *inputs(config)))
    assert (ours.tokens_per_expert.asnumpy() == theirs.tokens_per_expert.asnumpy()).all()


def test_one_launch_forward_and_one_backward(parts):
    hpmoe.mindformers.enable()
    config = make_config()
    layer = parts.moe_layer.MoELayer(config)
    fill(layer, 2)
    x, cotangent = inputs(config)
    _, timelines = hpmoe.measure(lambda x: ms.grad(lambda x: (layer(x) * cotangent).sum())(x), x)
    assert [t.flow.name for t in timelines] == ["grouped_mlp", "grouped_mlp_vjp"]


@pytest.mark.parametrize("style", ["ExpertParallel", "DeredundancyExpertParallel"])
def test_ranks_of_expert_parallelism(style, parts, monkeypatch):
    """The inputs of two processes, launched on two virtual ranks, give the result of one rank with all of them."""
    given = {}

    def recorded(who, f, transforms, mesh, in_axes, frozen):
        def call(*args):
            given[mesh.ep].append((f, args))
            return args[0] * 0
        return call
    monkeypatch.setattr(parts.expert_parallel, "get_rank", lambda: 0)
    config = make_config(moe_router_topk=3)
    whole = parts.moe_layer.MoELayer(config)
    fill(whole, 2)
    halves = [inputs(config, seed) for seed in (3, 4)]
    expected = [results(whole, *half) for half in halves]

    hpmoe.mindformers.enable()
    monkeypatch.setattr(grouped_mlp, "transformed", recorded)
    given[2] = []
    for rank, (x, _) in enumerate(halves):
        layer = parts.moe_layer.MoELayer(config)
        fill(layer, 2)
        getattr(parts.parallelize, style)()._apply(layer.experts, SimpleNamespace(size=2, rank=rank))
        assert layer.experts.hooks == (None, None) and layer.experts.weight1.shape[0] == 4
        layer(x)
    (f, *_), _ = given[2]
    stacked = [ms.ops.stack([args[i] for _, args in given[2]]) for i in range(5)]
    chain = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
    cotangents = ms.ops.stack([ms.mint.reshape(c, (S * B, -1)) for _, c in halves])

    def loss_of(weight1, weight2):
        out = hpmoe.spmd(chain(f), hpmoe.Mesh(ep=2))(*stacked[:3], weight1, weight2)
        return (out * cotangents).sum(), out
    (_, out), grads = ms.value_and_grad(loss_of, (0, 1), has_aux=True)(*stacked[3:])
    for name, grad in zip(("experts.weight1", "experts.weight2"), grads, strict=True):
        np.testing.assert_allclose(grad.reshape(8, *grad.shape[2:]).asnumpy(), expected[0][name] + expected[1][name],
                                   rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(out.asnumpy(), [e["output"].reshape(S * B, -1) for e in expected], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("style", ["ExpertParallel", "DeredundancyExpertParallel"])
def test_two_processes(style, parts, tmp_path, monkeypatch, capfd):
    """Started by `hpmoe launch -n 2`: bitwise what virtual ranks compute, and what MindFormers does with all experts."""
    monkeypatch.chdir(tmp_path)
    script = str(Path(__file__).parent / "mindformers_ranks_script.py")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    assert start_ranks([sys.executable, script, style], 2) == 0
    lines = capfd.readouterr().out.splitlines()
    assert sorted(line for line in lines if line.startswith("rank")) == [
        f"rank {rank} is as MindFormers and as virtual ranks" for rank in range(2)]


def test_what_does_not_go_together(parts):
    """Styles that send tokens themselves, and an activation that MindFormers has with a gate alone, are errors."""
    hpmoe.mindformers.enable()
    config = make_config()
    layer = parts.moe_layer.MoELayer(config)
    fill(layer, 2)
    mindformers_parts.distribute_module(layer.experts, SimpleNamespace(size=2, rank=0), {"weight1": 0, "weight2": 0})
    with pytest.raises(hpmoe.ArgumentError, match="sharded over 2 ranks by a style that sends tokens itself"):
        layer(inputs(config)[0])
    with pytest.raises(hpmoe.ArgumentError, match="hidden_act is 'fusedswiglu'"):
        parts.moe_layer.MoELayer(make_config(gated_linear_unit=False))


def test_other_modules_keep_their_style(parts):
    """LoRA's subclass of GroupedMLP is dispatched by MindFormers, as before."""
    lora = parts.experts.GroupedMLP(make_config())
    hpmoe.mindformers.enable()
    mesh = SimpleNamespace(size=2, rank=0, get_group=lambda: "ep")
    fill(lora, 2)
    parts.parallelize.ExpertParallel()._apply(lora, mesh)
    assert all(lora.hooks)


def test_disable(parts):
    before = parts.moe_layer.GroupedMLP, parts.parallelize.ExpertParallel
    hpmoe.mindformers.enable()
    hpmoe.mindformers.enable(transforms=hpmoe.tile_partition)
    assert parts.moe_layer.GroupedMLP not in before and parts.parallelize.ExpertParallel not in before
    hpmoe.mindformers.disable()
    assert (parts.moe_layer.GroupedMLP, parts.parallelize.ExpertParallel) == before


def test_our_layer_is_theirs(parts):
    """hpmoe.nn.MoELayer has the Parameters of MindFormers' MoELayer, and computes the same of them."""
    config = make_config(**CASES["DeepSeek-V3"])
    theirs = parts.moe_layer.MoELayer(config)
    fill(theirs, 2)
    options = ("hidden_size", "moe_ffn_hidden_size", "num_moe_experts", "moe_router_topk", "moe_router_score_function",
               "norm_topk_prob", "moe_router_topk_scaling_factor", "moe_router_num_groups", "moe_router_group_topk",
               "moe_router_enable_expert_bias", "moe_shared_expert_intermediate_size")
    ours = hpmoe.nn.MoELayer(**{name: getattr(config, name) for name in options})
    known = dict(theirs.parameters_and_names())
    for name, p in ours.parameters_and_names():
        if name not in ("tokens_per_expert", "counted_tokens", "router.masked", "experts.places"):
            p.set_data(Tensor(known.pop(name).asnumpy()))
    assert list(known) == ["tokens_per_expert"]
    check_equal(results(ours, *inputs(config)), results(theirs, *inputs(config)))
