"""Executable: a packed taskflow with its counters, launched on the CPU with one native call."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hpmoe.dtypes import numpy_dtype, storage_dtype, stored
from hpmoe.errors import LaunchError
from hpmoe.kernels.cpu_target import launch
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.packing import pack
from hpmoe.layout import received_rows
from hpmoe.lifetimes import memory_bytes
from hpmoe.locks import new_lock
from hpmoe.targets import find_target, register_target
from hpmoe.taskflow import Taskflow, memory_of
from hpmoe.taskflow_text import event_name, task_name
from hpmoe.timelines.measure import new_trace

POOL = Pool()


@dataclasses.dataclass(frozen=True, eq=False)
class Executable:
    """The persistent kernel of one direction: its taskflow, packed once, and the counters that live between launches.

    Attributes:
        flow: what was packed.
        image: uint8, read by every rank.
        timeout: seconds without any task ending, on any rank, after which a wait ends the launch with an error.
        provenance: transforms applied, as printed.
    """

    flow: Taskflow
    image: np.ndarray
    timeout: float
    provenance: tuple[str, ...]
    counters: np.ndarray
    bases: np.ndarray
    lock: Any = dataclasses.field(default_factory=new_lock)

    level = "kernel"
    target = "cpu"

    @property
    def name(self) -> str:
        return self.flow.name

    def replace(self, **changes: Any) -> Executable:
        return dataclasses.replace(self, **changes)

    def run(self, inputs: Sequence[Sequence[np.ndarray]], num_tokens: Sequence[int] | None = None,
            trace: np.ndarray | None = None, keep: list[list[np.ndarray]] | None = None,
            into: Mapping[int, Sequence[np.ndarray]] | None = None) -> list[list[np.ndarray]]:
        """Launches all workers of all ranks once and returns when the last has left.

        Args:
            inputs: for each rank, one array for each program input.
            num_tokens: tokens of each rank; all by default.
            trace: int64 [ep, num_tasks, 3], filled with the nanoseconds at which each task of the image began to wait,
                began its body and had signalled; where None, `hpmoe.measure` may ask for one.
            keep: where given, receives every buffer of every rank.
            into: for some outputs, by position, the array of each rank to write them to.

        Returns:
            For each rank, the list of outputs.

        Raises:
            LaunchError: a wait ran out of time, or the launch was interrupted; the text names task and event.
        """
        flow = self.flow
        received = received_rows(flow, inputs, num_tokens)
        memory = _allocate(flow, inputs, received, num_tokens is not None, into or {})
        buffers = [[np.zeros((1, b.cols), a.dtype) if a.size == 0 else a
                    for a, b in zip(rank, flow.buffers, strict=True)] for rank in memory]
        lengths = [int(n) for n in num_tokens] if num_tokens is not None else [self._num_tokens()] * flow.ep_size
        trace = new_trace(flow) if trace is None else trace
        with self.lock:
            try:
                self._launch(buffers, lengths, trace)
            except LaunchError as error:
                raise self._explained(error) from None
        if keep is not None:
            keep.extend(memory)
        return [[flow.buffers[b].user_view(mine[b]) for b in flow.outputs] for mine in memory]

    def _launch(self, buffers: list[list[np.ndarray]], num_tokens: list[int], trace: np.ndarray | None) -> None:
        launch(self.image, buffers, num_tokens, self.counters, self.bases, self.timeout, trace)

    def _num_tokens(self) -> int:
        return max([r.num_tokens for r in self.flow.routes] or [op.clipped_rows for op in self.flow.ops], default=0)

    def _explained(self, error: LaunchError) -> LaunchError:
        """The same error with the task and the event as the taskflow's text names them."""
        status = getattr(error, "status", {})
        task, event = status.get("task", -1), status.get("event", -1)
        order = np.concatenate(self.flow.queues)
        names = []
        if 0 <= task < len(order):
            t = int(order[task])
            names.append(f"task t{t} is {task_name(self.flow, t)}")
        if 0 <= event < len(self.flow.events):
            names.append(f"event {event} is {event_name(self.flow, event)}")
        explained = LaunchError("\n  ".join([f"{self.name}: {error}", *names]))
        explained.status = status
        return explained

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is compiled anew, with counters of its own."""
        return _compiled, (self.flow, self.target, self.timeout, self.provenance)

    def __str__(self) -> str:
        flow = str(self.flow).splitlines()
        head = " | ".join([f"# {self.name}", *self.provenance])
        size = (f"kernel {self.target}  image={len(self.image)} bytes  queues={len(self.flow.queues)} for each of "
                f"{self.flow.ep_size} ranks")
        return "\n".join([head, size, *flow[1:]])

    __repr__ = __str__


def compile_cpu(flow: Taskflow, timeout: float) -> Executable:
    """Packs a Taskflow that has queues for the CPU."""
    shape = (flow.ep_size, len(flow.events))
    return Executable(flow, pack(flow), timeout, flow.provenance, np.zeros(shape, np.int64), np.zeros(shape, np.int64))


def _compiled(flow: Taskflow, target: str, timeout: float, provenance: tuple[str, ...]) -> Any:
    return find_target(target).compiler(flow, timeout=timeout).replace(provenance=provenance)


def _allocate(flow: Taskflow, inputs: Sequence[Sequence[np.ndarray]], received: list[list[int]],
              padded: bool, into: Mapping[int, Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """For each rank an array for each buffer: inputs as they are, the rest from the pool, sized from the real counts, those
    that take over the memory of another in that.

    The ranks' parts of an output lie one after the other, so that they are one array for whoever stacks them.
    """
    position = {b: i for i, b in enumerate(flow.inputs)}
    memory: list[list[np.ndarray]] = [[] for _ in inputs]
    given = {flow.outputs[j]: arrays for j, arrays in into.items()}
    sizes = [memory_bytes(flow, rows) for rows in received]
    blocks: list[dict[int, np.ndarray]] = [{} for _ in inputs]
    for b, buffer in enumerate(flow.buffers):
        is_output = buffer.role == "output" and buffer.route < 0 and buffer.storage == b
        together, dtype = None, numpy_dtype(storage_dtype(buffer.dtype))
        if is_output and b not in given:
            make = POOL.zeros if padded else POOL.empty
            together = make((len(inputs), buffer.num_rows, buffer.cols), dtype)
        for rank, mine in enumerate(memory):
            shape = (buffer.num_rows if buffer.route < 0 else received[rank][buffer.route], buffer.cols)
            if is_output:
                mine.append(given[b][rank].reshape(shape) if b in given else together[rank])
            elif buffer.storage != b:
                mine.append(mine[buffer.storage].reshape(shape))
            elif b in position:
                mine.append(stored(inputs[rank][position[b]], buffer.dtype).reshape(shape))
            else:
                home = memory_of(flow.buffers, b)
                if home == b:
                    blocks[rank][b] = POOL.empty((sizes[rank][b],), np.uint8)
                nbytes = math.prod(shape) * dtype.itemsize
                mine.append(blocks[rank][home][:nbytes].view(dtype).reshape(shape))
    return memory


register_target("cpu", compile_cpu)
