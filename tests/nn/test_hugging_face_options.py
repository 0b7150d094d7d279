"""Options of a layer from the configurations that models were published with."""

import json

import numpy as np
import pytest
from hugging_face_states import make_block

import hpmoe
from hpmoe.nn import hugging_face_options, load_hugging_face

# What their config.json says of the layer.
CONFIGS = {
    "Qwen3-30B-A3B": {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "hidden_act": "silu",
                      "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True},
    "Mixtral-8x7B": {"model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "hidden_act": "silu",
                     "num_local_experts": 8, "num_experts_per_tok": 2},
    "DeepSeek-V3": {"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "hidden_act": "silu",
                    "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8,
                    "n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5,
                    "scoring_func": "sigmoid"},
    "Kimi-K2": {"model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "hidden_act": "silu",
                "moe_intermediate_size": 2048, "n_routed_experts": 384, "n_shared_experts": 1, "num_experts_per_tok": 8,
                "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.827,
                "scoring_func": "sigmoid"},
    "GLM-4.5": {"model_type": "glm4_moe", "hidden_size": 5120, "intermediate_size": 12288, "hidden_act": "silu",
                "moe_intermediate_size": 1536, "n_routed_experts": 160, "n_shared_experts": 1, "num_experts_per_tok": 8,
                "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5},
    "gpt-oss-20b": {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "hidden_act": "silu",
                    "num_local_experts": 32, "num_experts_per_tok": 4, "swiglu_limit": 7.0},
}
SIGMOID = {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
OPTIONS = {
    "Qwen3-30B-A3B": {"moe_ffn_hidden_size": 768, "num_moe_experts": 128, "moe_router_topk": 8},
    "Mixtral-8x7B": {"moe_ffn_hidden_size": 14336, "num_moe_experts": 8, "moe_router_topk": 2},
    "DeepSeek-V3": {"moe_ffn_hidden_size": 2048, "num_moe_experts": 256, "moe_router_topk": 8, "moe_router_num_groups": 8,
                    "moe_router_group_topk": 4, "moe_router_topk_scaling_factor": 2.5,
                    "moe_shared_expert_intermediate_size": 2048, **SIGMOID},
    "Kimi-K2": {"moe_ffn_hidden_size": 2048, "num_moe_experts": 384, "moe_router_topk": 8, "moe_router_num_groups": 1,
                "moe_router_group_topk": 1, "moe_router_topk_scaling_factor": 2.827,
                "moe_shared_expert_intermediate_size": 2048, **SIGMOID},
    "GLM-4.5": {"moe_ffn_hidden_size": 1536, "num_moe_experts": 160, "moe_router_topk": 8, "moe_router_num_groups": 1,
                "moe_router_group_topk": 1, "moe_router_topk_scaling_factor": 2.5,
                "moe_shared_expert_intermediate_size": 1536, **SIGMOID},
    "gpt-oss-20b": {"moe_ffn_hidden_size": 2880, "num_moe_experts": 32, "moe_router_topk": 4, "add_bias_linear": True},
}


@pytest.mark.parametrize("model", CONFIGS)
def test_published_configurations(model):
    config = CONFIGS[model]
    options = hugging_face_options(config)
    assert ("activation" in options) == (model == "gpt-oss-20b")
    options.pop("activation", None)
    assert options == {"hidden_size": config["hidden_size"], "norm_topk_prob": True, **OPTIONS[model]}


def test_the_layer_of_a_folder(tmp_path):
    """The text configuration of a model with texts and pictures counts."""
    fields = {"model_type": "kimi_k2", "hidden_size": 8, "moe_intermediate_size": 6, "num_local_experts": 4,
              "num_experts_per_tok": 2, "norm_topk_prob": True, "routed_scaling_factor": 2.0, "n_group": 2, "topk_group": 1}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "kimi_k25", "text_config": fields}))
    layer = hpmoe.nn.MoELayer(**hugging_face_options(tmp_path))
    theirs = {name: array for name, array in make_block("kimi_k2").theirs.items() if "shared" not in name}
    load_hugging_face(layer, theirs)
    np.testing.assert_array_equal(layer.expert_bias.asnumpy(), theirs["gate.e_score_correction_bias"])
