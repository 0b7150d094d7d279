"""Launchers, which start a script as several processes: which one started this process, and as which of its ranks."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

LAUNCHER = "HPMOE_LAUNCHER"  # of `hpmoe launch`: names the socket at which it listens
SECRET = "HPMOE_SECRET"  # of a run of `hpmoe launch`, hexadecimal, or of a run on several hosts
RENDEZVOUS = "HPMOE_RENDEZVOUS"  # host:port at which rank 0 listens, where ranks are on several hosts
LEAST_SECRET = 16  # characters
STORE_S = 5.0  # for torchrun's store to answer
PORTS = range(20_000, 30_000)  # below those that Linux gives to who asks for any
_STORE = ("MASTER_ADDR", "MASTER_PORT")  # at which torchrun's store listens, and hpmoe never does
NODE = "HPMOE_NODE"  # processes of a host that have others count as being on another host


class Launcher(NamedTuple):
    """Variables that a launcher sets for the processes that it starts.

    Attributes:
        name: command of the launcher.
        rank, size: variables with the rank of a process and the number of ranks.
        run: variables that together differ between runs; if there are none, the launcher's process id does.
        local_size: the number of processes on this host.
        hosts: the number of hosts, and their names as Slurm writes them.
    """

    name: str
    rank: str
    size: str
    run: tuple[str, ...] = ()
    local_size: str = ""
    hosts: tuple[str, str] | None = None


_SLURM = Launcher("srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", ("SLURM_JOB_ID", "SLURM_STEP_ID"),
                  hosts=("SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST"))
# The first that fits counts: a process that is started under another launcher has the variables of both. Slurm sets the
# number of an allocation also where the script is started once; that of a step counts what srun started.
LAUNCHERS = (
    Launcher("hpmoe launch", "RANK", "WORLD_SIZE", (LAUNCHER,)),
    Launcher("torchrun", "RANK", "WORLD_SIZE", ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", *_STORE),
             "LOCAL_WORLD_SIZE"),
    Launcher("torchrun", "RANK", "WORLD_SIZE", _STORE, "LOCAL_WORLD_SIZE"),  # without its agents
    Launcher("hpmoe launch", "RANK", "WORLD_SIZE", (SECRET,)),  # by hand
    Launcher("msrun", "RANK_ID", "MS_WORKER_NUM", ("MS_SCHED_HOST", "MS_SCHED_PORT")),
    Launcher("msrun", "RANK_ID", "RANK_SIZE"),  # with a rank table, without a scheduler
    Launcher("mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", local_size="OMPI_COMM_WORLD_LOCAL_SIZE"),
    Launcher("mpirun", "PMI_RANK", "PMI_SIZE", local_size="MPI_LOCALNRANKS"),  # of MPICH and Intel MPI
    _SLURM,
)


@dataclasses.dataclass(frozen=True)
class Launched:
    """Launcher, rank and run of this process.

    Attributes:
        launcher: the name of its command.
        rank, size: rank of this process among all that the launcher started, and their number.
        run: 32 bytes that only processes of this run and user have.
        rendezvous: "host:port" at which rank 0 listens; empty if all ranks are on one host.
        node: node within the host, if the host is declared to be several nodes.
    """

    launcher: str
    rank: int
    size: int
    run: bytes = dataclasses.field(repr=False)
    rendezvous: str = dataclasses.field(default="", repr=False)
    node: str = dataclasses.field(default="", repr=False)


def find_launched(environment: Mapping[str, str] = os.environ) -> Launched | None:
    """Returns how this process was launched, or None if it was not launched as a rank.

    Example:
        >>> find_launched({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"})
        Launched(launcher='mpirun', rank=3, size=4)
        >>> find_launched({"SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    """
    launcher = _find(environment)
    if launcher is None:
        return None
    rendezvous = environment.get(RENDEZVOUS, "") or _rendezvous_of(launcher, environment)
    return Launched(launcher.name, int(environment[launcher.rank]), int(environment[launcher.size]),
                    _run_of(launcher, environment, bool(rendezvous)), rendezvous, environment.get(NODE, ""))


def _find(environment: Mapping[str, str]) -> Launcher | None:
    for launcher in LAUNCHERS:
        if all(name in environment for name in launcher.run):
            rank, size = _numbers(launcher, environment)
            if launcher.run == (LAUNCHER,) and size == 1:  # any launcher may run `hpmoe launch -n 1`
                return None
            if size > 1 and rank < size:
                is_slurms = _numbers(_SLURM, environment) == (rank, size) and _SLURM.run[0] in environment
                return _SLURM if launcher.rank == "PMI_RANK" and is_slurms else launcher  # srun --mpi=pmi2
    return None


def _numbers(launcher: Launcher, environment: Mapping[str, str]) -> tuple[int, int]:
    """Returns rank and number of ranks; (0, 0) if the launcher has not set both."""
    rank, size = environment.get(launcher.rank, ""), environment.get(launcher.size, "")
    return (int(rank), int(size)) if rank.isdecimal() and size.isdecimal() else (0, 0)


def find_fault(environment: Mapping[str, str] = os.environ) -> str:
    """Returns what is wrong with the variables of launchers, or "".

    Example:
        >>> find_fault({"RANK": "0", "WORLD_SIZE": "4"}).partition(":")[0]
        'RANK=0 and WORLD_SIZE=4 are of a world of 4 ranks, and this process would be a world of 1'
    """
    found = _find(environment)
    size = 1 if found is None else int(environment[found.size])
    is_nested = LAUNCHER in environment or (found is not None and found.name == "mpirun")  # in steps of others
    for launcher in () if is_nested else LAUNCHERS:
        if (larger := _numbers(launcher, environment)[1]) > size:
            names = (launcher.rank, launcher.size, *(_STORE if launcher.rank == "RANK" else ()))
            told = " and ".join(f"{name}={environment[name]}" for name in names if name in environment)
            return (f"{told} are of a world of {larger} ranks, and this process would be a world of {size}: start the "
                    f"script with one of {known()}, or unset them")
    if found is None or environment.get(RENDEZVOUS) or not found.local_size:
        return ""
    local = environment.get(found.local_size, "")
    is_one_host = local == environment[found.size] if local else (
        found.name != "torchrun" or re.match(r"localhost$|127\.|::1$", environment[_STORE[0]]) is not None)
    return "" if is_one_host else (
        f"{found.name} started {size} ranks on several hosts ({found.local_size}={local or 'missing'}), and {RENDEZVOUS} "
        f"is missing: set {RENDEZVOUS}=ADDRESS:PORT, where rank 0 listens, and {SECRET}, {LEAST_SECRET} characters or "
        "more, each the same on all ranks")


def has_store_ended(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether the variables of this process are those of a torchrun whose agent, with its store, has ended."""
    found = _find(environment)
    if found is None or found.name != "torchrun" or environment.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return False
    try:
        host, port = (environment[name] for name in _STORE)
        socket.create_connection((host, int(port)), STORE_S).close()
    except ConnectionRefusedError:
        return True
    except (OSError, ValueError):
        return False
    return False


def known() -> str:
    """Returns the names of the commands that start ranks, as text."""
    return ", ".join(dict.fromkeys(launcher.name for launcher in LAUNCHERS))


def is_scheduler(environment: Mapping[str, str] = os.environ) -> bool:
    """Returns True if this is the scheduler process that msrun starts with the script."""
    return environment.get("MS_ROLE") == "MS_SCHED"


def first_host(names: str) -> str:
    """Returns the first of the hosts that Slurm names in short.

    Example:
        >>> [first_host(names) for names in ("node[07-09,11],other", "a1,a2", "rack[1-2]n[3-4]", "10.0.0.[5-6]")]
        ['node07', 'a1', 'rack1n3', '10.0.0.5']
    """
    name = re.sub(r"\[([^\],-]*)[^\]]*\]", r"\1", names)
    return name.partition(",")[0]


def _rendezvous_of(launcher: Launcher, environment: Mapping[str, str]) -> str:
    """Returns the address at which rank 0 listens: the first host and a port of the run; "" on one host."""
    if launcher.hosts is None:
        return ""
    number, names = (environment.get(name, "") for name in launcher.hosts)
    if not number.isdecimal() or int(number) < 2 or not names:
        return ""
    run = hashlib.sha256("\0".join(environment[name] for name in launcher.run).encode()).digest()
    return f"{first_host(names)}:{PORTS[int.from_bytes(run[:4], 'big') % len(PORTS)]}"


def _run_of(launcher: Launcher, environment: Mapping[str, str], has_hosts: bool) -> bytes:
    """Returns bytes that only processes of one run share: a secret, or the run's name on this computer."""
    if has_hosts:
        return hashlib.sha256(f"hpmoe\0{environment.get(SECRET, '')}".encode()).digest()
    told = [environment[name] for name in launcher.run] or [_launching_process(launcher.rank)]
    return hashlib.sha256("\0".join(["hpmoe", str(os.getuid()), launcher.name, *told]).encode()).digest()


def _launching_process(variable: str) -> str:
    """Returns the number and start time of the nearest process above this one that was started without a variable."""
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
