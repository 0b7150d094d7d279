"""Launchers, which start a script as several processes: which one started this process, and as which of its ranks."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

SECRET = "HPMOE_SECRET"  # of a run of `hpmoe launch`, hexadecimal, or of a run on several hosts
RENDEZVOUS = "HPMOE_RENDEZVOUS"  # host:port at which rank 0 listens, where ranks are on several hosts
LEAST_SECRET = 16  # characters
PORTS = range(20_000, 30_000)  # below those that Linux gives to who asks for any
NODE = "HPMOE_NODE"  # processes of a host that have others count as being on another host


class Launcher(NamedTuple):
    """What a launcher tells the processes that it starts.

    Attributes:
        name: of its command.
        rank, size: the variables of a process's rank and of how many there are.
        run: those that together tell this run from others; where there are none, the launcher's own process does.
        hosts: how many hosts ranks are on, and their names as Slurm writes them, where a launcher says so.
    """

    name: str
    rank: str
    size: str
    run: tuple[str, ...] = ()
    hosts: tuple[str, str] | None = None


# The first that fits counts: who is started under another launcher has the variables of both. Slurm sets the number of an
# allocation also where the script is started once; that of a step counts what srun started.
LAUNCHERS = (
    Launcher("hpmoe launch", "RANK", "WORLD_SIZE", (SECRET,)),
    Launcher("msrun", "RANK_ID", "MS_WORKER_NUM", ("MS_SCHED_HOST", "MS_SCHED_PORT")),
    Launcher("msrun", "RANK_ID", "RANK_SIZE"),  # with a rank table, without a scheduler
    Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    Launcher("mpirun", "PMI_RANK", "PMI_SIZE"),  # of MPICH and Intel MPI
    Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID"),
             ("SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST")),
)


@dataclasses.dataclass(frozen=True)
class Launched:
    """How a process was started.

    Attributes:
        launcher: the name of its command.
        rank, size: of all processes that it started together.
        run: 32 bytes that only processes of this run and user have.
        rendezvous: "host:port" at which rank 0 listens; empty where all are on one host.
        node: of a host, where it is declared to be several.
    """

    launcher: str
    rank: int
    size: int
    run: bytes = dataclasses.field(repr=False)
    rendezvous: str = dataclasses.field(default="", repr=False)
    node: str = dataclasses.field(default="", repr=False)


def find_launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """How this process was started beside others; None for one on its own.

    Example:
        >>> find_launched({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})
        Launched(launcher='mpirun', rank=3, size=4)
        >>> find_launched({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    """
    for launcher in LAUNCHERS:
        rank, size = environment.get(launcher.rank, ""), environment.get(launcher.size, "")
        if not all(name in environment for name in launcher.run) or not rank.isdecimal() or not size.isdecimal():
            continue
        if int(size) > 1 and int(rank) < int(size):
            rendezvous = environment.get(RENDEZVOUS, "") or _rendezvous_of(launcher, environment)
            return Launched(launcher.name, int(rank), int(size), _run_of(launcher, environment, bool(rendezvous)),
                            rendezvous, environment.get(NODE, ""))
    return None


def is_scheduler(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the process that msrun starts beside the ranks, with the same script."""
    return environment.get("MS_ROLE") == "MS_SCHED"


def first_host(names: str) -> str:
    """The first of the hosts that Slurm names in short.

    Example:
        >>> [first_host(names) for names in ("node[07-09,11],other", "a1,a2", "rack[1-2]n[3-4]", "10.0.0.[5-6]")]
        ['node07', 'a1', 'rack1n3', '10.0.0.5']
    """
    name = re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", names)
    return name.partition(",")[0]


def _rendezvous_of(launcher: Launcher, environment: Mapping[str, str]) -> str:
    """Where rank 0 of several hosts listens: on the first one, at a port of the run's own; nothing of one host."""
    if launcher.hosts is None:
        return ""
    number, names = (environment.get(name, "") for name in launcher.hosts)
    if not number.isdecimal() or int(number) < 2 or not names:
        return ""
    run = hashlib.sha256("\0".join(environment[name] for name in launcher.run).encode()).digest()
    return f"{first_host(names)}:{PORTS[int.from_bytes(run[:4], 'big') % len(PORTS)]}"


def _run_of(launcher: Launcher, environment: Mapping[str, str], has_hosts: bool) -> bytes:
    """What processes of one run have in common: a secret, or what names the run on this computer."""
    if has_hosts:
        return hashlib.sha256(f"hpmoe\0{environment.get(SECRET, '')}".encode()).digest()
    told = [environment[name] for name in launcher.run] or [_launching_process(launcher.rank)]
    return hashlib.sha256("\0".join(["hpmoe", str(os.getuid()), launcher.name, *told]).encode()).digest()


def _launching_process(variable: str) -> str:
    """The nearest process above this one that was not started with a variable: its number and when it began."""
    pid = os.getppid()
    while pid > 1:
        try:
            is_told = any(entry.startswith(f"{variable}=".encode())
                          for entry in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:  # another user's, so none of ours
            return str(pid)
        if not is_told:
            return f"{pid} {fields[19]}"
        pid = int(fields[1])
    return str(pid)
