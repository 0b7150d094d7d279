"""The machine that describes the CPU of this process."""

from __future__ import annotations

import os

from hpmoe.machines.cached_calibration import with_calibration
from hpmoe.machines.hardware import L2, MOST_QUEUES, Cube, Host, Link, Memory, Sync, Vector
from hpmoe.machines.machine import Machine
from hpmoe.support.errors import check_argument, check_flags, is_int
from hpmoe.support.keywords import suggests_keywords

WORKERS_PER_CORE = 4


@suggests_keywords
def cpu(num_workers: int | None = None, ep_size: int = 1, calibrated: bool = False) -> Machine:
    """Returns a Machine for the CPU of this process: workers that take both kinds of tasks, for each of `ep_size` ranks.

    By default rates are those of one AVX-512 core in float32, good only to compare tasks. `calibrated=True` reads the rates
    that `hpmoe calibrate` measured on this CPU: with them `hpmoe.simulate` predicts the time of a launch.

    Args:
        num_workers: workers of each rank; by default all ranks together have several for each core of the process. Any free
            core serves them, so that slow and interrupted cores do less, and a measured Timeline shows a worker busy no
            more than its share of a core.
        ep_size: ranks that share the cores.
        calibrated: True reads the rates that `hpmoe calibrate` stored for this CPU, number of cores and version of hpmoe.

    Raises:
        ArgumentError: num_workers is not a positive int, or calibrated is True and no valid rates are stored.

    Example:
        >>> cpu(num_workers=2).num_queues
        2
    """
    check_argument(num_workers is None or is_int(num_workers, most=MOST_QUEUES), "hpmoe.cpu", "num_workers",
                   repr(num_workers), f"an int in 1..{MOST_QUEUES} or None")
    check_argument(is_int(ep_size), "hpmoe.cpu", "ep_size", repr(ep_size), "a positive int")
    cores = len(os.sched_getaffinity(0))
    workers, share = num_workers or max(1, WORKERS_PER_CORE * cores // ep_size), num_workers or cores
    machine = Machine(
        "cpu", workers, 0, tile_rows=1024, tile_cols=1024,
        cube=Cube(flops_per_us=200e3, efficiency=1.0, float32_ratio=1.0, granule=1, accumulator_bytes=1e18, fill_us=0.0),
        vector=Vector(bytes_per_us=8e3, copy_bytes_per_us=8e3),
        l2=L2(bytes=2e6 * share, bytes_per_us=40e3 * share, worker_bytes_per_us=40e3),
        memory=Memory(bytes_per_us=10e3 * share, worker_bytes_per_us=10e3),
        link=Link(bytes_per_us=1e9, node_bytes_per_us=1e9, worker_bytes_per_us=1e9, node_size=1 << 20),
        sync=Sync(task_us=0.5, wait_us=0.05, poll_us=0.5, signal_us=0.05, remote_us=0.1, node_remote_us=0.1),
        host=Host(launch_us=50.0, sync_us=0.0, collective_us=5.0, cores=0.0 if num_workers else cores))
    check_flags("hpmoe.cpu", calibrated=calibrated)
    return with_calibration(machine) if calibrated else machine

