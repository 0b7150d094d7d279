"""LoRA on experts: their weights stay frozen, two thin matrices for each are trained, and only these cost a gradient.

    python examples/13_lora_on_experts.py

`add_lora` adds adapters to a layer, W + alpha / rank * A B for each expert, and freezes the rest; the backward kernel leaves
out the gradients of what is frozen, most of its work. The adapters are saved as PEFT reads them, loaded again, and merged.
The time of a step is measured beside that of a layer without adapters, with all weights trained.
"""

import argparse
import statistics
import tempfile
import time

import mindspore as ms
import numpy as np

import hpmoe

LAYER = {"hidden_size": 512, "moe_ffn_hidden_size": 512, "num_moe_experts": 8, "moe_router_topk": 2}
TOKENS, RANK, STEPS, PREFIX = 1024, 8, 5, "model.layers.0.mlp"


def make_step(layer, target):
    """A function that computes the loss and the gradients of what is trained."""
    return ms.value_and_grad(lambda x: ((layer(x) - target) ** 2).mean(), None, layer.trainable_params())


def main():
    rng = np.random.default_rng(0)
    x, target = (ms.Tensor(rng.standard_normal((TOKENS, 512)).astype(np.float32)) for _ in range(2))
    ms.set_seed(0)
    layer, full = hpmoe.nn.MoELayer(**LAYER), hpmoe.nn.MoELayer(**LAYER)
    ms.load_param_into_net(full, {p.name: p for p in layer.get_parameters()})
    before = layer.experts.weight1.asnumpy().copy()
    hpmoe.nn.add_lora(layer, rank=RANK, alpha=2 * RANK)
    trained = layer.trainable_params()
    print(f"trained: {', '.join(p.name for p in trained)}, {sum(p.size for p in trained):,} of "
          f"{sum(p.size for p in full.trainable_params()):,} numbers")

    step, optimizer = make_step(layer, target), ms.nn.Adam(trained, 1e-3)
    losses = []
    for _ in range(STEPS):
        loss, grads = step(x)
        optimizer(grads)
        losses.append(float(loss))
    print(f"loss {losses[0]:.4f} -> {losses[-1]:.4f} in {STEPS} steps")
    assert losses[-1] < losses[0] and (layer.experts.weight1.asnumpy() == before).all()

    with tempfile.TemporaryDirectory() as folder:
        hpmoe.nn.save_lora(layer, folder, PREFIX)                  # adapter_config.json, adapter_model.safetensors
        hpmoe.nn.load_lora(full, folder, PREFIX)
    out = layer(x).asnumpy()
    assert (full(x).asnumpy() == out).all()
    hpmoe.nn.merge_lora(full)
    print(f"merged: outputs differ by {np.abs(full(x).asnumpy() - out).max():.1e}")

    steps = {"all weights trained": make_step(full, target), "only adapters": step}
    times = {name: [] for name in steps}
    for _ in range(9):  # in turn, so that both run under the same load
        for name, compute in steps.items():
            start = time.perf_counter()
            compute(x)
            times[name].append(time.perf_counter() - start)
    for name, seconds in times.items():
        print(f"{name:<20} {statistics.median(seconds) * 1e3:6.1f} ms forward and backward")
    whole, lean = (statistics.median(t) for t in times.values())
    print(f"a step with frozen experts takes {lean / whole:.2f} of the time")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
