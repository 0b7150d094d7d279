"""Script of ranks that train: kills rank VICTIM at a random moment; each other rank prints the error it raises.

By hand, under any launcher: kill_script.py VICTIM
"""

import os
import random
import signal
import sys
import threading
import time

import mindspore as ms
import numpy as np
from running_time import now
from whole_lines import say

import hpmoe

victim = int(sys.argv[1])
mesh = hpmoe.world()
rng = np.random.default_rng(mesh.rank)
chain = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
layer = hpmoe.spmd(chain(hpmoe.moe_ffn), mesh)


def tensor(*shape):
    return ms.Tensor(rng.standard_normal(shape).astype(np.float32))


def end():
    time.sleep(random.uniform(0, 1))
    say(f"at {now()}")
    os.kill(os.getpid(), signal.SIGKILL)


T, H, LOCAL = 64, 32, 2
args = (tensor(T, H), ms.Tensor(rng.random((T, LOCAL * mesh.ep)).argsort(-1)[:, :2].astype(np.int32)), tensor(T, 2),
        tensor(LOCAL, H, 64), tensor(LOCAL, 32, H))
step_of = ms.value_and_grad(lambda *args: (layer(*args) ** 2).sum(), (0, 2, 3, 4))
try:
    for step in range(10_000):
        value, grads = step_of(*args)
        hpmoe.all_reduce_gradients((value, grads[0]), mesh)
        if step == 2 and mesh.rank == victim:
            threading.Thread(target=end).start()
except hpmoe.LaunchError as error:
    say(f"rank {mesh.rank} told {error} {error.status['rank']} {now()}")
