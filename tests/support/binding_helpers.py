"""The host side of the Ascend kernel with the emulator's device instead of CANN; each rank of this process launches in its
own stream."""

import subprocess
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from ascend_helpers import TOLERANCE, LayerRun, emulator
from helpers import assert_close

import hpmoe
from hpmoe.kernels.ascendc.build import HOST, KERNELS, Operator
from hpmoe.kernels.ascendc.heap import SymmetricHeap
from hpmoe.kernels.ascendc.target import AscendTarget
from hpmoe.runtime.targets import register_target

OPERATOR = Operator("hpmoe_on_emulator", HOST / "emulator_device.cc", "CPU", (KERNELS / "ascendc" / "emulator",),
                    (f"-L{KERNELS} -l:_emulator.so -Wl,-rpath,{KERNELS}",), ("-w", "-O0"))
TIMEOUT = 240  # seconds that compiling may take on a busy machine


def start_build():
    """A process that compiles the operator, or None where it is compiled; MindSpore's headers take half a minute."""
    if OPERATOR.is_built():
        return None
    code = "import binding_helpers; binding_helpers.OPERATOR.build()"
    return subprocess.Popen([sys.executable, "-c", code], cwd=Path(__file__).parent, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE)


def wait_for_build(process):
    """Waits until the operator is compiled, by `process` or by another pytest process, which holds the folder meanwhile."""
    if process is not None:
        text = process.communicate(timeout=TIMEOUT)[1]
        assert process.returncode == 0 or b"another build is under way" in text, text.decode()[-2000:]
    last = time.monotonic() + TIMEOUT
    while not OPERATOR.is_built():
        assert time.monotonic() < last, f"the operator is not compiled after {TIMEOUT} s"
        time.sleep(0.1)


class VirtualRanks:
    """Ranks of one process: what rank 0 makes waits for the others."""

    def __init__(self, rank, size, made):
        self.rank, self.size, self.made, self.count = rank, size, made, 0

    def share(self, make):
        self.count += 1
        if len(self.made) < self.count:
            self.made.append(make())
        return self.made[self.count - 1]


class OnEmulator(AscendTarget):
    """The host side of the Ascend kernel, which needs no NPU here."""

    def missing(self):
        return []


def targets(num_ranks, heap_bytes=1 << 26):
    """Yields the name of a target and its heap, of `heap_bytes` bytes, for each rank."""
    made, names, heaps = [], [], []
    for rank in range(num_ranks):
        heap = SymmetricHeap(OPERATOR.load(), VirtualRanks(rank, num_ranks, made), heap_bytes)
        name = f"rank {rank} of {num_ranks} at {time.monotonic_ns()}"
        register_target(OnEmulator(name, lambda _, heap=heap: heap))
        names.append(name)
        heaps.append(heap)
    return names, heaps


class BoundRun(LayerRun):
    """A layer as every rank calls it, with its own tensors; see LayerRun."""

    def __init__(self, layer, dtype=ms.bfloat16, heap_bytes=1 << 26, f=hpmoe.moe_ffn, **options):
        super().__init__(layer, dtype, **options)
        names, self.heaps = targets(layer.ep, heap_bytes)
        self.ranks = [hpmoe.spmd(emulator(f, target=name, **options), layer.mesh) for name in names]

    def local(self, rank):
        """The arguments of a rank without its ids, and those."""
        return [a[rank] for a in self.given], self.ids[rank]

    def num_tokens(self, rank):
        return {} if self.layer.num_tokens is None else {"num_tokens": self.layer.num_tokens[rank]}

    def forward(self, rank):
        (x, *rest), ids = self.local(rank)
        return self.ranks[rank](x, ids, *rest, **self.num_tokens(rank))

    def gradients(self, rank):
        """Puts forward and backward of a rank into its stream, with nothing that waits in between."""
        given, ids = self.local(rank)
        take = ms.ops.GradOperation(get_all=True, sens_param=True)

        def f(x, *rest):
            return self.ranks[rank](x, ids, *rest, **self.num_tokens(rank))

        return take(f)(*given, self.cotangent[rank])

    def assert_close_to_float64(self):
        """The outputs and gradients of all ranks against NumPy; returns their bits."""
        num_ranks = range(self.layer.ep)
        outputs = [self.forward(rank) for rank in num_ranks]
        grads = [self.gradients(rank) for rank in num_ranks]
        got = [np.stack([a.astype(ms.float32).asnumpy() for a in arrays]) for arrays in (outputs, *zip(*grads, strict=True))]
        assert_close(got, self.expected(), tolerance=TOLERANCE[self.dtype])
        return b"".join(a.tobytes() for a in got)

    def synchronize(self):
        """hpmoe.ranks.synchronize of these ranks."""
        for heap in self.heaps:
            for executable, kernel in heap.kernels():
                executable.check(kernel, wait=True)
