"""Adapters of experts: beside the merged layer on one rank, EP and TP, and through files."""

import json

import mindspore as ms
import numpy as np
import pytest

import hpmoe
from hpmoe.nn import add_lora, load_lora, merge_lora, save_lora

OPTIONS = {"hidden_size": 8, "moe_ffn_hidden_size": 6, "num_moe_experts": 4, "moe_router_topk": 2, "init_method_std": 0.4,
           "moe_shared_expert_intermediate_size": 5}
MESHES = {"one rank": None, "EP": hpmoe.Mesh(2), "EP and TP": hpmoe.Mesh(2, tp=2)}
X = np.random.default_rng(0).standard_normal((2, 6, 8)).astype(np.float32)


def make(mesh=None, seed=1, **options):
    layer = hpmoe.nn.MoELayer(**OPTIONS | options, mesh=mesh)
    rng = np.random.default_rng(seed)
    for p in layer.trainable_params():
        p.set_data(ms.Tensor((0.4 * rng.standard_normal(p.shape)).astype(np.float32)))
    return layer


def adapted(mesh=None, **options):
    """A layer with adapters whose B is not zero."""
    layer = make(mesh, **options)
    add_lora(layer, rank=3, alpha=4.5)
    rng = np.random.default_rng(2)
    for p in layer.trainable_params():
        p.set_data(ms.Tensor(rng.standard_normal(p.shape).astype(np.float32)))
    return layer


def gradients(layer):
    weights = layer.trainable_params()
    def loss_of(x):
        return (layer(x) ** 2).sum()
    loss, (x_grad, grads) = ms.value_and_grad(loss_of, 0, weights)(ms.Tensor(X))
    return x_grad.asnumpy(), {p.name.rpartition(".")[2]: g.asnumpy() for p, g in zip(weights, grads, strict=True)}


@pytest.mark.parametrize("mesh", MESHES)
def test_gradients_beside_the_merged_layer(mesh):
    """dA = s dW @ B.T and dB = s A.T @ dW, with dW of the layer whose weights have the adapters added."""
    layer, merged = adapted(MESHES[mesh]), adapted()
    out, (x_grad, grads) = layer(ms.Tensor(X)).asnumpy(), gradients(layer)
    assert sorted(grads) == ["lora_a1", "lora_a2", "lora_b1", "lora_b2"]
    arrays = {name: getattr(merged.experts, name).asnumpy() for name in grads}
    merge_lora(merged)
    x_grad_merged, of_weights = gradients(merged)
    np.testing.assert_allclose(out, merged(ms.Tensor(X)).asnumpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(x_grad, x_grad_merged, rtol=1e-4, atol=2e-4 * np.abs(x_grad_merged).max())
    for number in "12":
        a, b, grad = arrays[f"lora_a{number}"], arrays[f"lora_b{number}"], of_weights[f"weight{number}"] * 1.5
        for name, expected in ((f"lora_a{number}", grad @ b.swapaxes(1, 2)), (f"lora_b{number}", a.swapaxes(1, 2) @ grad)):
            np.testing.assert_allclose(grads[name], expected, rtol=1e-3, atol=1e-4 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("model_type", ["qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("mesh", MESHES)
def test_files_hold_what_was_trained(mesh, model_type, tmp_path):
    layer = adapted()
    prefix = "model.layers.3.mlp"
    save_lora(layer, tmp_path, prefix, model_type=model_type)
    loaded = make(MESHES[mesh])
    load_lora(loaded, tmp_path, prefix, model_type=model_type)
    for name in ("lora_a1", "lora_b1", "lora_a2", "lora_b2"):
        np.testing.assert_array_equal(getattr(loaded.experts, name).asnumpy(), getattr(layer.experts, name).asnumpy())
    np.testing.assert_allclose(loaded(ms.Tensor(X)).asnumpy(), layer(ms.Tensor(X)).asnumpy(), rtol=1e-4, atol=1e-4)
    save_lora(loaded, tmp_path / "again", prefix, model_type=model_type)
    for name in ("adapter_model.safetensors", "adapter_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / name).read_bytes()


def test_adapters_of_moved_experts(tmp_path):
    """Files have experts in order, wherever they lie."""
    save_lora(adapted(), tmp_path)
    layer, order = make(hpmoe.Mesh(2)), [2, 0, 3, 1]
    for name in ("weight1", "weight2"):
        weight = getattr(layer.experts, name)
        weight.set_data(ms.Tensor(weight.asnumpy()[np.argsort(order)]))
    layer.experts.places.set_data(ms.Tensor(order, ms.int32))
    load_lora(layer, tmp_path)
    np.testing.assert_allclose(layer(ms.Tensor(X)).asnumpy(), adapted()(ms.Tensor(X)).asnumpy(), rtol=1e-4, atol=1e-4)
    save_lora(layer, tmp_path / "again")
    again, first = ((tmp_path / folder / "adapter_model.safetensors").read_bytes() for folder in ("again", "."))
    assert again == first


@pytest.mark.parametrize("field,value", [("use_dora", True), ("bias", "all"), ("rank_pattern", {"experts": 4}), ("r", 2)])
def test_other_adapters_are_refused(field, value, tmp_path):
    save_lora(adapted(), tmp_path)
    config = json.loads((tmp_path / "adapter_config.json").read_text()) | {field: value}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises(hpmoe.ArgumentError, match=field if field != "r" else "one with adapters"):
        load_lora(make(), tmp_path)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_compiled_graph_has_adapters(mesh):
    layer = adapted(MESHES[mesh])

    def compiled(x):
        return layer(x)
    np.testing.assert_array_equal(ms.jit(compiled)(ms.Tensor(X)).asnumpy(), layer(ms.Tensor(X)).asnumpy())


def test_one_weight_has_an_adapter(tmp_path):
    layer = make()
    add_lora(layer, rank=2, alpha=2, targets=("down_proj",))
    assert [p.name for p in layer.trainable_params()] == ["experts.lora_a2", "experts.lora_b2"]
    save_lora(layer, tmp_path)
    loaded = make()
    load_lora(loaded, tmp_path)
    assert [p.name for p in loaded.trainable_params()] == ["experts.lora_a2", "experts.lora_b2"]
