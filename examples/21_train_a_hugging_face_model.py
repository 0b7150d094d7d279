"""A model that transformers saved: its mixture-of-experts blocks are loaded, trained ten steps, and given back.

    pip install -e '.[reference]'
    python examples/21_train_a_hugging_face_model.py

`hugging_face_options` makes each layer's options of config.json, `load_hugging_face` fills it, and `save_hugging_face`
with `base=` writes a folder with the rest of the model, which `from_pretrained` reads. Each block learns to return half of
what it returned; transformers then computes with the trained blocks.
"""

import argparse
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np

import hpmoe

LAYERS, HIDDEN, STEPS = 2, 32, 10


def save_pretrained(folder):
    """Writes a small Qwen3-MoE of random weights."""
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
    torch.manual_seed(0)
    config = Qwen3MoeConfig(hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=2, num_key_value_heads=2,
                            head_dim=16, vocab_size=64, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=24,
                            norm_topk_prob=True, initializer_range=0.3)
    Qwen3MoeForCausalLM(config).save_pretrained(folder)


def block_of_transformers(folder, i, x):
    """Returns the output of MoE block i of the model in a folder, computed by transformers."""
    import torch
    from transformers import Qwen3MoeForCausalLM
    out = Qwen3MoeForCausalLM.from_pretrained(folder).model.layers[i].mlp(torch.from_numpy(x))
    return (out[0] if isinstance(out, tuple) else out).detach().numpy()


def train(layer, x, target):
    """Trains a layer towards a target; returns the losses."""
    def loss_of(x):
        return ((layer(x) - target) ** 2).mean()
    step, losses = ms.value_and_grad(loss_of, None, layer.trainable_params()), []
    optimizer = ms.nn.Adam(layer.trainable_params(), 1e-2)
    for _ in range(STEPS):
        loss, grads = step(x)
        optimizer(grads)
        losses.append(float(loss))
    return losses


def main():
    x = np.random.default_rng(0).standard_normal((4, 16, HIDDEN)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        given, trained = Path(folder) / "given", Path(folder) / "trained"
        save_pretrained(given)
        layers = {f"model.layers.{i}.mlp": hpmoe.nn.MoELayer(**hpmoe.nn.hugging_face_options(given)) for i in range(LAYERS)}
        for i, (prefix, layer) in enumerate(layers.items()):
            hpmoe.nn.load_hugging_face(layer, given, prefix)
            out = layer(ms.Tensor(x))
            assert np.abs(out.asnumpy() - block_of_transformers(given, i, x)).max() < 1e-4
            losses = train(layer, ms.Tensor(x), out / 2)
            print(f"{prefix}: loss {losses[0]:.4f} -> {losses[-1]:.4f} in {STEPS} steps")
            assert losses[-1] < losses[0]
        hpmoe.nn.save_hugging_face(layers, trained, model_type="qwen3_moe", base=given)
        for i, layer in enumerate(layers.values()):
            gap = np.abs(layer(ms.Tensor(x)).asnumpy() - block_of_transformers(trained, i, x)).max()
            print(f"block {i} of from_pretrained(trained) differs from the trained layer by {gap:.1e}")
            assert gap < 1e-4


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
