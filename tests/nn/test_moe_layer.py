"""MoELayer with each of its options: output, losses, counts and all gradients against NumPy in float64."""

import functools

import layer_oracle
import mindspore as ms
import numpy as np
import pytest
import router_oracle
from helpers import assert_close, kept_by_hand
from mindspore import mint

import hpmoe
from hpmoe.nn import MoELayer, clamped_swiglu, gpt_oss_swiglu

SHAPE, HIDDEN, INTERMEDIATE, EXPERTS = (2, 6, 8), 8, 5, 4
TOKENS = SHAPE[0] * SHAPE[1]


def squared_relu(x):
    return mint.square(mint.nn.functional.relu(x))


# Arguments of the layer, and what the oracle is told in their place.
OPTIONS = {
    "softmax": ({}, {}),
    "as it is": ({"norm_topk_prob": False, "moe_router_topk": 3}, {"normalize": False, "k": 3}),
    "DeepSeek-V3": ({"moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 2.5,
                     "moe_router_num_groups": 2, "moe_router_group_topk": 1, "moe_router_enable_expert_bias": True,
                     "moe_shared_expert_intermediate_size": 3},
                    {"score": "sigmoid", "scale": 2.5, "num_groups": 2, "topk_groups": 1}),
    "DeepSeek-V4": ({"moe_router_score_function": "sqrtsoftplus", "activation": clamped_swiglu(1.5)},
                    {"score": "sqrt_softplus", "activation": layer_oracle.clamped_swiglu}),
    "gpt-oss": ({"add_bias_linear": True, "activation": gpt_oss_swiglu()}, {"activation": layer_oracle.gpt_oss_swiglu}),
    "Llama 4": ({"moe_router_score_function": "sigmoid", "moe_router_topk": 1, "norm_topk_prob": False,
                 "moe_apply_probs_on_input": True, "moe_shared_expert_intermediate_size": 4},
                {"score": "sigmoid", "k": 1, "normalize": False, "on_input": True}),
    "on the input of two": ({"moe_apply_probs_on_input": True}, {"on_input": True}),
    "gate of the shared expert": ({"moe_shared_expert_intermediate_size": 4, "use_shared_expert_gating": True,
                                   "add_bias_linear": True}, {}),
    "no gate": ({"gated_linear_unit": False, "activation": squared_relu, "moe_shared_expert_intermediate_size": 4},
                {"gated": False, "activation": layer_oracle.squared_relu}),
}
SIDES = {"op by op": {"transforms": lambda f: f}, "fused": {}, "two ranks": {"mesh": hpmoe.Mesh(2)}}


def make_layer(**options):
    return layer_oracle.draw_parameters(
        MoELayer(hidden_size=HIDDEN, moe_ffn_hidden_size=INTERMEDIATE, num_moe_experts=EXPERTS, **options))


def inputs():
    rng = np.random.default_rng(1)
    return [ms.Tensor(rng.standard_normal(SHAPE), ms.float32) for _ in range(2)]


def gradients(layer):
    """The objective, and its gradient of the tokens and of each parameter that is trained, by name."""
    x, cotangent = inputs()

    def objective(x):
        out, losses = layer(x, with_losses=True)
        return (out * cotangent).sum() + losses
    value, (dx, found) = ms.value_and_grad(objective, 0, layer.trainable_params())(x)
    names = [p.name for p in layer.trainable_params()]
    return {"value": value.asnumpy(), "x": dx.asnumpy(), **{n: g.asnumpy() for n, g in zip(names, found, strict=True)}}


def wide(layer):
    """Parameters and tokens of an oracle, float64."""
    return {"x": inputs()[0].asnumpy().astype(np.float64), **layer_oracle.float64_of(layer)}


def objective_of(loss=lambda logits: 0.0, **told):
    cotangent = inputs()[1].asnumpy().astype(np.float64)

    def objective(params):
        out, logits, _ = layer_oracle.layer(params["x"].reshape(TOKENS, HIDDEN), params, **{"k": 2, **told})
        return (out * cotangent.reshape(TOKENS, HIDDEN)).sum() + loss(logits)
    return objective


def assert_gradients(found, objective, params):
    value, gradients = found["value"], {name: a for name, a in found.items() if name != "value"}
    layer_oracle.assert_gradients(value, gradients, objective, params)


@functools.cache
def op_by_op(name):
    return gradients(make_layer(**OPTIONS[name][0], **SIDES["op by op"]))


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option(name):
    options, told = OPTIONS[name]
    layer = make_layer(**options)
    found = gradients(layer)
    assert_gradients(found, objective_of(**told), wide(layer))
    assert_close(list(found.values()), list(op_by_op(name).values()))
    out = layer(inputs()[0])
    assert out.shape == SHAPE
    tokens = wide(layer)["x"].reshape(TOKENS, HIDDEN)
    want, _, ids = layer_oracle.layer(tokens, wide(layer), **{"k": 2, **told})
    assert_close([out.asnumpy().reshape(TOKENS, HIDDEN)], [want])
    np.testing.assert_array_equal(layer.tokens_per_expert.asnumpy(), np.bincount(ids.reshape(-1), minlength=EXPERTS))


@pytest.mark.parametrize("name", ["DeepSeek-V3", "gpt-oss", "on the input of two", "gate of the shared expert"])
def test_ranks_change_nothing(name):
    layer = make_layer(**OPTIONS[name][0], **SIDES["two ranks"])
    assert_close(list(gradients(layer).values()), list(op_by_op(name).values()))
    assert layer.tokens_per_expert.asnumpy().sum() == TOKENS * OPTIONS[name][1].get("k", 2)


LOSSES = {
    "aux_loss": lambda z: 0.3 * router_oracle.aux_loss(z, 2),
    "seq_aux_loss": lambda z: 0.3 * router_oracle.sequence_loss(z, 2, 2),
    "global_aux_loss": lambda z: 0.3 * router_oracle.aux_loss(z, 2),
    "z": lambda z: 0.2 * router_oracle.z_loss(z) + 0.3 * router_oracle.aux_loss(z, 2),
}


@pytest.mark.parametrize("kind, side", [("aux_loss", "fused"), ("seq_aux_loss", "fused"), ("seq_aux_loss", "two ranks"),
                                        ("global_aux_loss", "two ranks"), ("z", "two ranks")])
def test_losses(kind, side):
    z = {"moe_z_loss_coeff": 0.2} if kind == "z" else {"moe_router_load_balancing_type": kind}
    layer = make_layer(moe_aux_loss_coeff=0.3, **z, **SIDES[side])
    assert_gradients(gradients(layer), objective_of(LOSSES[kind]), wide(layer))


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_capacity(policy):
    layer = make_layer(moe_expert_capacity_factor=0.75, moe_token_drop_policy=policy)
    params = wide(layer)
    _, logits, ids = layer_oracle.layer(params["x"].reshape(TOKENS, HIDDEN), params, k=2)
    weights = router_oracle.route(logits, 2)[1]
    kept, dropped = kept_by_hand(ids[None], weights[None], 0.75, policy, EXPERTS)
    assert dropped.sum() > 0
    assert_gradients(gradients(layer), objective_of(kept=kept[0]), params)
