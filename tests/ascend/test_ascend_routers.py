"""Layers whose router is inside the function, on the emulator of the Ascend kernel: the first launch computes the
ids, the next launch routes by them. Ids equal those of a CPU; values and gradients equal an oracle's."""

import mindspore as ms
import numpy as np
import pytest
import router_oracle as oracle
from ascend_helpers import emulator, from_seed
from helpers import assert_close, run_spmd
from mindspore import Tensor, mint
from router_layers import LAYERS, arguments, expected, num_layers, positions, routed_ffn, side_by_side, two_layers

import hpmoe
from hpmoe import router

T, E, K = 13, 24, 6
BIAS = np.linspace(-0.6, 0.6, E).astype(np.float32)[np.random.default_rng(9).permutation(E)]
MODELS = {
    "deepseek v3": {"score": "sigmoid", "bias": BIAS, "num_groups": 8, "topk_groups": 4, "scale": 2.5},
    "glm": {"score": "sigmoid", "bias": BIAS},
    "deepseek v4": {"score": "sqrt_softplus", "scale": 1.5},
    "qwen3": {"score": "softmax", "normalize": False},
    "mixtral": {"score": "softmax"},
    "gpt-oss": {"score": "softmax_of_chosen"},
    "nodes": {"score": "softmax", "num_groups": 4, "topk_groups": 2},
}


def logits(tokens=T, experts=E):
    z = np.random.default_rng(0).standard_normal((tokens, experts)).astype(np.float32) * 2
    z[1], z[2, ::2] = 0.25, z[2, 1::2]  # all equal, and in pairs
    return z


def on_cpu(f):
    return hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(f, rows=4), machine=hpmoe.cpu(2)))


@pytest.mark.parametrize("model, dtype", [*((model, ms.float32) for model in MODELS), ("deepseek v3", ms.bfloat16)], ids=str)
def test_routers_of_models(monkeypatch, model, dtype):
    """In any order, with their gradients."""
    z, options = Tensor(logits()).astype(dtype), MODELS[model]
    bias = {"bias": Tensor(options["bias"])} if "bias" in options else {}
    rest = {name: value for name, value in options.items() if name != "bias"}

    def route(z, bias):
        return hpmoe.route(z, K, **bias, **rest)

    f, reference = emulator(route, rows=4, cols=5), on_cpu(route)
    want = oracle.route(z.astype(ms.float32).asnumpy(), K, **options)
    for seed in (0, 1000):
        from_seed(monkeypatch, seed)
        ids, weights = f(z, bias)
        np.testing.assert_array_equal(ids.asnumpy(), want[0])
        np.testing.assert_allclose(weights.asnumpy(), want[1], rtol=1e-5, atol=1e-7)
    factors = Tensor(np.random.default_rng(3).standard_normal((T, K)).astype(np.float32))
    got, cpu = (ms.grad(lambda z, g=g: mint.sum(g(z, bias)[1] * factors))(z).astype(ms.float32).asnumpy()
                for g in (f, reference))
    np.testing.assert_allclose(got, cpu, rtol=1e-5 if dtype == ms.float32 else 1e-2, atol=1e-6)


@pytest.mark.parametrize("f, name", [(routed_ffn, "uneven"), (two_layers, "two ranks"), (side_by_side, "uneven")])
def test_a_router_inside_a_layer(f, name):
    layer = LAYERS[name]
    outs, grads = run_spmd(emulator(f, rows=4), layer.ep, arguments(layer, num_layers(f)), [layer.cotangent()],
                           layer.num_tokens,
                           positions(f))
    want, want_grads = expected(f, layer)
    assert_close([*outs, *grads], [want, *want_grads])


SAME = {  # of tensors of a seed and of logits: bit for bit what a CPU gives
    "noise": lambda z, seed: hpmoe.route(router.jitter(z, 0.1, seed), K)[0],
    "gumbel": lambda z, seed: hpmoe.route(z + router.gumbel(z, seed), K)[0],
    "drawn": lambda z, seed: router.uniform_ids(T, E, K, seed),
    "counts": lambda z, seed: router.tokens_per_expert(hpmoe.route(z, K)[0], num_experts=E),
    "ids of 64 bits": lambda z, seed: mint.topk(z, K)[1] * 3 // 2 % 7,
    "hot": lambda z, seed: mint.nn.functional.one_hot(mint.topk(z, K)[1], E).sum(1),
    "in order": lambda z, seed: mint.sort(hpmoe.route(z, K)[0], dim=-1)[0],
    "running": lambda z, seed: mint.cumsum(hpmoe.route(z, K)[0], 1),
}


@pytest.mark.parametrize("name", SAME)
def test_what_is_of_integers_or_drawn_is_a_cpus_bit_for_bit(name):
    z, seed = Tensor(logits()), Tensor(np.array([11], np.int32))
    got, want = (g(SAME[name])(z, seed).asnumpy() for g in (lambda f: emulator(f, rows=4, cols=5), on_cpu))
    assert got.dtype == want.dtype and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("num_experts, top_k", [(1024, 8), (512, 512)])
def test_many_experts_and_many_choices(num_experts, top_k):
    """All that a route takes, with ids that a router inside has made and a token without any."""
    def layer(x, z, keep):
        ids, weights = hpmoe.route(z, top_k)
        ids = mint.where(keep > 0, ids, -1).astype(ms.int32)
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=num_experts)
        return hpmoe.combine(rows * 2.0, route, weights), ids

    rng = np.random.default_rng(0)
    x, z = rng.standard_normal((5, 16)).astype(np.float32), rng.standard_normal((5, num_experts)).astype(np.float32)
    keep = np.array([[1], [1], [0], [1], [1]], np.float32)
    out, ids = (a.asnumpy() for a in emulator(layer, rows=16)(*map(Tensor, (x, z, keep))))
    want, weights = oracle.route(z, top_k, score="softmax")
    np.testing.assert_array_equal(ids, np.where(keep > 0, want, -1))
    np.testing.assert_allclose(out, 2 * x * weights.sum(1, keepdims=True) * keep, rtol=1e-5, atol=1e-6)
