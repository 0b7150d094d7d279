"""Measures a launch, a task, a signal and a wait on this CPU besides the work, and the rate of its memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import mindspore as ms
import numpy as np
from mindspore import mint

import hpmoe
from hpmoe.timelines.timeline import Timeline

OVERHEADS = "sync.task_us", "sync.signal_us", "sync.wait_us", "sync.poll_us", "host.launch_us"
NUM_TASKS = 256  # of each small program
WEIGHT = 8000, 3840  # that a row is multiplied by: more than caches hold
MOST_BYTES = 1 << 27  # of what is read again: more than caches hold


class Overheads:
    """Small programs whose tasks have next to nothing to compute; `run` times each once more.

    Attributes:
        times: microseconds of each run, by the name of the constant of hpmoe.Machine.
        fetched: bytes a microsecond that products of one row fetch from memory, by how many cores compute.
        read_again: the same of what all cores have just read, by how many bytes that are.
    """

    def __init__(self, cores: int):
        self.times: dict[str, list[float]] = {name: [] for name in OVERHEADS}
        self.fetched: dict[int, list[float]] = {n: [] for n in sorted({1, cores})}
        self.read_again: dict[int, list[float]] = {MOST_BYTES >> i: [] for i in (0, 2, 3, 4, 5, 6, 7)}
        x = ms.Tensor(np.ones((NUM_TASKS, 1)), ms.float32)
        self._alone = _staged(lambda x: x + 1.0, hpmoe.cpu(1), "round_robin", x)
        self._chain = None
        if cores > 1:
            self._stages = _staged(lambda x: (x + 1.0) * 2.0, hpmoe.cpu(2), _producer_and_consumer, x)
            row = ms.Tensor(np.ones((1, 1)), ms.float32)
            self._chain = _staged(_chain, hpmoe.cpu(2), "round_robin", row)
        row, weight = (ms.Tensor(np.ones(s), ms.float32) for s in ((1, WEIGHT[0]), WEIGHT))
        cols = -(-WEIGHT[1] // max(2, cores))
        self._products = {n: _staged(mint.matmul, hpmoe.cpu(n), "round_robin", row, weight, cols=cols) for n in self.fetched}
        self._cores, self._block = cores, np.ones(MOST_BYTES // 8)

    def run(self) -> None:
        begin = time.perf_counter()
        line = self._alone()
        wall = (time.perf_counter() - begin) * 1e6
        task = float(np.median(np.diff(line.end)))
        self.times["host.launch_us"].append(wall - line.span)
        self.times["sync.task_us"].append(task)
        if self._chain:
            stages, chain = self._stages(), self._chain()
            of = [np.median(np.diff(stages.end[stages.queue == q])) for q in (0, 1)]
            self.times["sync.signal_us"].append(max(0.0, float(of[0]) - task))
            self.times["sync.wait_us"].append(max(0.0, float(of[1]) - task))
            self.times["sync.poll_us"].append(max(0.0, float(chain.span) / len(chain.task) - task))
        for n, rates in self.fetched.items():
            rates.append(4.0 * WEIGHT[0] * WEIGHT[1] / self._products[n]().span)
        for size, rates in self.read_again.items():
            rates.append(self._read_again(size))

    def _read_again(self, size: int) -> float:
        """Returns the bytes per microsecond at which all cores together read `size` bytes that they have just read."""
        ready = threading.Barrier(self._cores)
        parts = np.array_split(self._block[:size // 8], self._cores)

        def read(part: np.ndarray) -> float:
            part.sum()
            ready.wait()
            begin = time.perf_counter()
            part.sum()
            return part.nbytes / ((time.perf_counter() - begin) * 1e6)
        with ThreadPoolExecutor(self._cores) as pool:
            return sum(pool.map(read, parts))


def _chain(x: ms.Tensor) -> ms.Tensor:
    for _ in range(64):
        x = x + 1.0
    return x


def _producer_and_consumer(flow: hpmoe.rewriting.Taskflow, machine: hpmoe.Machine) -> list[np.ndarray]:
    """Returns queues with the first operation on worker 0, and the second, which waits for it row by row, on worker 1."""
    op = flow.tasks["op"]
    return [np.flatnonzero(op == 0), np.flatnonzero(op == 1)]


def _staged(f: Callable[..., ms.Tensor], machine: hpmoe.Machine, policy: str | Callable[..., list[np.ndarray]],
            *args: ms.Tensor, cols: int = 1) -> Callable[[], Timeline]:
    tiled = hpmoe.tile_partition(f, rows=1, cols=cols)
    fused = hpmoe.fuse_persistent(hpmoe.assign_queues(tiled, machine=machine, policy=policy))
    return lambda: hpmoe.measure(fused, *args)[1][0]
