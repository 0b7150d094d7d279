"""The table of model types: its text on the page, and configurations with fields that no option takes."""

import re
from pathlib import Path

import numpy as np
import pytest

import hpmoe
from hpmoe.nn import hugging_face_options
from hpmoe.nn.model_types import MODELS, REFUSED

PAGE = Path(hpmoe.__file__).parent / "nn" / "README.md"


def letters(name):
    """Returns the letters and digits of a name, without "moe"."""
    return re.sub(r"moe|[^a-z0-9]", "", name.lower())


def listed():
    """Returns the paragraph of model types, each with its models unless the type already names them."""
    known = (f"`{name}`" if letters(name) == letters(model.models) else f"`{name}` ({model.models})"
             for name, model in MODELS.items())
    return f"Model types: {', '.join(known)}."


def test_the_page_lists_model_types(request):
    """`pytest --update-golden` writes the list."""
    text, wanted = PAGE.read_text(encoding="utf-8"), listed()
    if request.config.getoption("--update-golden"):
        before, _, rest = text.partition("Model types: ")
        text = before + wanted + "\n\n" + rest.partition("\n\n")[2]
        PAGE.write_text(text, encoding="utf-8")
    assert wanted in text, "if meant so, run pytest --update-golden"


MIXTRAL = {"model_type": "mixtral", "hidden_size": 8, "intermediate_size": 6, "num_local_experts": 4,
           "num_experts_per_tok": 2}
V3 = {"model_type": "deepseek_v3", "hidden_size": 8, "moe_intermediate_size": 6, "n_routed_experts": 4,
      "n_shared_experts": 1, "num_experts_per_tok": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 2,
      "topk_group": 1}


@pytest.mark.parametrize("field,value", [
    ("swiglu_limit", 7.0), ("shared_expert_intermediate_size", 12), ("mlp_bias", True), ("moe_latent_size", 4),
    ("quantization_config", {"quant_method": "awq"}), ("router_jitter_noise", 0.1), ("hidden_act", "gelu"),
    ("moe_router_logit_softcapping", 30.0), ("temperature_of_gates", 2)])
def test_a_field_that_no_option_takes(field, value):
    with pytest.raises(hpmoe.ArgumentError, match=field):
        hugging_face_options(MIXTRAL | {field: value})
    if field not in ("hidden_act", "quantization_config"):
        assert hugging_face_options(MIXTRAL | {field: value}, ignore=[field]) == hugging_face_options(MIXTRAL)
    assert hugging_face_options(MIXTRAL | {field: None}) == hugging_face_options(MIXTRAL)


@pytest.mark.parametrize("field,value", [
    ("topk_method", "greedy_of_all"), ("scoring_func", "softmax"), ("moe_router_activation_func", "softmax"),
    ("n_group", [2, 2]), ("num_experts", 8)])
def test_a_field_of_another_value(field, value):
    with pytest.raises(hpmoe.ArgumentError, match=field if field != "n_group" else "moe_router_num_groups"):
        hugging_face_options(V3 | {field: value})


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_refused_type_says_why(model_type):
    with pytest.raises(hpmoe.ArgumentError, match=REFUSED[model_type]):
        hugging_face_options({"model_type": model_type})


def test_groups_by_their_largest_are_deepseek_v2():
    """Its published configuration; of greedy choice the groups do not count."""
    config = {"model_type": "deepseek_v2", "hidden_size": 5120, "moe_intermediate_size": 1536, "n_routed_experts": 160,
              "n_shared_experts": 2, "num_experts_per_tok": 6, "routed_scaling_factor": 16.0, "n_group": 8, "topk_group": 3,
              "topk_method": "group_limited_greedy", "scoring_func": "softmax", "norm_topk_prob": False,
              "hidden_act": "silu", "moe_layer_freq": 1, "first_k_dense_replace": 1, "aux_loss_alpha": 0.001,
              "seq_aux": True, "ep_size": 1}
    options = hugging_face_options(config)
    assert options["moe_router_group_score"] == "largest" and options["moe_router_num_groups"] == 8
    assert "moe_router_num_groups" not in hugging_face_options(config | {"topk_method": "greedy"})


def test_a_group_of_its_largest_score_is_chosen():
    """Beside NumPy in float64: 4 groups of 4 experts, of which a token chooses 3 experts of 2 groups."""
    import mindspore as ms
    z = np.random.default_rng(0).standard_normal((40, 16)).astype(np.float32)
    ids, weights = hpmoe.route(ms.Tensor(z), 3, num_groups=4, topk_groups=2, group_score="largest", normalize=False,
                               scale=2.0)
    p = np.exp(z.astype(np.float64))
    p /= p.sum(-1, keepdims=True)
    groups = np.argsort(-p.reshape(40, 4, 4).max(-1), kind="stable")[:, :2]
    allowed = np.zeros((40, 4), bool)
    np.put_along_axis(allowed, groups, True, 1)
    expected = np.argsort(-np.where(np.repeat(allowed, 4, 1), p, -1), kind="stable")[:, :3]
    np.testing.assert_array_equal(ids.asnumpy(), expected)
    np.testing.assert_allclose(weights.asnumpy(), 2 * np.take_along_axis(p, expected, 1), rtol=1e-5)


def test_zero_experts_return_their_input():
    """Beside a layer of the others, and the weights of the zero experts times x."""
    import mindspore as ms
    sizes = {"hidden_size": 8, "moe_ffn_hidden_size": 6, "num_moe_experts": 4, "norm_topk_prob": False}
    layer = hpmoe.nn.MoELayer(**sizes, moe_num_zero_experts=3, moe_router_topk=3)
    layer.router.weight.set_data(layer.router.weight * 30)
    x = ms.Tensor(np.random.default_rng(0).standard_normal((12, 8)).astype(np.float32))
    ids, weights = layer.router(x)
    experts = layer.experts(x, weights, ms.ops.where(ids < 4, ids, -1)).asnumpy()
    share = np.where(ids.asnumpy() >= 4, weights.asnumpy(), 0).sum(-1, keepdims=True)
    assert (share > 0.1).any() and layer.tokens_per_expert.shape == (7,)
    np.testing.assert_allclose(layer(x).asnumpy(), experts + share * x.asnumpy(), rtol=1e-5, atol=1e-6)
    on_ranks = hpmoe.nn.MoELayer(**sizes, moe_num_zero_experts=3, moe_router_topk=3, mesh=hpmoe.Mesh(2))
    ms.load_param_into_net(on_ranks, {p.name: p for p in layer.get_parameters()})
    np.testing.assert_allclose(on_ranks(x).asnumpy(), layer(x).asnumpy(), rtol=1e-5, atol=1e-6)
