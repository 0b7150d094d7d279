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
import threading
import time
from collections.abc import Sequence

from hpmoe.ranks.launchers import LAUNCHER, NODE, RENDEZVOUS, SECRET, find_launched
from hpmoe.ranks.points import meeting_point
from hpmoe.ranks.rendezvous import WORLD, tell_ends
from hpmoe.ranks.reports import Reports
from hpmoe.ranks.whole_lines import WholeLines
from hpmoe.support.cached_files import Fields

PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PATIENCE_S = 10.0  # after SIGTERM


def divided(cores: Sequence[int], num_ranks: int) -> list[set[int]]:
    """Divides cores evenly into neighbouring ones for each rank; ranks share cores if there are fewer cores than ranks.

    Example:
        >>> divided([0, 1, 2, 3, 4], 2), divided([0, 1], 4)
        ([{0, 1}, {2, 3, 4}], [{0}, {0}, {1}, {1}])
    """
    count = len(cores)
    ends = [rank * count // num_ranks for rank in range(num_ranks + 1)]
    return [set(cores[a:max(b, a + 1)]) for a, b in zip(ends, ends[1:], strict=False)]


@dataclasses.dataclass(frozen=True)
class Hosts:
    """Hosts of a run; each starts the same number of ranks.

    Attributes:
        num_hosts: number of hosts.
        host_rank: index of this host.
        rendezvous: "host:port" at which rank 0 listens; empty if this is the only host.
        secret: secret of the run, equal on all hosts; a new one if empty.
        node_size: number of neighbouring ranks of this host that share memory, as if other ranks were on other hosts; None
            for all.
    """

    num_hosts: int = 1
    host_rank: int = 0
    rendezvous: str = ""
    secret: str = dataclasses.field(default="", repr=False)
    node_size: int | None = None


ONE_HOST = Hosts()


def start_ranks(command: Sequence[str], num_ranks: int, hosts: Hosts = ONE_HOST) -> int:
    """Runs a command as several ranks and returns when all have ended: 0, or the exit status of the first that failed.

    Each has its share of the cores, its own number in RANK, LOCAL_RANK and RANK_ID, and theirs in WORLD_SIZE. What they
    write is copied here in whole lines. When one fails, a line on stderr says how, and the others go on. Ctrl-C, SIGTERM
    and SIGHUP are passed on to all; what is left of them a while after SIGTERM, or after a third Ctrl-C, is killed. None
    outlives this process.
    """
    return Ranks(command, num_ranks, hosts).wait()


class Ranks:
    """The processes of a run on this host.

    Attributes:
        processes: the process of each rank of this host.
        end_together: True if all ranks are ended when one fails.
        is_interrupted: True once a signal was passed on.
        ends: (rank, exit status, how in words) of those that have ended, in this order.
    """

    def __init__(self, command: Sequence[str], num_ranks: int, hosts: Hosts = ONE_HOST, *, end_together: bool = False):
        self.ends: list[tuple[int, int, str]] = []
        self.end_together, self._is_ending, self.is_interrupted = end_together, False, False
        self._is_over, self._interrupts = threading.Event(), 0
        self._kill_at, self._hosts, self._first = float("inf"), hosts, hosts.host_rank * num_ranks
        self._reports, self._lines = Reports(), WholeLines()
        self._told = {"WORLD_SIZE": str(num_ranks * hosts.num_hosts), SECRET: hosts.secret or secrets.token_hex(32),
                      LAUNCHER: self._reports.name, "PYTHONUNBUFFERED": os.environ.get("PYTHONUNBUFFERED", "1"),
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
        out, err = (self._lines.pipe(number) for number in (1, 2))
        try:
            return subprocess.Popen(command, env=self._environments[local], stdin=stdin, stdout=out, stderr=err,
                                    preexec_fn=prepare)
        finally:
            os.close(out)
            os.close(err)

    def wait(self) -> int:
        """Waits for all ranks and returns the exit status of the run; passes signals on if in the main thread."""
        before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON} if _is_main() else {}
        try:
            self._tell_ends()
            self._wait_for_all()
        finally:
            self._is_over.set()
            self._lines.close()
            self._reports.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return next((status for _, status, _ in self.ends if status), int(self._is_ending))

    def _wait_for_all(self) -> None:
        poll, left = select.poll(), {os.pidfd_open(p.pid): rank for rank, p in enumerate(self.processes)}
        for pidfd in left:
            poll.register(pidfd, select.POLLIN)
        while left:
            for pidfd, _ in poll.poll(200):
                poll.unregister(pidfd)
                os.close(pidfd)
                self._note_end(left.pop(pidfd))
            if self.end_together and not self._is_ending and self._has_failed():
                self._is_ending, self._kill_at = True, time.monotonic() + PATIENCE_S
                self._send_all(signal.SIGTERM)
            if time.monotonic() > self._kill_at:
                self._send_all(signal.SIGKILL)

    def _has_failed(self) -> bool:
        """Returns whether a rank of this host has failed, or one of another host, as a rank of this one has reported."""
        return any(status for _, status, _ in self.ends) or not all(
            self.has(blamed) for blamed, _ in [*self._reports.faults.values()])

    def has(self, rank: int) -> bool:
        """Returns whether a rank is of this host."""
        return 0 <= rank - self._first < len(self.processes)

    def _note_end(self, local: int) -> None:
        status, rank = self.processes[local].wait(), self._first + local
        how = ended(status)
        if self._is_ending:  # by this launcher
            return
        self.ends.append((rank, status if status >= 0 else 128 - status, how))
        if status != 0:
            blamed, cause = self._reports.faults.get(rank, (rank, ""))
            self._lines.say(f"hpmoe launch: rank {rank} {how}{', as ' + cause if blamed != rank else ''}")

    def first_cause(self, where: str = "") -> tuple[int, str]:
        """Returns the rank that failed first, other than as another one had, and how; (-1, "") if none has ended."""
        faults = self._reports.faults
        for rank, _, how in [*self.ends]:
            blamed, text = faults.get(rank, (rank, f"rank {rank} {how}{where}"))
            if blamed == rank:
                return rank, text
        return next(iter(faults.values()), (-1, ""))

    def _tell_ends(self) -> None:
        """Tells ranks that still wait for others the first cause why these do not come."""
        launched = find_launched(self._environments[0])
        if launched is None:
            return

        def fault() -> Fields:
            rank, text = self.first_cause(f" before it came to {WORLD}") if self.ends else (-1, "")
            return {"rank": rank, "fault": text} if rank >= 0 else {}

        def is_rank_0_gone() -> bool:
            return any(rank == 0 for rank, _, _ in [*self.ends])

        threading.Thread(target=tell_ends, daemon=True, args=(
            meeting_point(launched), fault, is_rank_0_gone, self._is_over.is_set)).start()

    def _pass_on(self, number: int, frame: object) -> None:
        self._interrupts, self.is_interrupted = self._interrupts + (number == signal.SIGINT), True
        if number != signal.SIGINT:
            self._kill_at = min(self._kill_at, time.monotonic() + PATIENCE_S)
        self._send_all(signal.SIGKILL if self._interrupts > 2 else number)

    def _send_all(self, number: int) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, number)


def free_address() -> str:
    """Returns the address of a free port of this computer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def ended(status: int) -> str:
    """Describes how a process ended.

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
