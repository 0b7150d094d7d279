"""What decides a layer's output is in its Parameters: graphs compiled before, checkpoints and restarts follow it."""

import layer_oracle
import mindspore as ms
import numpy as np
import pytest

import hpmoe

SIZES = {"hidden_size": 6, "moe_ffn_hidden_size": 5, "num_moe_experts": 8, "moe_router_topk": 2, "init_method_std": 1.0}


def make_layer(seed=0, **options):
    ms.set_seed(seed)
    return hpmoe.nn.MoELayer(**{**SIZES, **options})


def tokens(seed=0, shape=(2, 12, 6)):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def masked_output(x, layer, masked):
    """The layer's output in float64, as of a layer that has no masked experts."""
    kept = [e for e in range(SIZES["num_moe_experts"]) if e not in masked]
    p = {name: v.asnumpy().astype(np.float64) for name, v in layer.parameters_and_names()}
    p = {name: v[kept] for name, v in p.items() if name.startswith("experts.weight") or name == "router.weight"}
    return layer_oracle.layer(x.reshape(-1, 6).astype(np.float64), p, k=2, score="softmax",
                              normalize=True)[0].reshape(x.shape)


@pytest.mark.parametrize("mesh", [None, hpmoe.Mesh(2)], ids=["one rank", "two ranks"])
def test_a_compiled_graph_follows_the_mask(mesh):
    layer, x = make_layer(mesh=mesh), tokens()

    def call(x):
        return layer(x)
    graph = ms.jit(call)
    for masked in ([], [1, 6], [0], []):
        layer.mask_experts(masked)
        for f in (graph, call):
            np.testing.assert_allclose(f(ms.Tensor(x)).asnumpy(), masked_output(x, layer, masked), rtol=1e-4, atol=1e-4)


def test_a_checkpoint_has_the_mask(tmp_path):
    layer, other, x = make_layer(), make_layer(1), tokens()
    layer.mask_experts([2, 3])
    ms.save_checkpoint(layer, str(tmp_path / "layer.ckpt"))
    ms.load_param_into_net(other, ms.load_checkpoint(str(tmp_path / "layer.ckpt")))
    hpmoe.nn.save_shards(tmp_path / "shards", layer)
    third = make_layer(2)
    assert hpmoe.nn.load_shards(tmp_path / "shards", third) == []
    for each in (other, third):
        np.testing.assert_allclose(each(ms.Tensor(x)).asnumpy(), masked_output(x, layer, [2, 3]), rtol=1e-4, atol=1e-4)
