"""Script for test_restarts.py: trains 40 steps, saves every 5, and continues from the latest save when it is restarted.

Argument: a folder. A file kill_SEED_rank_R in it makes rank R delete the file and kill itself. At the end each rank prints a
hash of all parameters.
"""

import hashlib
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from mindspore import nn
from whole_lines import say

import hpmoe

STEPS, EVERY = 40, 5
FOLDER = Path(sys.argv[1])
mesh = hpmoe.world()
ms.set_seed(3)
layer = hpmoe.nn.MoELayer(hidden_size=16, moe_ffn_hidden_size=8, num_moe_experts=8, moe_router_topk=2, mesh=mesh,
                          init_method_std=0.3)
weights = list(layer.trainable_params())
optimizer = nn.AdamWeightDecay(weights, 0.01)
shared = [i for i, weight in enumerate(weights) if "experts.weight" not in weight.name]
grad = ms.value_and_grad(lambda x: (layer(x) ** 2).sum(), None, weights)


def take_kill():
    """Returns the seed of the next kill file and deletes the file, if it names this rank; else returns None."""
    path = min(FOLDER.glob("kill_*"), default=None)
    hpmoe.all_reduce_gradients(ms.Tensor([0.0]), mesh)  # all have looked
    if path is None or path.name[-1] != str(mesh.rank):
        return None
    path.unlink()
    return int(path.name.split("_")[1])


def kill_soon(seed):
    time.sleep(random.Random(seed).uniform(0, 0.02))
    os.kill(os.getpid(), signal.SIGKILL)


def kill_in_write(arrays, path, **options):
    """Replaces ms.save_checkpoint: writes part of a file, then kills this process."""
    Path(path).with_suffix(".tmp").write_bytes(b"the beginning")
    os.kill(os.getpid(), signal.SIGKILL)


latest = hpmoe.nn.latest_shards(FOLDER / "saves")
start = 0
if latest is not None:
    hpmoe.nn.load_shards(latest, layer, mesh, optimizer)
    start = int(latest.name.removeprefix("step_"))
seed = take_kill()
if seed is not None and seed % 4 == 0:
    ms.save_checkpoint = kill_in_write
kill_at = start + random.Random(seed).randrange(6) if seed is not None and seed % 4 else None
for i in range(start, STEPS):
    if i == kill_at:
        threading.Thread(target=kill_soon, args=(seed,), daemon=True).start()
    tokens = np.random.default_rng(i).standard_normal((16, 16)).astype(np.float32)
    _, grads = grad(ms.Tensor(np.split(tokens, mesh.size)[mesh.rank]))
    summed = dict(zip(shared, hpmoe.all_reduce_gradients([grads[i] for i in shared], mesh), strict=True))
    optimizer(tuple(summed.get(i, g) for i, g in enumerate(grads)))
    if (i + 1) % EVERY == 0:
        hpmoe.nn.save_shards(FOLDER / "saves" / f"step_{i + 1}", layer, mesh, optimizer)
state = {p.name: p for p in (*layer.get_parameters(), *optimizer.get_parameters())}
found = hashlib.sha256(b"".join(state[name].asnumpy().tobytes() for name in sorted(state))).hexdigest()
say(f"rank {mesh.rank} began at {start} and has {found}")
