"""Tokens that cross to a node once, on the Ascend kernel's emulator: as on CPUs and in NumPy, and the same bits in any
order."""

import mindspore as ms
import numpy as np
import pytest
from absent import without
from ascend_helpers import LayerRun, emulator, from_seed
from helpers import Layer, assert_close, fused, run_spmd, tensors

import hpmoe
from hpmoe import combine, dispatch, moe_ffn, send_rows

SCHEMES = {"relays": send_rows(scheme="hierarchical"),
           "relays, once to a rank": send_rows(scheme="hierarchical+deduplicated")}


def slow(*args):
    return pytest.param(*args, marks=pytest.mark.slow)


def layer_run(scheme, layer, dtype=ms.float32, f=moe_ffn, **options):
    return LayerRun(layer, dtype, SCHEMES[scheme](f), **{"rows": 4, "blocks": 2, **options})


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("layer, options", [
    (Layer(ep=4, T=9, H=32, I=16, E=8, K=3, num_tokens=(9, 0, 4, 7), node_size=2), {"signal": "expert"}),
    slow(Layer(ep=6, T=20, H=32, I=16, E=12, K=4, node_size=3), {"dtype": ms.bfloat16}),
    slow(Layer(ep=4, T=5, H=32, I=16, E=12, K=3, routing="one rank", node_size=2), {"blocks": 1, "signal": "peer"}),
    slow(Layer(ep=8, T=11, H=32, I=16, E=8, K=2, node_size=2), {"dtype": ms.float16, "put_cols": 16}),
    slow(Layer(ep=8, T=9, H=16, I=16, E=8, K=1, num_tokens=(9, 0, 1, 0, 7, 9, 0, 0), node_size=2), {"blocks": 3}),
], ids=["uneven", "nodes of three", "all on one rank", "four nodes", "more nodes than choices"])
def test_layer_equals_numpy(scheme, layer, options):
    layer_run(scheme, layer, **options).assert_close_to_float64()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_order_gives_the_same_bits_and_the_cpus_traffic(monkeypatch, scheme):
    """Sums over choices and nodes are made in the same order there."""
    layer = Layer(ep=4, T=23, H=40, I=16, E=8, K=4, num_tokens=(23, 0, 8, 17), node_size=2)
    x, ids, weights, *_ = layer.arguments()
    ids[np.random.default_rng(3).random(ids.shape) < 0.2] = -1
    weights = 2 ** np.round(weights)  # whose products are exact, added up in one rounding or in two

    def moved(x, ids, weights):
        rows, route = dispatch(x, ids, num_local_experts=2)
        return combine(rows * rows, route, weights)

    args, cotangent, seen = [x, ids, weights], layer.cotangent(), set()
    f = emulator(SCHEMES[scheme](moved), rows=4, blocks=2)
    (want,), grads = run_spmd(fused(rows=4)(SCHEMES[scheme](moved)), layer.mesh, args, [cotangent], layer.num_tokens,
                              positions=(0, 2))
    for seed in range(2):
        from_seed(monkeypatch, 1000 * seed)
        (out,), found = run_spmd(f, layer.mesh, args, [cotangent], layer.num_tokens, positions=(0, 2))
        seen.add(b"".join(a.tobytes() for a in (out, *found)))
    assert len(seen) == 1
    np.testing.assert_array_equal(out, want)
    assert_close(found, grads, 1e-6)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.slow
def test_ids_of_no_expert_go_to_no_node(scheme):
    layer = Layer(ep=4, T=8, H=32, I=16, E=8, K=3, node_size=2)
    made = layer_run(scheme, layer)
    for pattern in ("none", "all of the first rank", "a part", "all"):
        args, left = without(layer, pattern)
        made.ids, made.given[1] = ms.Tensor(args[1]), ms.Tensor(args[2])
        made.kept = left
        made.assert_close_to_float64()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_as_many_experts_and_choices_as_the_kernel_takes(scheme):
    layer = Layer(ep=4, T=3, H=16, I=16, E=1024, K=512, node_size=2)
    x, ids, weights, *_ = layer.arguments()

    def moved(x, ids, weights):
        rows, route = dispatch(x, ids, num_local_experts=256)
        return combine(rows * 2.0, route, weights)

    out = hpmoe.spmd(emulator(SCHEMES[scheme](moved)), layer.mesh)(*tensors([x, ids, weights])).asnumpy()
    np.testing.assert_allclose(out, 2.0 * x * weights.sum(-1, keepdims=True, dtype=float), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("scheme, layer", [
    ("relays", Layer(ep=4, T=1200, H=8, I=4, E=32, K=4, node_size=2)),
    slow("relays, once to a rank", Layer(ep=8, T=900, H=8, I=4, E=64, K=1, node_size=2)),
])
def test_more_entries_than_a_core_sorts_at_once(scheme, layer):
    """And lists of several hundred in the tables of a rank."""
    x, ids, weights, *_ = layer.arguments()
    weights = 2 ** np.round(weights)

    def moved(x, ids, weights):
        rows, route = dispatch(x, ids, num_local_experts=8)
        return combine(rows * 2.0, route, weights)

    outs = [hpmoe.spmd(f, layer.mesh)(*tensors([x, ids, weights])).asnumpy() for f in (
        emulator(SCHEMES[scheme](moved), rows=512), fused(rows=512)(SCHEMES[scheme](moved)))]
    np.testing.assert_array_equal(*outs)
