"""Blocks of Hugging Face models as their files have them, of random weights, beside what a layer is to hold of each."""

from types import SimpleNamespace

import numpy as np

import hpmoe

H, N, E = 8, 6, 4  # hidden size, that of an expert, number of experts
SHARED = 5
MODELS = ("qwen3_moe", "deepseek_v3", "glm4_moe", "kimi_k2", "mixtral", "gpt_oss")
HAS_SHARED = ("deepseek_v3", "glm4_moe", "kimi_k2")


def make_block(model_type, fused=False, seed=0):
    """A block's arrays by the names of its model, the layer's by ours, and the layer's options."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    router, gate, up, down = draw(E, H), draw(E, N, H), draw(E, N, H), draw(E, H, N)
    options = {"hidden_size": H, "moe_ffn_hidden_size": N, "num_moe_experts": E, "moe_router_topk": 2}
    ours = {"router.weight": router, "experts.weight1": np.concatenate((gate, up), 1).transpose(0, 2, 1),
            "experts.weight2": down.transpose(0, 2, 1)}
    if model_type == "gpt_oss":
        theirs = gpt_oss(ours, draw)
        options |= {"add_bias_linear": True, "activation": hpmoe.nn.gpt_oss_swiglu()}
    elif fused:
        theirs = {"gate.weight": router, "experts.gate_up_proj": np.concatenate((gate, up), 1), "experts.down_proj": down}
    else:
        names = ("w1", "w3", "w2") if model_type == "mixtral" else ("gate_proj", "up_proj", "down_proj")
        theirs = {"gate.weight": router}
        for e in range(E):
            for name, weight in zip(names, (gate, up, down), strict=True):
                theirs[f"experts.{e}.{name}.weight"] = weight[e]
    if model_type in HAS_SHARED:
        add_shared(theirs, ours, draw)
        options |= {"moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True,
                    "moe_shared_expert_intermediate_size": SHARED}
    return SimpleNamespace(theirs=theirs, ours=ours, options=options)


def gpt_oss(ours, draw):
    ours |= {"router.bias": draw(E), "experts.bias1": draw(E, 2 * N), "experts.bias2": draw(E, H)}

    def alternating(x):
        return np.stack((x[..., :N], x[..., N:]), -1).reshape(x.shape)
    return {"router.weight": ours["router.weight"], "router.bias": ours["router.bias"],
            "experts.gate_up_proj": alternating(ours["experts.weight1"]),
            "experts.gate_up_proj_bias": alternating(ours["experts.bias1"]),
            "experts.down_proj": ours["experts.weight2"], "experts.down_proj_bias": ours["experts.bias2"]}


def add_shared(theirs, ours, draw):
    gate, up, down = draw(SHARED, H), draw(SHARED, H), draw(H, SHARED)
    theirs |= {"shared_experts.gate_proj.weight": gate, "shared_experts.up_proj.weight": up,
               "shared_experts.down_proj.weight": down, "gate.e_score_correction_bias": draw(E)}
    ours |= {"shared_experts.linear_fc1.weight": np.stack((gate, up), 1).reshape(2 * SHARED, H),
             "shared_experts.linear_fc2.weight": down, "expert_bias": theirs["gate.e_score_correction_bias"]}


def make_layer(block, **options):
    return hpmoe.nn.MoELayer(**block.options, **options)


def prefixed(prefix, arrays):
    return {prefix + name: array for name, array in arrays.items()}
