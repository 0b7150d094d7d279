"""Router replay: training on the experts that inference chose, where a record leaves some tokens to the router.

    python examples/20_router_replay.py

Reinforcement learning samples with one system and trains with another. Their logits differ in the last bits, so some tokens
go to other experts. Inference records the ids of each generated token, [tokens, layers, top_k], and training replays them.
The record has -1 for the prompt, which the router routes. The example replays the record in four recomputed microbatches.
"""

import argparse

import mindspore as ms
import numpy as np

import hpmoe

NUM_SEQUENCES, LENGTH, PROMPT, HIDDEN_SIZE, NUM_EXPERTS, TOP_K, NUM_LAYERS = 8, 128, 32, 32, 8, 2, 2


class Network(ms.nn.Cell):
    """Two layers, each of which replays its part of the record."""

    def __init__(self):
        super().__init__()
        sizes = {"hidden_size": HIDDEN_SIZE, "moe_ffn_hidden_size": 16, "num_moe_experts": NUM_EXPERTS,
                 "moe_router_topk": TOP_K, "init_method_std": 0.2}
        self.layers = ms.nn.CellList([hpmoe.nn.MoELayer(**sizes) for _ in range(NUM_LAYERS)])

    def construct(self, x, record=None):
        for i, layer in enumerate(self.layers):
            given = {} if record is None else {"topk_ids": record, "unset": "route", "layer": i}
            x = x + layer(x, **given)
        return x


def choices(network, x):
    """The ids that each layer's router chooses, [sequences, tokens, layers, top_k]."""
    ids = []
    for layer in network.layers:
        ids.append(layer.router(x)[0])
        x = x + layer(x)
    return ms.ops.stack(ids, axis=2)


def gradients(network, x, record, parts):
    """The gradients of all weights, summed over microbatches."""
    def loss_of():
        losses = [(network(*some) ** 2).sum() for some in zip(x.split(parts), record.split(parts), strict=True)]
        return sum(losses) / x.size
    return [g.asnumpy() for g in ms.grad(loss_of, None, network.trainable_params())()]


def main():
    ms.runtime.launch_blocking()
    ms.set_seed(0)
    x = ms.Tensor(np.random.default_rng(0).standard_normal((NUM_SEQUENCES, LENGTH, HIDDEN_SIZE)), ms.float32)
    network = Network()
    rounded = x.astype(ms.bfloat16).astype(ms.float32)  # what another system computes
    sampled, own = choices(network, rounded), choices(network, x)
    num_other = int((sampled.sort()[0] != own.sort()[0]).any(-1).sum())
    print(f"choices of other experts: {num_other} of {own[..., 0].size}")

    record = sampled.asnumpy()
    record[:, :PROMPT] = -1
    record = ms.Tensor(record)
    network(x, record)
    print(f"entries that experts received: {[int(layer.tokens_per_expert.sum()) for layer in network.layers]}")
    whole = gradients(network, x, record, NUM_SEQUENCES)
    for layer in network.layers:
        layer.recompute()
    parts = gradients(network, x, record, NUM_SEQUENCES // 4)
    difference = max(np.abs(a - b).max() / np.abs(a).max() for a, b in zip(whole, parts, strict=True))
    print(f"largest difference of four recomputed microbatches from one, relative: {difference:.1e}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.splitlines()[0]).parse_args()
    main()
