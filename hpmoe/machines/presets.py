"""The machines that come with hpmoe: the CPU of this process, and one die of an Ascend A2 and A3."""

from __future__ import annotations

import os

from hpmoe.machines.kept_calibration import load_calibration
from hpmoe.machines.machine import MOST_QUEUES, Machine
from hpmoe.support.errors import check_argument, is_int

WORKERS_PER_CORE = 4


def cpu(num_workers: int | None = None, ep_size: int = 1, calibrated: bool = False) -> Machine:
    """The CPU this process runs on: workers that take both kinds of tasks, shared evenly by `ep_size` virtual ranks.

    Rates are those of one AVX-512 core running float32, which only rank tasks against each other; or those that
    `hpmoe calibrate` measured here, with which `hpmoe.simulate` predicts what a launch takes.

    Args:
        num_workers: of each rank; by default all ranks together have several for each core of the process. Whatever core is
            free serves them, so that slow and interrupted cores do less, and a measured Timeline shows a worker busy no more
            than its share of a core.
        ep_size: ranks that share the cores.
        calibrated: take what `hpmoe calibrate` has stored for this CPU, number of cores and version of hpmoe.

    Raises:
        ArgumentError: num_workers is not a positive int, or nothing that can be used is stored.

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
        "cpu", workers, 0, True, tile_rows=1024, tile_cols=1024, matmul_flops_per_us=200e3, matmul_efficiency=1.0,
        matmul_float32_ratio=1.0, matmul_granule=1, accumulator_bytes=1e18, matmul_fill_us=0.0,
        vector_bytes_per_us=8e3, copy_bytes_per_us=8e3,
        l2_bytes=2e6 * share, l2_bytes_per_us=40e3 * share, worker_l2_bytes_per_us=40e3,
        memory_bytes_per_us=10e3 * share, worker_memory_bytes_per_us=10e3, node_size=1 << 20, link_bytes_per_us=1e9,
        worker_link_bytes_per_us=1e9, node_link_bytes_per_us=1e9, task_us=0.5, wait_us=0.05, poll_us=0.5, signal_us=0.05,
        remote_us=0.1, node_remote_us=0.1, launch_us=50.0, host_sync_us=0.0, collective_us=5.0,
        host_cores=0.0 if num_workers else cores)
    if not calibrated:
        return machine
    return machine.replace(**load_calibration())


# One die of an Ascend A3 package. From vendor documents: 24 usable AIC and 48 AIV (silicon 25 and 50), 192 MB of L2 at 5-7
# TB/s, 128 KB of sums a core (L0C), 16x16x16 MAC a cycle; 1.815 GHz follows from the vendor's 8192^3 profile, 357 TFLOP/s.
# Links of 196 GB/s each way and die in a supernode, RDMA of 200 Gb/s between them: secondary source (CloudMatrix384).
# Measured by others: a core gets 4-5.5 GB/s out of another die, an event through GM takes about 1 us, a launch 20 us.
# HyperParallel-MoE: 0.1 us a statically scheduled task; 90 GB/s an AIV follows from its SwiGLU+Add of 2048 rows, 3.1 MB
# for each of 16 workers in 54 us with a launch (a public cost model fitted 108 GB/s in).
# Fitted to the EP8 row of HyperParallel-MoE's table, the other rows in view: worker_l2_bytes_per_us (a public
# cost model fitted 135 GiB/s a core, here it is 146), memory_bytes_per_us (1.6-1.8 TB/s by the documents, of which kernels
# reach 62 % here, as the same paper's SwiGLU+Add of 32,768 rows does: 805 MB in 723 us), collective_us.
# Assumed, no source: matmul_efficiency and matmul_fill_us, copy_bytes_per_us, wait_us, signal_us, remote_us,
# node_remote_us, host_sync_us.
ascend_a3 = Machine(
    "ascend_a3", num_aic=24, num_aiv=48, unified=False, tile_rows=128, tile_cols=256, matmul_flops_per_us=14.87e6,
    matmul_efficiency=0.95, matmul_float32_ratio=0.25, matmul_granule=16, accumulator_bytes=131072.0, matmul_fill_us=0.5,
    vector_bytes_per_us=90e3, copy_bytes_per_us=90e3, l2_bytes=192e6, l2_bytes_per_us=6e6, worker_l2_bytes_per_us=157e3,
    memory_bytes_per_us=1.05e6, worker_memory_bytes_per_us=145e3, node_size=384, link_bytes_per_us=196e3,
    worker_link_bytes_per_us=5e3, node_link_bytes_per_us=25e3, task_us=0.1, wait_us=0.1, poll_us=1.0, signal_us=0.3,
    remote_us=1.0, node_remote_us=3.0, launch_us=20.0, host_sync_us=50.0, collective_us=200.0)
# The same die with eight to a node; what its links reach is a user's parameter, here an assumption.
ascend_a2 = ascend_a3.replace(name="ascend_a2", node_size=8)
