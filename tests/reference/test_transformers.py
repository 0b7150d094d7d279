"""MoELayer beside the modules of transformers: outputs, all gradients, and the files that transformers writes."""

import json
import sys

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.nn import hugging_face_options, load_hugging_face, save_hugging_face

pytestmark = pytest.mark.reference

ATTENTION = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 11, "num_hidden_layers": 2}
DEEPSEEK = {"kv_lora_rank": 4, "q_lora_rank": 4, "qk_rope_head_dim": 4, "v_head_dim": 4, "qk_nope_head_dim": 4,
            "first_k_dense_replace": 1}


def deepseek(**fields):
    """Fields of DeepseekV3Config, by shorter names of those that each case has."""
    return {**DEEPSEEK, "hidden_size": 24, "moe_intermediate_size": 10, "n_shared_experts": 1, **fields}


# (model_type, configuration of transformers, what its block is, fields)
CASES = {
    "qwen3_moe": ("Qwen3Moe", "SparseMoeBlock", {"num_experts": 8, "num_experts_per_tok": 3, "hidden_size": 16,
                                                 "moe_intermediate_size": 12, "norm_topk_prob": True}),
    "qwen3_moe, not normalized": ("Qwen3Moe", "SparseMoeBlock", {
        "num_experts": 6, "num_experts_per_tok": 1, "hidden_size": 20, "moe_intermediate_size": 7}),
    "mixtral": ("Mixtral", "SparseMoeBlock", {"num_local_experts": 4, "num_experts_per_tok": 2, "hidden_size": 16,
                                              "intermediate_size": 24}),
    "mixtral, all experts": ("Mixtral", "SparseMoeBlock", {
        "num_local_experts": 3, "num_experts_per_tok": 3, "hidden_size": 8, "intermediate_size": 5}),
    "deepseek_v3": ("DeepseekV3", "MoE", deepseek(n_routed_experts=16, num_experts_per_tok=4, n_group=4, topk_group=2)),
    "deepseek_v3, other groups": ("DeepseekV3", "MoE", deepseek(
        n_routed_experts=12, num_experts_per_tok=5, n_group=3, topk_group=2, n_shared_experts=2, routed_scaling_factor=1.3,
        norm_topk_prob=False)),
    "deepseek_v3, no shared expert": ("DeepseekV3", "MoE", deepseek(
        n_routed_experts=6, num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=0)),
    "kimi_k2": ("DeepseekV3", "MoE", deepseek(n_routed_experts=12, num_experts_per_tok=8, n_group=1, topk_group=1,
                                              routed_scaling_factor=2.827)),
    "kimi_k2, one of many": ("DeepseekV3", "MoE", deepseek(n_routed_experts=24, num_experts_per_tok=1, n_group=1,
                                                           topk_group=1, norm_topk_prob=False)),
    "glm4_moe": ("Glm4Moe", "MoE", {"n_routed_experts": 8, "num_experts_per_tok": 3, "hidden_size": 16,
                                    "moe_intermediate_size": 6}),
    "glm4_moe, groups": ("Glm4Moe", "MoE", {
        "n_routed_experts": 10, "num_experts_per_tok": 4, "hidden_size": 16, "moe_intermediate_size": 9, "n_group": 5,
        "topk_group": 3, "routed_scaling_factor": 0.7, "n_shared_experts": 3}),
    "gpt_oss": ("GptOss", "MLP", {"num_local_experts": 8, "num_experts_per_tok": 4, "hidden_size": 16,
                                  "intermediate_size": 16}),
    "gpt_oss, clamped": ("GptOss", "MLP", {
        "num_local_experts": 5, "num_experts_per_tok": 2, "hidden_size": 12, "intermediate_size": 18, "swiglu_limit": 0.4,
        "swiglu_alpha": 1.1}),
}


def of_transformers(name, kind):
    """A class of transformers' module of a model, as "Config" and "ForCausalLM" of Mixtral."""
    import transformers
    if kind in ("Config", "ForCausalLM"):
        return getattr(transformers, name + kind)
    model = sys.modules[getattr(transformers, name + "ForCausalLM").__module__]
    return getattr(model, name + kind)


def make_config(case):
    name, _, fields = CASES[case]
    return of_transformers(name, "Config")(**ATTENTION, **fields, **({} if name == "DeepseekV3" else {"head_dim": 4}))


def make_block(case, seed):
    """A block of transformers with random weights and biases, its configuration as its config.json has it."""
    import torch
    name, kind, _ = CASES[case]
    config = make_config(case)
    config._experts_implementation = "eager"
    block = of_transformers(name, kind)(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in block.state_dict().values():
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.4)
    fields = json.loads(config.to_json_string())
    return block, fields | {"model_type": case.split(",")[0]}


def as_ours(theirs):
    """A block's arrays, or their gradients, as transformers has them in memory, by the names of a MoELayer."""
    theirs = {name: tensor.detach().numpy() for name, tensor in theirs.items()}
    gate_up, down = theirs["experts.gate_up_proj"], theirs["experts.down_proj"]
    if "router.bias" in theirs:
        def stacked(x):
            return np.concatenate((x[..., 0::2], x[..., 1::2]), -1)
        return {"router.weight": theirs["router.weight"], "router.bias": theirs["router.bias"],
                "experts.weight1": stacked(gate_up), "experts.bias1": stacked(theirs["experts.gate_up_proj_bias"]),
                "experts.weight2": down, "experts.bias2": theirs["experts.down_proj_bias"]}
    ours = {"router.weight": theirs["gate.weight"], "experts.weight1": gate_up.transpose(0, 2, 1),
            "experts.weight2": down.transpose(0, 2, 1)}
    if theirs.get("shared_experts.up_proj.weight", np.empty(0)).size:
        gate, up = (theirs[f"shared_experts.{half}_proj.weight"] for half in ("gate", "up"))
        ours["shared_experts.linear_fc1.weight"] = np.stack((gate, up), 1).reshape(-1, gate.shape[1])
        ours["shared_experts.linear_fc2.weight"] = theirs["shared_experts.down_proj.weight"]
    return ours


def close(name, ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * max(1, np.abs(theirs).max()), err_msg=name)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors:UserWarning")
@pytest.mark.parametrize("ep_size", [None, 2])
@pytest.mark.parametrize("case", CASES)
def test_output_and_all_gradients(case, ep_size):
    import torch
    block, fields = make_block(case, seed=3)
    options = hugging_face_options(fields)
    if ep_size and options["num_moe_experts"] % ep_size:
        ep_size = options["num_moe_experts"]
    layer = hpmoe.nn.MoELayer(**options, mesh=ep_size and hpmoe.Mesh(ep=ep_size))
    load_hugging_face(layer, block.state_dict(), model_type=fields["model_type"])

    rng = np.random.default_rng(4)
    x, cotangent = rng.standard_normal((2, 2, 15, options["hidden_size"])).astype(np.float32)
    given = torch.from_numpy(x).requires_grad_()
    expected = block(given)
    expected = expected[0] if isinstance(expected, tuple) else expected
    (expected * torch.from_numpy(cotangent)).sum().backward()

    weights = layer.trainable_params()
    names = {id(p): name for name, p in layer.parameters_and_names()}
    def loss_of(x):
        out = layer(x)
        return (out * ms.Tensor(cotangent)).sum(), out
    (_, out), (x_grad, grads) = ms.value_and_grad(loss_of, 0, weights, has_aux=True)(ms.Tensor(x))
    close("output", out.asnumpy(), expected.detach().numpy())
    close("hidden_states", x_grad.asnumpy(), given.grad.numpy())
    of_theirs = as_ours({name: p.grad for name, p in block.named_parameters()})
    assert sorted(of_theirs) == sorted(names[id(p)] for p in weights)
    for p, grad in zip(weights, grads, strict=True):
        close(names[id(p)], grad.asnumpy(), of_theirs[names[id(p)]])


@pytest.mark.parametrize("case", [case for case in CASES if "," not in case])
def test_files_that_transformers_writes(case, tmp_path):
    """A model in several files is read by its configuration and its names, and saved again with the same bytes."""
    import safetensors
    import torch
    name, _, _ = CASES[case]
    model = of_transformers(name, "ForCausalLM")(make_config(case)).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    fields = json.loads((tmp_path / "theirs/config.json").read_text()) | {"model_type": case}
    layer = hpmoe.nn.MoELayer(**hugging_face_options(fields), dtype=ms.bfloat16)
    prefix = "model.layers.1.block_sparse_moe" if case == "mixtral" else "model.layers.1.mlp"
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 3
    load_hugging_face(layer, tmp_path / "theirs", prefix, model_type=case, allow_rounding=True)
    save_hugging_face(layer, tmp_path / "ours", prefix, model_type=case)
    again = hpmoe.nn.MoELayer(**hugging_face_options(fields), dtype=ms.bfloat16)
    load_hugging_face(again, model.model.layers[1].mlp.state_dict(), model_type=case)
    for p, q in zip(layer.get_parameters(), again.get_parameters(), strict=True):
        assert (p.astype(ms.float32) == q.astype(ms.float32)).all(), p.name
    with safetensors.safe_open(next((tmp_path / "ours").glob("*.safetensors")), "pt") as ours:
        for file in (tmp_path / "theirs").glob("*.safetensors"):
            with safetensors.safe_open(file, "pt") as theirs:
                for key in filter(lambda key: key.startswith(prefix), theirs.keys()):
                    assert (ours.get_tensor(key) == theirs.get_tensor(key)).all(), key
