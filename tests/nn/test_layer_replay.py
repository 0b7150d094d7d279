"""MoELayer with recorded ids against NumPy in float64: ranks, graphs, recomputation, microbatches, padding."""

import functools

import layer_oracle
import mindspore as ms
import numpy as np
import pytest
import router_oracle
from helpers import assert_close, bitwise_equal
from mindspore import Tensor, nn

import hpmoe
from hpmoe.nn import MoELayer

SHAPE, HIDDEN, EXPERTS, LAYERS, TOP_K = (4, 6, 8), 8, 6, 3, 3
TOKENS = SHAPE[0] * SHAPE[1]
SIDES = {"op by op": {"transforms": lambda f: f}, "fused": {}, "two ranks": {"mesh": hpmoe.Mesh(2)}}
EACH_SIDE = [("op by op", "mask"), ("fused", "route"), ("fused", "mask"), ("two ranks", "route")]
MODELS = {"softmax": ({}, {}), "sigmoid": (
    {"moe_router_score_function": "sigmoid", "moe_router_num_groups": 2, "moe_router_group_topk": 1, "norm_topk_prob": False,
     "moe_router_topk_scaling_factor": 2.5, "moe_router_enable_expert_bias": True},
    {"score": "sigmoid", "num_groups": 2, "topk_groups": 1, "normalize": False, "scale": 2.5})}


def make_layer(**options):
    return layer_oracle.draw_parameters(
        MoELayer(hidden_size=HIDDEN, moe_ffn_hidden_size=5, num_moe_experts=EXPERTS, moe_router_topk=TOP_K, **options))


@functools.cache
def inputs():
    """Tokens, a cotangent, and a record of all layers with about a third of its entries unset."""
    rng = np.random.default_rng(1)
    record = rng.random((*SHAPE[:2], LAYERS, EXPERTS)).argsort(-1)[..., :TOP_K].astype(np.int32)
    record[rng.random(record.shape) < 0.35] = -1
    record[0, 0] = -1
    return rng.standard_normal(SHAPE), rng.standard_normal(SHAPE), record


def gradients(layer, unset, wrap=lambda f: f, **told):
    x, cotangent, record = inputs()
    cotangent = Tensor(cotangent, ms.float32)

    def objective(x, record):
        return (layer(x, topk_ids=record, unset=unset, layer=1, **told) * cotangent).sum()
    f = ms.value_and_grad(objective, 0, layer.trainable_params())
    value, (dx, grads) = wrap(f)(Tensor(x, ms.float32), Tensor(record))
    return [value.asnumpy(), dx.asnumpy(), *(g.asnumpy() for g in grads)]


def oracle_of(layer, unset, kept=slice(None), **told):
    """(objective of parameters, parameters) in float64."""
    x, cotangent, record = inputs()
    params = {"x": x, **layer_oracle.float64_of(layer)}
    rows = record[:, :, 1].reshape(TOKENS, TOP_K)[kept]

    def objective(params):
        x = params["x"].reshape(TOKENS, HIDDEN)[kept]
        out, _, _ = layer_oracle.layer(x, params, k=TOP_K, replay=(rows, unset), **told)
        return (out * cotangent.reshape(TOKENS, HIDDEN)[kept]).sum()
    return objective, params


def assert_gradients(found, layer, objective, params):
    names = ["x", *(p.name for p in layer.trainable_params())]
    layer_oracle.assert_gradients(found[0], dict(zip(names, found[1:], strict=True)), objective, params)


@pytest.mark.parametrize("model, unset", [("softmax", "mask"), ("sigmoid", "route")])
def test_a_layer_replays_a_record(model, unset):
    options, told = MODELS[model]
    found = {side: gradients(make_layer(**options, **more), unset) for side, more in SIDES.items()}
    layer = make_layer(**options)
    assert_gradients(found["fused"], layer, *oracle_of(layer, unset, **told))
    assert_close(found["op by op"], found["fused"])
    assert_close(found["two ranks"], found["fused"])


def test_counts_are_of_the_replayed_ids():
    x, _, record = inputs()
    for unset in ("route", "mask"):
        layer = make_layer()
        layer(Tensor(x, ms.float32), topk_ids=Tensor(record), unset=unset, layer=2)
        logits = x.reshape(TOKENS, HIDDEN) @ layer.router.weight.asnumpy().T
        ids = router_oracle.replay(router_oracle.route(logits, TOP_K)[0], record[:, :, 2].reshape(TOKENS, TOP_K), unset)
        np.testing.assert_array_equal(layer.tokens_per_expert.asnumpy(), np.bincount(ids[ids >= 0], minlength=EXPERTS))


def test_padding_is_not_replayed():
    layer, kept = make_layer(mesh=hpmoe.Mesh(2)), np.r_[0:7, 12:14]  # of 12 tokens of each rank 7 and 2 are real
    found = gradients(layer, "route", num_tokens=(7, 2))
    assert_gradients(found, layer, *oracle_of(layer, "route", kept))
    assert layer.tokens_per_expert.asnumpy().sum() == len(kept) * TOP_K


def test_a_graph_replays_what_pynative_does():
    found, want = (gradients(make_layer(**SIDES["two ranks"]), "route", wrap) for wrap in (ms.jit, lambda f: f))
    assert bitwise_equal(found, want)


class Network(nn.Cell):
    """Two layers, each with its part of a record."""

    def __init__(self, recompute):
        super().__init__()
        self.layers = nn.CellList([make_layer(), make_layer()])
        if recompute:
            for layer in self.layers:
                layer.recompute()

    def construct(self, x, record):
        for i, layer in enumerate(self.layers):
            x = x + layer(x, topk_ids=record, unset="route", layer=i)
        return x


def network_gradients(parts, recompute):
    """Returns gradients of the sum over microbatches, which all run forward before the first runs backward."""
    x, cotangent, record = inputs()
    network = Network(recompute)

    def objective():
        total = 0.0
        for some in np.split(np.arange(SHAPE[0]), parts):
            out = network(Tensor(x[some], ms.float32), Tensor(record[some]))
            total = total + (out * Tensor(cotangent[some], ms.float32)).sum()
        return total
    value, grads = ms.value_and_grad(objective, None, network.trainable_params())()
    return [value.asnumpy(), *(g.asnumpy() for g in grads)]


def test_microbatches_and_recomputation_change_nothing():
    found = network_gradients(4, recompute=True)
    assert_close(found, network_gradients(1, recompute=False))
    assert bitwise_equal(found, network_gradients(4, recompute=False))


def test_a_record_may_be_of_one_layer():
    x, _, record = inputs()
    x, record = Tensor(x, ms.float32), Tensor(record)
    layer = make_layer()
    want = layer(x, topk_ids=record, unset="route", layer=2)
    assert bitwise_equal([layer(x, topk_ids=record[:, :, 2], unset="route").asnumpy()], [want.asnumpy()])


@pytest.mark.parametrize("side, unset", EACH_SIDE)
def test_a_record_may_be_int64(side, unset):
    x, _, record = inputs()
    x, record, layer = Tensor(x, ms.float32), record[:, :, 1], make_layer(**SIDES[side])
    narrow, wide = (layer(x, topk_ids=Tensor(record.astype(dtype)), unset=unset) for dtype in (np.int32, np.int64))
    assert bitwise_equal([wide.asnumpy()], [narrow.asnumpy()])
    with pytest.raises(hpmoe.ArgumentError, match=r"topk_ids\[0, 0, .* is 4294967296|topk_ids\[0, 0\] is 4294967296"):
        layer(x, topk_ids=Tensor(np.where(np.arange(TOP_K) == 0, 2**32, record)), unset=unset)


@pytest.mark.parametrize("side, unset", EACH_SIDE)
def test_a_masked_expert_is_not_replayed(side, unset):
    x, _, record = inputs()
    layer, record = make_layer(**SIDES[side]), record[:, :, 1]
    params = layer_oracle.float64_of(layer)
    assert (record == 3).any()
    layer.mask_experts([3])
    for weight in (layer.experts.weight1, layer.experts.weight2):  # an expert whose weights are lost
        weight.set_data(Tensor(np.where(np.arange(EXPERTS)[:, None, None] == 3, np.nan, weight.asnumpy()), ms.float32))
    out = layer(Tensor(x, ms.float32), topk_ids=Tensor(record), unset=unset).asnumpy()
    left = np.where(record == 3, -1, record).reshape(TOKENS, TOP_K)
    params["router.bias"] = np.where(np.arange(EXPERTS) == 3, -np.inf, 0.0)
    want, _, _ = layer_oracle.layer(x.reshape(TOKENS, HIDDEN), params, k=TOP_K, replay=(left, unset))
    assert_close([out.reshape(TOKENS, HIDDEN)], [want])
