"""What a launch, a task, a signal and a wait cost on this CPU besides the work, and what its memory gives."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import mindspore as ms
import numpy as np

import hpmoe
from hpmoe.timelines.timeline import Timeline

NUM_TASKS = 256  # of each small program
BLOCK_BYTES = 1 << 26  # of a copy: more than private caches hold


class Overheads:
    """Small programs whose tasks have next to nothing to compute; `run` times each once more.

    Attributes:
        times: microseconds by name, of each run: "task", "signal", "wait", "poll" as in hpmoe.Machine, and "launch".
        copied: bytes a microsecond, read and written, by how many threads copy.
    """

    def __init__(self, cores: int):
        self.times: dict[str, list[float]] = {name: [] for name in ("task", "signal", "wait", "poll", "launch")}
        self.copied: dict[int, list[float]] = {n: [] for n in sorted({1, cores})}
        x = ms.Tensor(np.ones((NUM_TASKS, 1)), ms.float32)
        self._alone = _staged(lambda x: x + 1.0, hpmoe.cpu(1), "round_robin", x)
        if cores > 1:
            self._stages = _staged(lambda x: (x + 1.0) * 2.0, hpmoe.cpu(2), _producer_and_consumer, x)
            row = ms.Tensor(np.ones((1, 1)), ms.float32)
            self._chain = _staged(_chain, hpmoe.cpu(2), "round_robin", row)
        self._blocks = [np.ones(BLOCK_BYTES // 8) for _ in range(2 * cores)]

    def run(self) -> None:
        begin = time.perf_counter()
        line = self._alone()
        wall = (time.perf_counter() - begin) * 1e6
        task = float(np.median(np.diff(line.end)))
        self.times["launch"].append(wall - line.span)
        self.times["task"].append(task)
        if len(self.copied) > 1:
            stages, chain = self._stages(), self._chain()
            of = [np.median(np.diff(stages.end[stages.queue == q])) for q in (0, 1)]
            self.times["signal"].append(max(0.0, float(of[0]) - task))
            self.times["wait"].append(max(0.0, float(of[1]) - task))
            self.times["poll"].append(max(0.0, float(chain.span) / len(chain.task) - task))
        for n, rates in self.copied.items():
            rates.append(self._copy(n))

    def _copy(self, num_threads: int) -> float:
        """Bytes a microsecond that as many threads copy together, each in memory of its own."""
        ready = threading.Barrier(num_threads + 1)

        def copy(i: int) -> None:
            ready.wait()
            np.copyto(self._blocks[2 * i], self._blocks[2 * i + 1])
        threads = [threading.Thread(target=copy, args=(i,)) for i in range(num_threads)]
        for t in threads:
            t.start()
        ready.wait()
        begin = time.perf_counter()
        for t in threads:
            t.join()
        return 2.0 * BLOCK_BYTES * num_threads / ((time.perf_counter() - begin) * 1e6)


def _chain(x: ms.Tensor) -> ms.Tensor:
    for _ in range(64):
        x = x + 1.0
    return x


def _producer_and_consumer(flow: hpmoe.Taskflow, machine: hpmoe.Machine) -> list[np.ndarray]:
    """The first operation on worker 0, and the second, which waits for it row by row, on worker 1."""
    op = flow.tasks["op"]
    return [np.flatnonzero(op == 0), np.flatnonzero(op == 1)]


def _staged(f: Callable[..., ms.Tensor], machine: hpmoe.Machine, policy: str | Callable[..., list[np.ndarray]],
            x: ms.Tensor) -> Callable[[], Timeline]:
    tiled = hpmoe.tile_partition(f, rows=1, cols=1)
    fused = hpmoe.fuse_persistent(hpmoe.assign_queues(tiled, machine=machine, policy=policy))
    return lambda: hpmoe.measure(fused, x)[1][0]
