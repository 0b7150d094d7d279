"""Every model type of transformers that has experts: options from its configuration, weights through files, gradients."""

import json
import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from model_blocks import Block, config_of

import hpmoe
from hpmoe.nn import hugging_face_options, load_hugging_face, save_hugging_face
from hpmoe.nn.hugging_face_options import names_fixed, names_taken
from hpmoe.nn.model_types import IGNORED, MODELS, REFUSED

pytestmark = pytest.mark.reference
NOT_OF_FOLDERS = {"kimi_k2", "qwen3_omni_moe_talker"}  # of other names in transformers


def test_every_type_with_experts_is_in_the_table():
    """Or is refused for a reason; and no entry is of a type that transformers does not have."""
    import transformers
    folder = Path(transformers.__file__).parent / "models"
    texts = {path.parent.name: path.read_text(encoding="utf-8") for path in folder.glob("*/modeling_*.py")}
    found = {name for name, text in texts.items() if re.search(r"self\.experts\b|num_experts\b|class \w*Experts", text)}
    known = MODELS.keys() | REFUSED.keys()
    assert sorted(found - known) == []
    assert sorted(known - texts.keys() - NOT_OF_FOLDERS) == []
    assert not MODELS.keys() & REFUSED.keys()


# Fields that change a block and that no option takes: None, False or 0 is the only value that is no error.
UNSUPPORTED = {"mlp_bias", "moe_apply_router_weight_on_input", "moe_latent_size", "router_bias", "router_jitter_noise",
               "use_bias"}
# Ignored fields that some block reads, and why its output does not change.
HARMLESS = {"ffn_config": "its fields are taken", "n_shared_experts": "another name of num_shared_experts",
            "intermediate_size": "the default of a width that is given", "mlp_layer_types": "layers that have no such block"}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("model_type", MODELS)
def test_fields_are_options_or_known_to_be_harmless(model_type):
    """Every field of transformers' class is classified, and what the block reads is not ignored."""
    import torch
    block, model = Block(model_type), MODELS[model_type]
    handled = names_taken(model) | names_fixed(model).keys()
    assert sorted(block.fields.keys() - handled - IGNORED - UNSUPPORTED) == []
    block(torch.zeros(1, 2, hugging_face_options(block.fields)["hidden_size"]))
    assert sorted(block.read & IGNORED - handled - HARMLESS.keys()) == []
    for name in block.fields.keys() & UNSUPPORTED - handled:
        with pytest.raises(hpmoe.ArgumentError, match=name):
            hugging_face_options(block.fields | {name: 0.5})


def close(name, ours, theirs):
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * max(1, np.abs(theirs).max()), err_msg=name)


def write(folder, arrays):
    from safetensors.torch import save_file
    folder.mkdir(exist_ok=True)
    arrays = {name: x.clone().contiguous() for name, x in arrays.items()}
    save_file(arrays, folder / "model.safetensors", metadata={"format": "pt"})


# (Type, number of virtual ranks, fields of the configuration)
CASES = {name: (name, None, {}) for name in MODELS} | {
    "qwen3_moe, not normalized": ("qwen3_moe", 2, {"num_experts": 6, "num_experts_per_tok": 1, "hidden_size": 20}),
    "mixtral, all experts": ("mixtral", 3, {"num_local_experts": 3, "hidden_size": 8, "intermediate_size": 5}),
    "deepseek_v3, other groups": ("deepseek_v3", 2, {
        "n_routed_experts": 12, "num_experts_per_tok": 5, "n_group": 3, "routed_scaling_factor": 1.3,
        "norm_topk_prob": False}),
    "deepseek_v3, no shared expert": ("deepseek_v3", 2, {"n_group": 1, "topk_group": 1, "n_shared_experts": 0}),
    "kimi_k2, one of many": ("kimi_k2", 2, {"n_routed_experts": 24, "num_experts_per_tok": 1, "n_group": 1, "topk_group": 1,
                                            "norm_topk_prob": False}),
    "glm4_moe, groups": ("glm4_moe", 2, {"n_routed_experts": 10, "num_experts_per_tok": 4, "n_group": 5, "topk_group": 3}),
    "gpt_oss, clamped": ("gpt_oss", 2, {"intermediate_size": 18, "swiglu_limit": 0.4, "swiglu_alpha": 1.1})}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("case", CASES)
def test_output_gradients_and_files(case, tmp_path):
    """Checks a layer made from the configuration and loaded from files; it saves equal files."""
    import torch
    model_type, ep_size, fields = CASES[case]
    block = Block(model_type, seed=len(model_type), **fields)
    options = hugging_face_options(block.fields)
    layer = hpmoe.nn.MoELayer(**options, mesh=ep_size and hpmoe.Mesh(ep_size))
    write(tmp_path / "theirs", block.files())
    load_hugging_face(layer, tmp_path / "theirs", block.prefix, model_type=model_type)
    rng = np.random.default_rng(4)
    x, cotangent = rng.standard_normal((2, 2, 15, options["hidden_size"])).astype(np.float32)
    given = torch.from_numpy(x).requires_grad_()
    expected = block(given)
    (expected * torch.from_numpy(cotangent)).sum().backward()
    weights = layer.trainable_params()
    names = {id(p): name for name, p in layer.parameters_and_names()}

    def loss_of(x):
        out = layer(x)
        return (out * ms.Tensor(cotangent)).sum(), out
    (_, out), (x_grad, grads) = ms.value_and_grad(loss_of, 0, weights, has_aux=True)(ms.Tensor(x))
    close("output", out.asnumpy(), expected.detach().numpy())
    close("hidden_states", x_grad.asnumpy(), given.grad.numpy())
    write(tmp_path / "gradients", block.files(gradients=True))
    theirs = hpmoe.nn.MoELayer(**options)
    load_hugging_face(theirs, tmp_path / "gradients", block.prefix, model_type=model_type)
    theirs = dict(theirs.parameters_and_names())
    for p, grad in zip(weights, grads, strict=True):
        close(names[id(p)], grad.asnumpy(), theirs[names[id(p)]].asnumpy())
    check_saved(layer, block, model_type, tmp_path)


def check_saved(layer, block, model_type, folder):
    """Asserts that saved arrays are those that transformers has in files or in memory, and that they load again."""
    from safetensors import safe_open
    forms = block.files(), block.state()
    for fused in (False, True):
        out = folder / f"ours, fused {fused}"
        save_hugging_face(layer, out, block.prefix, model_type=model_type, fused=fused)
        again = hpmoe.nn.MoELayer(**hugging_face_options(block.fields))
        load_hugging_face(again, out, block.prefix, model_type=model_type)
        for p, q in zip(layer.get_parameters(), again.get_parameters(), strict=True):
            assert p.name in ("counted_tokens", "tokens_per_expert") or (p.asnumpy() == q.asnumpy()).all(), p.name
        with safe_open(next(out.glob("*.safetensors")), "pt") as file:
            assert len(file.keys()) in map(len, forms)
            for name in file.keys():
                x, inner = file.get_tensor(name), name.removeprefix(block.prefix)
                theirs = [y for form in forms for key, y in form.items() if key.endswith(inner) and y.shape == x.shape]
                assert any((x == y).all() for y in theirs), name


WHOLE = {"qwen3_moe": "mlp", "mixtral": "block_sparse_moe", "deepseek_v3": "mlp", "kimi_k2": "mlp", "glm4_moe": "mlp",
         "gpt_oss": "mlp"}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("model_type", WHOLE)
def test_files_of_whole_models(model_type, tmp_path):
    """A layer reads a model that transformers saves in several files, and saves equal bytes."""
    import torch
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM
    dense = {"first_k_dense_replace": 1} if model_type in ("deepseek_v3", "kimi_k2") else {}
    model = AutoModelForCausalLM.from_config(config_of(model_type, **dense)).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "theirs", max_shard_size="4KB")
    fields = json.loads((tmp_path / "theirs/config.json").read_text()) | {"model_type": model_type}
    layer, again = (hpmoe.nn.MoELayer(**hugging_face_options(fields), dtype=ms.bfloat16) for _ in range(2))
    prefix = f"model.layers.1.{WHOLE[model_type]}"
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 3
    load_hugging_face(layer, tmp_path / "theirs", prefix, model_type=model_type, allow_rounding=True)
    save_hugging_face(layer, tmp_path / "ours", prefix, model_type=model_type)
    load_hugging_face(again, model.model.layers[1].mlp.state_dict(), model_type=model_type)
    for p, q in zip(layer.get_parameters(), again.get_parameters(), strict=True):
        assert (p.astype(ms.float32) == q.astype(ms.float32)).all(), p.name
    with safe_open(next((tmp_path / "ours").glob("*.safetensors")), "pt") as ours:
        for file in (tmp_path / "theirs").glob("*.safetensors"):
            with safe_open(file, "pt") as theirs:
                for key in filter(lambda key: key.startswith(prefix), theirs.keys()):
                    assert (ours.get_tensor(key) == theirs.get_tensor(key)).all(), key
