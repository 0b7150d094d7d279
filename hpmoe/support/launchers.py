"""Launchers, which start a script as several processes: whether one of them started this process, by what it tells it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from hpmoe.support.errors import check_argument

# A launcher's name, which variable says that it started this process, and which how many there are. Slurm sets that of an
# allocation also where the script is started once; that of a step counts what srun started.
_TOLD_BY = (("msrun", "MS_ROLE", "MS_WORKER_NUM"), ("msrun", "RANK_ID", "RANK_SIZE"),
            ("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), ("mpirun", "PMI_RANK", "PMI_SIZE"),
            ("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"))


def launched_processes(environment: Mapping[str, str] = os.environ) -> tuple[str, int] | None:
    """The launcher that started this process beside others, and how many there are; None for a process on its own.

    Example:
        >>> launched_processes({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"})
        ('mpirun', 4)
        >>> launched_processes({"SLURM_NTASKS": "4"})
    """
    for launcher, place, count in _TOLD_BY:
        told = environment.get(count, "")
        if place in environment and told.isdecimal() and int(told) > 1:
            return launcher, int(told)
    return None


def check_alone(ep_size: int) -> None:
    """Raises ArgumentError where a launcher started several processes, each of which would compute all of several ranks."""
    launched = launched_processes() if ep_size > 1 else None
    if launched is not None:
        check_argument(False, "spmd", f"the number of processes that {launched[0]} started", launched[1],
                       f"1: ranks are threads of one process, and each of these would compute all {ep_size}",
                       f"Start the script once, without {launched[0]}; only on NPUs, fuse_persistent(target=\"ascend\"), "
                       "are ranks processes.")
