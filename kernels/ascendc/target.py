"""The target "ascend": the Ascend kernel on the NPU of this process, in the order of MindSpore's stream.

A launch is put into the stream without a wait, also between forward and backward. Its report is read
when the kernel is next called, and by `synchronize`.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import mindspore
from mindspore import Tensor, mint

from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.ascendc.bodies import BODIES
from hpmoe.kernels.ascendc.build import DEVICES, ascend_operator, run_needs
from hpmoe.kernels.ascendc.emulator.native import load
from hpmoe.kernels.ascendc.heap import RESERVATION, SymmetricHeap, world_ranks
from hpmoe.kernels.ascendc.layout import lay_out_plans
from hpmoe.kernels.ascendc.packing import pack_all
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.native import Status
from hpmoe.ranks.synchronize import WAITS
from hpmoe.runtime.bodies import Bodies
from hpmoe.runtime.device_backend import in_dtype
from hpmoe.runtime.targets import Executable, Target, explained, register_target
from hpmoe.support.dtypes import storage_dtype
from hpmoe.support.errors import ArgumentError, LaunchError
from hpmoe.support.known import known
from hpmoe.support.mindspore_private import wait_for_calls

COUNTER_BYTES = 512  # a line of L2: kCounterWords of ascendc/launch_args.h
HEAPS: dict[int, SymmetricHeap] = {}  # by number of ranks, opened by the first launch


class AscendState:
    """The kernel of an executable on this rank's NPU: bound to the device by the first launch.

    Attributes:
        name, flows: of the executable.
        layout: where its buffers lie.
        find_heap: function of a number of ranks that gives the heap of this rank.
        on_failure: called before the error of a failed launch is raised.
    """

    def __init__(self, executable: Executable, find_heap: Callable[[int], SymmetricHeap]):
        self.name, self.flows, self.find_heap = executable.name, executable.flows, find_heap
        self._image, self._timeout, self._num_tokens = executable.image, executable.timeout, executable.num_tokens
        self.layout = known(lay_out_plans(executable.flows))
        self._sizes = [size(self._image.ctypes.data)
                       for size in (load().hpmoe_emulator_counters, load().hpmoe_emulator_table_words)]
        self.on_failure: list[Callable[[], None]] = []

    @property
    def heap(self) -> SymmetricHeap:
        return self.find_heap(self.flows[0].ep_size)

    def launch(self, tensors: Sequence[Tensor], num_tokens: int | None, into: Mapping[int, Tensor]) -> list[Tensor]:
        """Puts a launch into the stream and returns its outputs, which are written when it runs."""
        heap, flow = self.heap, self.flows[0]
        kernel = heap.kernel_of(self)
        self.check(kernel)
        made = self._made(num_tokens is not None, into)
        dtypes = [storage_dtype(flow.buffers[b].dtype) for b in flow.inputs]
        operands = [*map(in_dtype, tensors, dtypes), *made]
        if self.layout.scratch_bytes:
            operands.append(mint.empty((self.layout.scratch_bytes,), dtype=mindspore.uint8))
        heap.operator.launch(kernel, self._num_tokens if num_tokens is None else num_tokens, operands)
        return [operands[out.tensor].reshape(out.shape) for out in self.layout.outputs]

    def graph_attributes(self) -> dict[str, int]:
        """Returns the attributes of the operator of a compiled graph, which host/graph_op.cc reads."""
        return {"kernel": self.heap.number_of(self), "num_tokens": self._num_tokens, "num_made": len(self.layout.made),
                "scratch_bytes": self.layout.scratch_bytes}

    def check(self, kernel: Any, wait: bool = False) -> None:
        """Raises the LaunchError of a launch that has failed; with `wait`, after all launches so far have ended."""
        found = self.heap.operator.find_failure(kernel, wait)
        if found is None:
            return
        for forget in self.on_failure:
            forget()
        *words, plan, fault = found
        if fault:
            raise LaunchError(f"{self.name}: {fault}")
        raise explained(make_error(Status(*words), self._image, plan=plan), self.flows)

    @property
    def made(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of each tensor that outputs are written to."""
        return self.layout.made

    @property
    def symmetric_bytes(self) -> int:
        """Bytes of the symmetric heap for buffers, counters and two routing tables, each aligned to a line."""
        counters, words = self._sizes
        return self.layout.heap_bytes + counters * COUNTER_BYTES + 2 * (4 * words + 64) + 1024

    def bind(self, device: Any, rank: int) -> Any:
        """Returns the kernel on a device of the heap's operator."""
        layout = self.layout
        return self.heap.operator.bind(device, self._image.tobytes(), rank, self._timeout, layout.places, layout.copies,
                                       layout.heap_bytes, *self._sizes)

    def _made(self, padded: bool, into: Mapping[int, Tensor]) -> list[Tensor]:
        """The tensors that outputs are written to."""
        given = {self.layout.outputs[j].tensor: tensor for j, tensor in into.items()}
        make = mint.zeros if padded else mint.empty
        return [given[i] if i in given else make(shape, dtype=getattr(mindspore, dtype))
                for i, (shape, dtype) in enumerate(self.layout.made, len(self.flows[0].inputs))]


def find_heap(num_ranks: int) -> SymmetricHeap:
    """Returns the heap of this process among `num_ranks` ranks."""
    if num_ranks not in HEAPS:
        HEAPS[num_ranks] = SymmetricHeap(ascend_operator().load(), world_ranks(num_ranks), RESERVATION.num_bytes)
    return HEAPS[num_ranks]


@dataclasses.dataclass(frozen=True, eq=False)
class AscendTarget(Target[AscendState]):
    """The NPU of this process.

    Attributes:
        find_heap: function of a number of ranks that gives the heap of this rank.
    """

    name: str = "ascend"
    find_heap: Callable[[int], SymmetricHeap] = find_heap
    bodies: Bodies = BODIES
    on_device: bool = True

    def missing(self) -> list[str]:
        return run_needs(os.environ, DEVICES)

    def compile(self, flows: Sequence[Taskflow], timeout: float) -> Executable[AscendState]:
        are_alike = len(flows) > 1 and lay_out_plans(flows) is not None
        taken, image = pack_all(flows if are_alike else flows[:1], self.name)
        return Executable(self, taken, timeout, image)

    def new_state(self, executable: Executable[AscendState]) -> AscendState:
        return AscendState(executable, self.find_heap)

    def run(self, executable: Executable[AscendState], inputs: Sequence[Sequence[Tensor]],
            num_tokens: Sequence[int] | None, into: Mapping[int, Sequence[Tensor]],
            received: Sequence[Sequence[int]] | None) -> list[list[Tensor]]:
        are_tensors = [[isinstance(x, Tensor) for x in mine] for mine in inputs]
        if are_tensors != [[True] * len(executable.flow.inputs)]:
            raise ArgumentError(f"{executable.name}: the kernel is bound for a device, and runs on this rank's tensors in a "
                                "call; bind it for target=\"cpu\" to run it on arrays")
        return [executable.state.launch(inputs[0], num_tokens[0] if num_tokens else None,
                                        {j: mine for j, (mine,) in into.items()})]


def _wait_for_launches() -> None:
    if HEAPS:
        wait_for_calls()  # launches may not have left MindSpore's queue
    for heap in HEAPS.values():
        for executable, kernel in heap.kernels():
            executable.check(kernel, wait=True)


atexit.register(HEAPS.clear)  # before MindSpore gives the device back
register_target(AscendTarget())
WAITS.append(_wait_for_launches)
