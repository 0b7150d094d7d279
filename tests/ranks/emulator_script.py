"""Script for test_emulator_ranks.py: runs the Ascend kernel on the emulator, one process per rank.

Argument: "equal" compares with virtual ranks; "killed" kills rank 1; "failing" makes two launches fail, then compares.
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
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.protocol import Opcode
from hpmoe.routing.kinds.direct import Direct
from hpmoe.runtime.process_backend import ProcessBackend
from hpmoe.support.dtypes import numpy_dtype

what = sys.argv[1]
mesh = hpmoe.world()
EP, me, T, H, W, K, LOCAL = mesh.ep, mesh.rank, 9, 32, 16, 2, 2
rng = np.random.default_rng(0)
npu = hpmoe.machines.ascend_a3.replace(num_aic=2, num_aiv=4)
on_emulator = hpmoe.chain(hpmoe.tile_partition(rows=8), hpmoe.overlap_comm, hpmoe.assign_queues(machine=npu),
                      hpmoe.fuse_persistent(target="ascend-emulator", timeout=20.0))
layer = hpmoe.spmd(on_emulator(hpmoe.moe_ffn), mesh)


def tensor(*shape):
    return ms.Tensor(rng.standard_normal((EP, *shape)).astype(np.float32), ms.bfloat16)


ids = ms.Tensor(rng.random((EP, T, LOCAL * EP)).argsort(-1)[..., :K].astype(np.int32))
args = (tensor(T, H), ids, tensor(T, K), tensor(LOCAL, H, 2 * W), tensor(LOCAL, W, H))
own = tuple(a[me] for a in args)


def results(layer, args, num_tokens):
    """Output and gradients, as bytes that say which they are."""
    def loss(*args):
        out = layer(*args, num_tokens=num_tokens).astype(ms.float32)
        return (out * out).sum(), out
    (_, out), grads = ms.value_and_grad(loss, (0, 2, 3, 4), has_aux=True)(*args)
    return [t.astype(ms.float32).asnumpy() for t in (out, *grads)]


def is_equal():
    """Three steps of the numbers of one process, by launches of each its own rank and one exchange of counts a step."""
    virtual = hpmoe.spmd(on_emulator(hpmoe.moe_ffn), hpmoe.Mesh(EP))
    ProcessBackend._gathered = None
    exchanged = mesh.link.exchanges
    for lengths in ([T] * EP, [T, *[0] * (EP - 1)], [r + 1 for r in range(EP)]):
        whole, mine = results(virtual, args, lengths), results(layer, own, lengths[me])
        assert all(a.tobytes() == b[me].tobytes() for a, b in zip(mine, whole, strict=True)), lengths
    assert mesh.link.exchanges == exchanged + 3
    say(f"rank {me} has the bits of one process")


def is_killed():
    """Rank 1, at some moment of its launches."""
    def end():
        time.sleep(random.uniform(0, 0.5))
        say(f"at {now()}")
        os.kill(os.getpid(), signal.SIGKILL)
    for step in range(1000):
        results(layer, own, T)
        if step == 0 and me == 1:
            threading.Thread(target=end).start()


def says_less_capacity():
    """Rank 1 tells the others of half the bytes of each buffer that they write to."""
    launch_by = mesh.link.launch_by

    def launch(run_rank, of, executable, payload, keep):
        half = len(executable.flow.buffers) if me == 1 else 0
        payload[len(payload) - half:] //= 2
        launch_by(run_rank, of, executable, payload, keep)
    mesh.link.launch_by = launch
    try:
        results(layer, own, T)
    finally:
        mesh.link.launch_by = launch_by


def loses_a_signal():
    kernel = layer.lower(*own)
    image = kernel.image.copy()
    _, sections = unpack_image(image)
    opcodes = sections["ops"]["opcode"][sections["templates"]["op"]]
    sections["templates"]["num_signals"][(opcodes == Opcode.GMM) & (sections["templates"]["num_signals"] > 0)] = 0
    kind = Direct(EP, *ids.shape[1:], LOCAL * EP)
    counts = [kind.counts(r, ids.asnumpy()[r]) for r in range(EP)]
    dtypes = ["int32" if a.dtype == ms.int32 else numpy_dtype("bfloat16") for a in own]
    arrays = [a.astype(ms.float32).asnumpy().astype(dtype) for a, dtype in zip(own, dtypes, strict=True)]
    kernel.replace(image=image, timeout=0.5).run_rank(mesh.link, arrays, [np.stack(counts)])


def told(f):
    try:
        f()
    except hpmoe.LaunchError as error:
        say(f"rank {me} told {' '.join(str(error).split())} at {now()}")


if what == "equal":
    is_equal()
elif what == "killed":
    told(is_killed)
else:
    for f in (says_less_capacity, loses_a_signal):
        told(f)
    is_equal()
