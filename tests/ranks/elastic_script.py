"""Script of test_elastic.py on several ranks, and calls in its own process: a layer trained from a checkpoint on."""

import os
import signal
import sys
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from whole_lines import say

import hpmoe

SEQUENCES, S, H = 12, 4, 8
LAYER = {"hidden_size": H, "moe_ffn_hidden_size": 8, "num_moe_experts": 12, "moe_router_topk": 2, "init_method_std": 0.5,
         "moe_shared_expert_intermediate_size": 4}


def train(mesh, folder, start, stop, save_at=None, missing="error", copies=0):
    """The loss of each step from `start` on, of all tokens, and the experts that are lost."""
    ms.set_seed(11 + start)
    layer = hpmoe.nn.MoELayer(**LAYER, mesh=mesh)
    weights = list(layer.trainable_params())
    optimizer = nn.AdamWeightDecay(weights, 0.02)
    lost = []
    if start:
        lost = hpmoe.nn.load_shards(Path(folder, f"step_{start}"), layer, mesh, optimizer, missing=missing)
        layer.mask_experts(lost)
    alike = [j for j, weight in enumerate(weights) if "experts.weight" not in weight.name or "shared" in weight.name]

    def loss_of(x):
        return (layer(x) ** 2).sum()
    step, losses = ms.value_and_grad(loss_of, None, weights), []
    for i in range(start, stop):
        if i == save_at and i > start:
            hpmoe.nn.save_shards(Path(folder, f"step_{i}"), layer, mesh, optimizer, copies=copies)
        x = np.random.default_rng(i).standard_normal((SEQUENCES, S, H)).astype(np.float32)
        loss, grads = step(ms.Tensor(np.split(x, mesh.size)[mesh.rank]))
        loss, summed = hpmoe.all_reduce_gradients((loss, [grads[j] for j in alike]), mesh)
        grads = list(grads)
        for j, grad in zip(alike, summed, strict=True):
            grads[j] = grad
        optimizer(tuple(grads))
        losses.append(float(loss))
    return losses, lost


def move(sizes, source, target):
    """Moves a save from one folder to another by way of ranks of these sizes."""
    ep_size, _, tp_size = sizes.partition("x")
    mesh = hpmoe.world(int(ep_size), int(tp_size or 1))
    layer = hpmoe.nn.MoELayer(**LAYER, mesh=mesh)
    optimizer = nn.AdamWeightDecay(list(layer.trainable_params()), 0.02)
    hpmoe.nn.load_shards(source, layer, mesh, optimizer)
    hpmoe.nn.save_shards(target, layer, mesh, optimizer)


def main(sizes, folder, start, stop, *more):
    ep_size, _, tp_size = sizes.partition("x")
    mesh = hpmoe.world(int(ep_size), int(tp_size or 1))
    losses, lost = train(mesh, folder, int(start), int(stop), 3, "zeros" if "zeros" in more else "error", 1)
    if mesh.rank == 0:
        say(f"losses {' '.join(loss.hex() for loss in losses)}")
        say(f"lost {lost}")
    if "dies" in more:
        try:
            if mesh.rank == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            hpmoe.all_reduce_gradients(ms.Tensor([1.0]), mesh)
        except hpmoe.LaunchError as error:
            say(f"rank {mesh.rank} told {str(error).splitlines()[0]}")


if __name__ == "__main__":
    move(*sys.argv[2:]) if sys.argv[1] == "move" else main(*sys.argv[1:])
