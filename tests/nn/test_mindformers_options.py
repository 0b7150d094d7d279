"""Options of a layer from MindFormers' configuration: fields that are taken, and fields that are named."""

import warnings
from types import SimpleNamespace

import pytest

import hpmoe
from hpmoe.mindformers import layer_options

FIELDS = {"hidden_size": 8, "moe_ffn_hidden_size": 4, "num_moe_experts": 4, "moe_router_topk": 2,
          "hidden_act": "fusedswiglu",
          "gated_linear_unit": True, "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
          "moe_router_topk_scaling_factor": 2.5, "moe_expert_capacity_factor": -1.0, "activation_func_clamp_value": 7.0}


@pytest.mark.parametrize("make", [dict, lambda fields: SimpleNamespace(**fields)])
def test_fields_that_have_a_meaning_are_taken(make):
    options = layer_options(make(FIELDS))
    assert options.pop("activation") == hpmoe.nn.clamped_swiglu(7.0)
    expected = {name: value for name, value in FIELDS.items()
                if name not in ("hidden_act", "activation_func_clamp_value", "moe_expert_capacity_factor")}
    assert options == expected
    assert hpmoe.nn.MoELayer(**options).expert_bias.shape == (4,)


def test_fields_without_a_meaning_are_named_in_one_warning():
    others = {"moe_router_pre_softmax": True, "moe_router_dtype": "float32", "first_k_dense_replace": 3, "moe_layer_freq": 1}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        assert layer_options(FIELDS | others).keys() == layer_options(FIELDS).keys()
    [warning] = found
    assert all(name in str(warning.message) for name in others)
