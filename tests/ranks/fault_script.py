"""Script of test_world.py on three ranks; one fails during calls, and the others print the error."""

import os
import signal
import sys
import time

import mindspore as ms
import numpy as np
from running_time import now
from whole_lines import say

import hpmoe

what, victim = sys.argv[1], 1
is_cut = what == "cut"  # from outside: two ranks on each of two hosts, which relay rows in both passes
mesh = hpmoe.world(engine=sys.argv[2], nodes=2) if is_cut else hpmoe.world()
x = ms.Tensor(np.ones((4, 8), np.float32))
ids = ms.Tensor(np.zeros((4, 1), np.int32))
weights = ms.Tensor(np.ones((4, 1), np.float32))
up, down = ms.Tensor(np.ones((1, 8, 4), np.float32)), ms.Tensor(np.ones((1, 2, 8), np.float32))
layer = hpmoe.spmd(hpmoe.moe_ffn, mesh)
if is_cut:
    to_kernel = hpmoe.chain(hpmoe.send_rows(scheme="hierarchical"), hpmoe.tile_partition, hpmoe.overlap_comm,
                            hpmoe.assign_queues,
                            hpmoe.fuse_persistent)
    kernel = hpmoe.spmd(to_kernel(hpmoe.moe_ffn), mesh)
    layer = ms.value_and_grad(lambda *args: (kernel(*args) ** 2).sum(), (0, 2, 3, 4))
try:
    for step in range(10**6 if is_cut else 8):
        if step >= 4 and is_cut:
            say(f"rank {mesh.rank} at step {step}")
        if step == 4 and mesh.rank == victim:
            if what == "kill":
                say(f"at {now()}")
                os.kill(os.getpid(), signal.SIGKILL)
            if what == "raise":
                raise ValueError("of the user")
            if what == "leave":
                sys.exit(0)
            if what == "shape":
                x = ms.Tensor(np.ones((4, 16), np.float32))
                up, down = ms.Tensor(np.ones((1, 16, 4), np.float32)), ms.Tensor(np.ones((1, 2, 16), np.float32))
            if what == "stop":
                if os.fork() == 0:
                    time.sleep(4)
                    os.kill(os.getppid(), signal.SIGCONT)
                    os._exit(0)
                os.kill(os.getpid(), signal.SIGSTOP)
        layer(x, ids, weights, up, down)
    say(f"rank {mesh.rank} ends")
except (hpmoe.LaunchError, hpmoe.ArgumentError) as error:
    say(f"rank {mesh.rank} told {error} {getattr(error, 'status', {'rank': victim})['rank']} {now()}")
    if what != "shape":  # who is dead stays dead
        try:
            layer(x, ids, weights, up, down)
        except hpmoe.LaunchError as again:
            assert str(again) == str(error)
