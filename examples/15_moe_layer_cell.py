"""A MoE layer as a Cell: trained by Model.train, balanced by a bias, saved, loaded on two ranks, and fine-tuned in part.

    python examples/15_moe_layer_cell.py

Router, experts and shared expert are one `hpmoe.nn.MoELayer`, whose Parameters are MindFormers' by name and layout. What it
learns here is another layer with weights of its own. Its tokens are of a few kinds of unequal number, so that some experts
would be chosen far more often than others; after each step a bias is moved against that, without a loss.
"""

import argparse
import tempfile
from pathlib import Path

import mindspore as ms
import numpy as np

import hpmoe

HIDDEN_SIZE, NUM_EXPERTS, NUM_SEQUENCES, LENGTH, NUM_STEPS = 32, 8, 4, 64, 60
SIZES = {"hidden_size": HIDDEN_SIZE, "moe_ffn_hidden_size": 24, "num_moe_experts": NUM_EXPERTS, "moe_router_topk": 2,
         "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True, "moe_router_bias_update_rate": 0.02,
         "moe_shared_expert_intermediate_size": 24, "init_method_std": 0.2}


class Regression(ms.nn.Cell):
    """The mean squared difference of a layer's output from the target."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def construct(self, hidden_states, target):
        return ((self.layer(hidden_states) - target) ** 2).mean()


class Balance(ms.train.Callback):
    """Moves the bias of a layer after each step; notes losses, and how many times the mean the busiest expert got."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.losses, self.imbalance = layer, [], []

    def on_train_step_end(self, run_context):
        counts = self.layer.tokens_per_expert.asnumpy()
        self.layer.update_expert_bias()
        self.losses.append(float(run_context.original_args().net_outputs.asnumpy()))
        self.imbalance.append(counts.max() / counts.mean())


def batches(rng, teacher):
    """Sequences of tokens around a few centres, the first ones far more often, and what the teacher makes of them."""
    centres = rng.standard_normal((6, HIDDEN_SIZE)) * 1.5
    for _ in range(NUM_STEPS):
        kind = np.minimum(rng.geometric(0.5, (NUM_SEQUENCES, LENGTH)), 6) - 1
        tokens = (centres[kind] + rng.standard_normal((*kind.shape, HIDDEN_SIZE)) / 2).astype(np.float32)
        yield tokens, teacher(ms.Tensor(tokens)).asnumpy()


def train(layer, data):
    balance, network = Balance(layer), Regression(layer)
    model = ms.train.Model(network, optimizer=ms.nn.Adam(network.trainable_params(), learning_rate=0.01))
    model.train(1, ms.dataset.NumpySlicesDataset(data, ["hidden_states", "target"], shuffle=False), callbacks=[balance],
                dataset_sink_mode=False)
    return balance


def backward_tasks(layer, batch):
    """Returns the number of tile tasks of the backward kernel for the trained Parameters."""
    network = Regression(layer)
    grads = ms.grad(network, None, layer.trainable_params())
    _, launches = hpmoe.measure(grads, *batch)
    return launches[-1].flow.num_tasks


def main():
    ms.runtime.launch_blocking()
    ms.set_seed(1)
    teacher, layer = hpmoe.nn.MoELayer(**SIZES), hpmoe.nn.MoELayer(**SIZES)
    data = tuple(map(list, zip(*batches(np.random.default_rng(0), teacher), strict=True)))
    for p in layer.trainable_params():
        print(f"{p.name:<34} {p.shape}")
    balance = train(layer, data)
    for step in (0, NUM_STEPS // 4, NUM_STEPS - 1):
        print(f"step {step:2}  loss {balance.losses[step]:.4f}  busiest expert {balance.imbalance[step]:.2f} times the mean")

    batch = [ms.Tensor(part[0]) for part in data]
    with tempfile.TemporaryDirectory() as folder:
        ms.save_checkpoint(layer, str(Path(folder) / "layer.ckpt"))
        saved = ms.load_checkpoint(str(Path(folder) / "layer.ckpt"))
    on_two_ranks = hpmoe.nn.MoELayer(**SIZES, mesh=hpmoe.Mesh(ep=2))
    ms.load_param_into_net(on_two_ranks, {name.removeprefix("layer."): p for name, p in saved.items()}, strict_load=True)
    difference = abs(on_two_ranks(batch[0]) - layer(batch[0])).max().asnumpy()
    print(f"largest difference of the same checkpoint on two ranks: {difference:.1e}")

    everything = backward_tasks(layer, batch)
    for p in layer.experts.get_parameters():
        p.requires_grad = False
    print(f"tile tasks of the backward kernel: {everything}; with frozen experts: {backward_tasks(layer, batch)}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
