"""Adapters that PEFT writes: loaded, computed as PEFT computes them, and given back."""

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.nn import hugging_face_options, load_hugging_face, load_lora, save_lora

pytestmark = pytest.mark.reference
SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 11,
         "head_dim": 8, "num_experts_per_tok": 2}
MODELS = {"qwen3_moe": ("Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 6}),
          "mixtral": ("Mixtral", {"num_local_experts": 4, "intermediate_size": 6}),
          "gpt_oss": ("GptOss", {"num_local_experts": 4, "intermediate_size": 16})}  # square, as published
TARGETS = [["gate_up_proj", "down_proj"], ["down_proj"], ["gate_up_proj"]]


def make(model_type):
    import torch
    import transformers
    name, fields = MODELS[model_type]
    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**SMALL | fields)
    config._experts_implementation = "eager"
    return getattr(transformers, f"{name}ForCausalLM")(config).eval()


def block_of(model, x):
    import torch
    found = model.base_model.model.model.layers[1].mlp(torch.from_numpy(x))
    return (found[0] if isinstance(found, tuple) else found).detach().numpy()


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("targets", TARGETS, ids="+".join)
@pytest.mark.parametrize("model_type", MODELS)
def test_a_block_with_adapters(model_type, targets, tmp_path):
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    model = make(model_type)
    layer = hpmoe.nn.MoELayer(**hugging_face_options(model.config.to_dict()))
    load_hugging_face(layer, {name: x.clone() for name, x in model.state_dict().items()}, "model.layers.1.mlp",
                      model_type=model_type)
    config = LoraConfig(r=3, lora_alpha=5, target_modules=[], target_parameters=[f"mlp.experts.{name}" for name in targets])
    adapted = get_peft_model(model, config)
    with torch.no_grad():
        for name, p in adapted.named_parameters():
            if "lora_" in name:
                p.copy_(torch.randn(p.shape))
    adapted.save_pretrained(tmp_path / "theirs")
    load_lora(layer, tmp_path / "theirs", "model.layers.1.mlp", model_type=model_type)
    x = np.random.default_rng(0).standard_normal((2, 5, 16)).astype(np.float32)
    expected = block_of(adapted, x)
    out = layer(ms.Tensor(x)).asnumpy()
    np.testing.assert_allclose(out, expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))
    both = {f"model.layers.{i}.mlp": layer for i in range(2)}
    save_lora(both, tmp_path / "ours", model_type=model_type)
    again = PeftModel.from_pretrained(make(model_type), tmp_path / "ours").eval()
    np.testing.assert_allclose(block_of(again, x), expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()))
