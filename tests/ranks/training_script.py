"""Script that test_determinism.py starts: a layer is trained, saved in the midst or resumed from there; hashes are printed.

Arguments: the number of steps; a folder for checkpoints; "whole" or "resumed".
"""

import hashlib
import sys

import mindspore as ms
import numpy as np
from mindspore import nn
from whole_lines import say

import hpmoe

STEPS, FOLDER, IS_RESUMED = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "resumed"
mesh = hpmoe.world()
ms.set_seed(3)
layer = hpmoe.nn.MoELayer(hidden_size=16, moe_ffn_hidden_size=8, num_moe_experts=8, moe_aux_loss_coeff=0.01, mesh=mesh,
                          moe_router_enable_expert_bias=True, init_method_std=0.3)
weights = list(layer.trainable_params())
optimizer = nn.AdamWeightDecay(weights, 0.01)
state = {p.name: p for p in (*layer.get_parameters(), *optimizer.get_parameters())}
checkpoint = f"{FOLDER}/{mesh.rank}.ckpt"


def loss_of(x):
    out, loss = layer(x, with_losses=True)
    return (out ** 2).sum() + loss


grad = ms.value_and_grad(loss_of, None, weights)
if IS_RESUMED:
    for name, saved in ms.load_checkpoint(checkpoint).items():
        state[name].set_data(saved)
for i in range(STEPS // 2 if IS_RESUMED else 0, STEPS):
    if i == STEPS // 2 and not IS_RESUMED:
        ms.save_checkpoint([{"name": name, "data": p} for name, p in state.items()], checkpoint)
    tokens = np.random.default_rng(i).standard_normal((16, 16)).astype(np.float32)
    _, grads = grad(ms.Tensor(np.split(tokens, mesh.size)[mesh.rank]))
    alike = [i for i, weight in enumerate(weights) if "experts.weight" not in weight.name]
    summed = dict(zip(alike, hpmoe.all_reduce_gradients([grads[i] for i in alike], mesh), strict=True))
    optimizer(tuple(summed.get(i, g) for i, g in enumerate(grads)))
    layer.update_expert_bias()
found = hashlib.sha256(b"".join(state[name].asnumpy().tobytes() for name in sorted(state))).hexdigest()
say(f"rank {mesh.rank} {found}")
