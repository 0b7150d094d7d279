"""fuse_persistent(target="ascend"): the Ascend kernel on the NPU of this process, in the order of MindSpore's stream.

A launch is put into the stream and nobody waits for it, also between forward and backward. What it reports is looked at
when the kernel is next called, and by `synchronize`.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import mindspore
import numpy as np
from mindspore import Tensor, mint

from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.ascendc.build import DEVICES, ascend_operator, run_needs
from hpmoe.kernels.ascendc.heap import SymmetricHeap, world_ranks
from hpmoe.kernels.ascendc.layout import Layout, lay_out_plans
from hpmoe.kernels.ascendc.rules import check_flow, check_image
from hpmoe.kernels.ascendc.twin import target as twin_target
from hpmoe.kernels.diagnosis import make_error
from hpmoe.kernels.executable import Executable
from hpmoe.kernels.native import Status
from hpmoe.kernels.packing import pack
from hpmoe.kernels.plan_images import pack_plans
from hpmoe.runtime.device_backend import in_dtype
from hpmoe.runtime.planned_rows import choice_at_start
from hpmoe.runtime.targets import register_target
from hpmoe.support.dtypes import storage_dtype
from hpmoe.support.errors import ArgumentError, LaunchError
from hpmoe.support.known import known
from hpmoe.support.mindspore_private import wait_for_calls

COUNTER_BYTES = 512  # a line of L2: kCounterWords of ascendc/launch_args.h
NO_COUNTERS = np.zeros((0, 0), np.int64)  # of the host: they lie in the heap
HEAPS: dict[int, SymmetricHeap] = {}  # by number of ranks, opened by the first launch


@dataclasses.dataclass(frozen=True, eq=False)
class AscendExecutable(Executable):
    """The Ascend kernel of one direction on this rank's NPU; see Executable.

    Attributes:
        layout: where its buffers lie.
        sizes: (counters, words of a routing table) of the kernel.
        find_heap: the heap of this rank, for a number of ranks.
        on_failure: called before the error of a failed launch is raised.
    """

    layout: Layout = dataclasses.field(kw_only=True)
    sizes: tuple[int, int] = (0, 0)
    find_heap: Callable[[int], SymmetricHeap] = dataclasses.field(kw_only=True)
    on_failure: list[Callable[[], None]] = dataclasses.field(default_factory=list)

    target = "ascend"

    def run(self, *args: object, **kwargs: object) -> NoReturn:
        raise ArgumentError(f"{self.name}: the kernel is bound for a device, and runs on this rank's tensors in a call; "
                            "bind it for target=\"cpu\" to run it on arrays")

    def launch_here(self, tensors: Sequence[Tensor], num_tokens: int | None, into: Mapping[int, Tensor]) -> list[Tensor]:
        """Puts a launch on this rank's tensors into the stream and returns its outputs, to be written when it runs.

        Args:
            tensors: one for each program input.
            num_tokens: how many of this rank's token rows are real; all where None.
            into: for some outputs, by position, the tensor to write them to.

        Raises:
            LaunchError: an earlier launch failed, on this rank or another one; the call after that begins anew.
        """
        heap = self.find_heap(self.flow.ep_size)
        kernel = heap.kernel_of(self)
        self.check(kernel)
        made = self._made(num_tokens is not None, into)
        dtypes = [storage_dtype(self.flow.buffers[b].dtype) for b in self.flow.inputs]
        operands = [*map(in_dtype, tensors, dtypes), *made]
        if self.layout.scratch_bytes:
            operands.append(mint.empty((self.layout.scratch_bytes,), dtype=mindspore.uint8))
        heap.operator.launch(kernel, self._num_tokens if num_tokens is None else num_tokens, operands)
        return [operands[out.tensor].reshape(out.shape) for out in self.layout.outputs]

    def graph_attributes(self) -> dict[str, int]:
        """What the operator of a compiled graph has to know of the kernel: the attributes that host/graph_op.cc reads."""
        heap = self.find_heap(self.flow.ep_size)
        return {"kernel": heap.number_of(self), "num_tokens": self._num_tokens, "num_made": len(self.layout.made),
                "scratch_bytes": self.layout.scratch_bytes}

    def check(self, kernel: Any, wait: bool = False) -> None:
        """Raises the LaunchError of a launch that has failed; `wait`: of all so far."""
        found = self.find_heap(self.flow.ep_size).operator.find_failure(kernel, wait)
        if found is None:
            return
        for forget in self.on_failure:
            forget()
        *words, plan, fault = found
        if fault:
            raise LaunchError(f"{self.name}: {fault}")
        raise self._explained(make_error(Status(*words), self.image, plan=plan))

    @property
    def made(self) -> tuple[tuple[tuple[int, ...], str], ...]:
        """Shape and dtype of each tensor that outputs are written to."""
        return self.layout.made

    @property
    def symmetric_bytes(self) -> int:
        """What the kernel takes of the symmetric heap: buffers, counters, two routing tables, each from a line on."""
        counters, words = self.sizes
        return self.layout.heap_bytes + counters * COUNTER_BYTES + 2 * (4 * words + 64) + 1024

    def bind(self, device: Any, rank: int) -> Any:
        """The kernel on a device; find_heap has the operator that the device is of."""
        layout = self.layout
        return self.find_heap(self.flow.ep_size).operator.bind(
            device, self.image.tobytes(), rank, self.timeout, layout.places, layout.copies, layout.heap_bytes, *self.sizes)

    def _made(self, padded: bool, into: Mapping[int, Tensor]) -> list[Tensor]:
        """The tensors that outputs are written to."""
        given = {self.layout.outputs[j].tensor: tensor for j, tensor in into.items()}
        make = mint.zeros if padded else mint.empty
        return [given[i] if i in given else make(shape, dtype=getattr(mindspore, dtype))
                for i, (shape, dtype) in enumerate(self.layout.made, len(self.flow.inputs))]


def find_heap(num_ranks: int) -> SymmetricHeap:
    """The heap of this process among so many ranks."""
    if num_ranks not in HEAPS:
        HEAPS[num_ranks] = SymmetricHeap(ascend_operator().load(), world_ranks(num_ranks))
    return HEAPS[num_ranks]


def compile_ascend(flow: Taskflow, timeout: float,
                   find_heap: Callable[[int], SymmetricHeap] = find_heap) -> AscendExecutable:
    """Packs a Taskflow for the NPU of this process."""
    check_flow(flow, AscendExecutable.target, twin_target.load().hpmoe_twin_chip())
    image = pack(flow, "ascend")
    check_image(image)
    return AscendExecutable(flow, image, timeout, flow.provenance, NO_COUNTERS, NO_COUNTERS,
                            layout=known(lay_out_plans([flow])), sizes=_sizes(image), find_heap=find_heap)


def ascend_of_plans(kernels: Sequence[AscendExecutable]) -> AscendExecutable:
    """One kernel of several that differ in their plans alone; see choice_at_start. The first, where it has to do."""
    first, *others = kernels
    flows = [kernel.flow for kernel in kernels]
    chosen, layout = choice_at_start(flows), lay_out_plans(flows)
    if chosen is None or layout is None:
        return first
    image = pack_plans([kernel.image for kernel in kernels], chosen)
    return dataclasses.replace(first, image=image, layout=layout, sizes=_sizes(image), others=tuple(flows[1:]))


def _sizes(image: np.ndarray) -> tuple[int, int]:
    library = twin_target.load()
    return library.hpmoe_twin_counters(image.ctypes.data), library.hpmoe_twin_table_words(image.ctypes.data)


def synchronize() -> None:
    """Waits for every launch under way on this process's NPU.

    A kernel bound by fuse_persistent(target="ascend") is launched in the order of MindSpore's stream, and a call returns
    before it has run; should it fail, the next call of the same kernel raises the error, or this function does. There is
    nothing to wait for on other targets.

    Raises:
        LaunchError: a launch failed; the text names task and event.

    Example:
        >>> import hpmoe
        >>> hpmoe.synchronize()
    """
    if HEAPS:
        wait_for_calls()  # launches may not have left MindSpore's queue
    for heap in HEAPS.values():
        for executable, kernel in heap.kernels():
            executable.check(kernel, wait=True)


atexit.register(HEAPS.clear)  # before MindSpore gives the device back
register_target(AscendExecutable.target, compile_ascend, on_device=True, of_plans=ascend_of_plans,
                missing=lambda: run_needs(os.environ, DEVICES))
