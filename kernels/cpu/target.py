"""The target "cpu": one native call launches all ranks of this process, or this process's rank over a link."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from hpmoe.ir.taskflow import Taskflow
from hpmoe.kernels.buffers import Places
from hpmoe.kernels.cpu.bodies import BODIES
from hpmoe.kernels.cpu.launch import Demands, Launches, launch
from hpmoe.kernels.host_launch import Explaining, outputs_of, place_all, place_one
from hpmoe.kernels.link import Link
from hpmoe.kernels.packing import pack
from hpmoe.runtime.targets import Arrays, Executable, Target, register_target
from hpmoe.support.locks import Lock, new_lock
from hpmoe.timelines.measure import new_record


class CpuState:
    """Counters of an executable, which only grow, and the checked Launches of its image.

    Attributes:
        counters, bases: see `launch`.
        lock: held by the launch that uses the counters.
        places: places of the buffers.
    """

    def __init__(self, flow: Taskflow, image: np.ndarray):
        self._flow, self._image = flow, image
        self.counters, self.bases = (np.zeros((flow.ep_size, len(flow.deps.events)), np.int64) for _ in range(2))
        self.lock: Lock = new_lock()
        self.places = Places(flow)

    @functools.cached_property
    def demands(self) -> Demands | None:
        """The demands of the image if every launch of the taskflow meets them; otherwise None."""
        flow, demands = self._flow, Demands.read(self._image)
        if demands is None or demands.counters_fault(self.counters, self.bases):
            return None
        buffers = [(b.cols, b.num_rows or 0, dtype) for b, dtype in zip(flow.buffers, self.places.dtypes, strict=True)]
        return demands if demands.ep_size == flow.ep_size and demands.buffers == buffers else None

    @functools.cached_property
    def launches(self) -> Launches:
        return Launches(self._image, self.counters, self.bases)


class CpuTarget(Target[CpuState]):
    """Threads of this process serve the queues of all ranks, or of one."""

    name, bodies = "cpu", BODIES

    def compile(self, flows: Sequence[Taskflow], timeout: float) -> Executable[CpuState]:
        flow = flows[0]
        self.bodies.check(flow, 'fuse_persistent(target="cpu")')
        return Executable(self, (flow,), timeout, pack(flow))

    def new_state(self, executable: Executable[CpuState]) -> CpuState:
        return CpuState(executable.flow, executable.image)

    def run(self, executable: Executable[CpuState], inputs: Sequence[Arrays], num_tokens: Sequence[int] | None,
            into: Mapping[int, Arrays], received: Sequence[Sequence[int]] | None) -> list[list[np.ndarray]]:
        flow, state, timeout = executable.flow, executable.state, executable.timeout
        placed, lengths = place_all(executable, state.places, inputs, num_tokens, into, received)
        trace, moved = new_record(flow)
        with Explaining(executable), state.lock:
            if state.demands is None:  # raises what the image and the buffers differ in
                launch(executable.image, placed.read_ranks(), lengths, state.counters, state.bases, timeout)
            else:
                if num_tokens is not None:
                    state.demands.check_num_tokens(lengths)
                state.launches.launch(placed.addresses, placed.received, lengths, timeout, trace, moved)
        return outputs_of(flow, placed)

    def reaches(self, executable: Executable[CpuState], link: Link) -> bool:
        return link.size == executable.flow.ep_size

    def run_rank(self, executable: Executable[CpuState], link: Link, inputs: Arrays, counts: Arrays,
                 num_tokens: Sequence[int] | None, into: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        flow = executable.flow
        placed, length = place_one(executable, executable.state.places, link, inputs, counts, num_tokens, into)
        told = np.concatenate([np.zeros(0, np.int32), *(np.asarray(c, np.int32).reshape(-1) for c in counts)])
        with Explaining(executable):
            link.launch(executable, placed.addresses[0], placed.received[0], told, length, new_record(flow, link), placed)
        return outputs_of(flow, placed)[0]


CPU = CpuTarget()
register_target(CPU)
