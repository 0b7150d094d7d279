"""Mesh and Machine: how many ranks run a program, and what one rank's hardware is. Both are plain data."""

from __future__ import annotations

import dataclasses
import os

from hpmoe.errors import check_argument


@dataclasses.dataclass(frozen=True)
class Mesh:
    """The ranks that run one per-rank function together; rank r holds experts r*E_local .. (r+1)*E_local-1.

    Raises:
        ArgumentError: ep_size is not a positive int.

    Example:
        >>> Mesh(ep_size=4)
        Mesh(ep_size=4)
    """

    ep_size: int = 1

    def __post_init__(self) -> None:
        check_argument(isinstance(self.ep_size, int) and self.ep_size >= 1, "hpmoe.Mesh", "ep_size", repr(self.ep_size),
                       "a positive int")


@dataclasses.dataclass(frozen=True)
class Machine:
    """One rank's workers and what their work costs; every transform asks it and nothing else.

    Attributes:
        name: printed in the provenance of a Taskflow.
        num_aic: matrix queues.
        num_aiv: vector and communication queues.
        unified: every worker takes both kinds of tasks, so there are num_aic queues and num_aiv is 0.
        tile_rows, tile_cols: default tile of a task.
        flops_per_us: matmul rate of one AIC worker.
        bytes_per_us: memory rate of one AIV worker.
        task_us: fixed cost of a task.
    """

    name: str
    num_aic: int
    num_aiv: int
    unified: bool
    tile_rows: int
    tile_cols: int
    flops_per_us: float
    bytes_per_us: float
    task_us: float

    def replace(self, **changes: object) -> Machine:
        return dataclasses.replace(self, **changes)

    @property
    def num_queues(self) -> int:
        return self.num_aic + self.num_aiv

    def queues_of(self, unit: str) -> range:
        """Queue numbers that take tasks of `unit`, "aic" or "aiv"."""
        if self.unified or unit == "aic":
            return range(self.num_aic)
        return range(self.num_aic, self.num_queues)

    def queue_name(self, queue: int) -> str:
        """How a queue is printed: "worker.0", "aic.3" or "aiv.17"."""
        if self.unified:
            return f"worker.{queue}"
        return f"aic.{queue}" if queue < self.num_aic else f"aiv.{queue - self.num_aic}"


def cpu(num_workers: int | None = None, ep_size: int = 1) -> Machine:
    """The CPU this process runs on: workers that take both kinds of tasks, shared evenly by `ep_size` virtual ranks.

    Rates are those of one AVX-512 core running float32; they only rank tasks against each other.
    """
    check_argument(num_workers is None or (isinstance(num_workers, int) and num_workers > 0), "hpmoe.cpu", "num_workers",
                   repr(num_workers), "a positive int or None")
    workers = num_workers or max(1, len(os.sched_getaffinity(0)) // ep_size)
    return Machine("cpu", workers, 0, True, tile_rows=128, tile_cols=256, flops_per_us=200e3, bytes_per_us=8e3, task_us=0.5)


ascend_a3 = Machine("ascend_a3", num_aic=24, num_aiv=48, unified=False, tile_rows=128, tile_cols=256,
                    flops_per_us=15e6, bytes_per_us=100e3, task_us=1.0)
ascend_a2 = ascend_a3.replace(name="ascend_a2")
