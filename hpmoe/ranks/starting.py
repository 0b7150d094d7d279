"""Starting a script as several ranks on this computer, and waiting for them."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from hpmoe.ranks.launchers import NODE, RENDEZVOUS, SECRET, find_launched
from hpmoe.ranks.points import HostPoint, NetPoint
from hpmoe.ranks.rendezvous import tell_end

PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 10.0  # after SIGTERM


def divided(cores: Sequence[int], num_ranks: int) -> list[set[int]]:
    """The cores of each rank: neighbouring ones, as many as there are for all; one that several share where they are few.

    Example:
        >>> divided([0, 1, 2, 3, 4], 2), divided([0, 1], 4)
        ([{0, 1}, {2, 3, 4}], [{0}, {0}, {1}, {1}])
    """
    count = len(cores)
    ends = [rank * count // num_ranks for rank in range(num_ranks + 1)]
    return [set(cores[a:max(b, a + 1)]) for a, b in zip(ends, ends[1:], strict=False)]


@dataclasses.dataclass(frozen=True)
class Hosts:
    """The hosts that a run is on; each starts as many ranks.

    Attributes:
        num_hosts: how many there are.
        host_rank: of this one.
        rendezvous: "host:port" at which rank 0 listens; empty where there is but this host.
        secret: of the run, alike on all hosts; a new one where it is empty.
        node_size: how many neighbouring ranks of this host share memory, where those of other nodes shall not, as if they
            were on other hosts; None: all.
    """

    num_hosts: int = 1
    host_rank: int = 0
    rendezvous: str = ""
    secret: str = dataclasses.field(default="", repr=False)
    node_size: int | None = None


ONE_HOST = Hosts()


def start_ranks(command: Sequence[str], num_ranks: int, hosts: Hosts = ONE_HOST) -> int:
    """Runs a command as so many ranks here and returns when all have ended: 0, or the exit status of the first that failed.

    Each has its share of the cores, its own number in RANK, LOCAL_RANK and RANK_ID, and theirs in WORLD_SIZE. When one
    fails, a line on stderr says how, and the others go on. Ctrl-C, SIGTERM and SIGHUP are passed on to all; what is left of
    them a while after SIGTERM, or after a third Ctrl-C, is killed. None outlives this process.
    """
    return Ranks(command, num_ranks, hosts).wait()


class Ranks:
    """The processes of a run on this host.

    Attributes:
        processes: one for each rank of this host.
        failures: (rank, exit status, how in words) of those that failed, in the order in which they ended.
    """

    def __init__(self, command: Sequence[str], num_ranks: int, hosts: Hosts = ONE_HOST):
        self.failures: list[tuple[int, int, str]] = []
        self._is_over, self._interrupts = threading.Event(), 0
        self._kill_at, self._hosts, self._first = float("inf"), hosts, hosts.host_rank * num_ranks
        self._told = {"WORLD_SIZE": str(num_ranks * hosts.num_hosts), SECRET: hosts.secret or secrets.token_hex(32),
                      RENDEZVOUS: hosts.rendezvous or ("" if hosts.node_size is None else free_address())}
        shares = divided(sorted(os.sched_getaffinity(0)), num_ranks)
        self._environments = [self._environment(local) for local in range(num_ranks)]
        self.processes = [self._start(command, rank, share) for rank, share in enumerate(shares)]

    def _environment(self, local: int) -> dict[str, str]:
        rank, node_size = str(self._first + local), self._hosts.node_size
        own = {"RANK": rank, "RANK_ID": rank, "LOCAL_RANK": str(local), NODE: str(local // node_size) if node_size else ""}
        return {**os.environ, **own, **self._told}

    def _start(self, command: Sequence[str], local: int, cores: set[int]) -> subprocess.Popen[bytes]:
        parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

        def prepare() -> None:
            os.setpgid(0, 0)  # the terminal's Ctrl-C comes here alone, and is passed on once
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(1)
            os.sched_setaffinity(0, cores)

        stdin = None if self._first + local == 0 and not os.isatty(0) else subprocess.DEVNULL
        return subprocess.Popen(command, env=self._environments[local], stdin=stdin, preexec_fn=prepare)

    def wait(self) -> int:
        """Until all have ended; the exit status of the run. Signals are passed on meanwhile, in the main thread."""
        before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON} if _is_main() else {}
        try:
            self._wait_for_all()
        finally:
            self._is_over.set()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.failures[0][1] if self.failures else 0

    def _wait_for_all(self) -> None:
        poll, left = select.poll(), {os.pidfd_open(p.pid): rank for rank, p in enumerate(self.processes)}
        for pidfd in left:
            poll.register(pidfd, select.POLLIN)
        while left:
            for pidfd, _ in poll.poll(200):
                poll.unregister(pidfd)
                os.close(pidfd)
                self._note_end(left.pop(pidfd))
            if time.monotonic() > self._kill_at:
                self._send_all(signal.SIGKILL)

    def _note_end(self, local: int) -> None:
        status, rank = self.processes[local].wait(), self._first + local
        how = ended(status)
        if status != 0:
            self.failures.append((rank, status if status > 0 else 128 - status, how))
            print(f"hpmoe launch: rank {rank} {how}", file=sys.stderr, flush=True)
        launched = find_launched(self._environments[local])
        if launched is not None:
            point = NetPoint(launched.run, launched.rendezvous) if launched.rendezvous else HostPoint(launched.run, "")
            threading.Thread(target=tell_end, args=(point, rank, how, self._is_over), daemon=True).start()

    def _pass_on(self, number: int, frame: object) -> None:
        self._interrupts += number == signal.SIGINT
        if number != signal.SIGINT:
            self._kill_at = min(self._kill_at, time.monotonic() + PATIENCE_S)
        self._send_all(signal.SIGKILL if self._interrupts > 2 else number)

    def _send_all(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, number)


def free_address() -> str:
    """A port of this computer at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def ended(status: int) -> str:
    """How a process ended, in words.

    Example:
        >>> ended(-9), ended(3)
        ('was killed by SIGKILL', 'ended with status 3')
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-status}"


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()
