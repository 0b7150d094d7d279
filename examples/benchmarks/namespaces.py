"""Two hosts on one computer: network namespaces that a cable joins, which can be cut and made slow. They need no rights."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from types import TracebackType

ADDRESSES, DEVICES = ("10.26.0.1", "10.26.0.2"), ("near", "far")  # of each host: its end of the cable
BURST = "128kb"  # that goes faster than the rate: a few packets, beside what one run sends


# What two processes do to time a cable: one sends some bytes, the other says how long all but the first took to come.
TIMED_BYTES = 48_000_000
RECEIVE = """import socket, time
with socket.create_server(("{address}", 29400)) as server:
    print("in", flush=True)
    connection, _ = server.accept()
    left, began = {bytes} - len(connection.recv(1)), time.perf_counter()
    while left:
        left -= len(connection.recv(min(left, 1 << 20)))
    print(time.perf_counter() - began)"""
SEND = """import socket
socket.create_connection(("{address}", 29400)).sendall(bytes({bytes}))"""


class NoHostsError(Exception):
    """Namespaces cannot be made here, or their cable not shaped; the text says why."""


class Hosts:
    """Two network namespaces, in which processes see no interface but their end of the cable, and their own loopback.

    They end with the process that made them, or where a `with` ends.

    Raises:
        NoHostsError: the system does not let this process make them, or lacks a command for it.
    """

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen[str]] = []
        try:
            self._hold("unshare", "--user", "--map-root-user", "--net", "--mount")
            self._hold("nsenter", "--preserve-credentials", "--user", "-t", str(self._holders[0].pid), "unshare", "--net",
                       "--mount")
            self.call(0, "ip", "link", "add", DEVICES[0], "type", "veth", "peer", "name", DEVICES[1])
            self.call(0, "ip", "link", "set", DEVICES[1], "netns", str(self._holders[1].pid))
            for host, end in enumerate(DEVICES):
                self.call(host, "ip", "address", "add", f"{ADDRESSES[host]}/24", "dev", end)
                for device in ("lo", end):
                    self.call(host, "ip", "link", "set", device, "up")
        except NoHostsError:
            self.close()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _hold(self, *command: str) -> None:
        """A process that keeps a namespace, as long as this end of its pipe is open. /sys shows its network there, not this
        computer's, to who looks for devices; where that cannot be mounted, who looks finds none of it."""
        keep = "mount -t sysfs sysfs /sys 2>/dev/null; echo in; exec cat"
        try:
            holder = subprocess.Popen([*command, "sh", "-c", keep], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                      stderr=subprocess.PIPE, text=True)
        except OSError as error:
            raise NoHostsError(f"no network namespaces: {error}") from None
        self._holders.append(holder)
        assert holder.stdout is not None and holder.stderr is not None
        if holder.stdout.readline() != "in\n":
            raise NoHostsError(f"no network namespaces: {holder.stderr.read().strip()}")

    def inside(self, host: int, command: Sequence[str]) -> list[str]:
        """A command as it runs on a host."""
        pid = str(self._holders[host].pid)
        return ["nsenter", "--preserve-credentials", "--user", "--net", "--mount", "--wd=.", "-t", pid, *command]

    def call(self, host: int, *command: str) -> None:
        """Runs a command on a host."""
        try:
            subprocess.run(self.inside(host, command), check=True, capture_output=True, text=True, timeout=20)
        except (OSError, subprocess.SubprocessError) as error:
            said = getattr(error, "stderr", None) or error
            raise NoHostsError(f"no cable between network namespaces: {' '.join(command)}: {str(said).strip()}") from None

    def cut(self) -> None:
        """Nothing goes over the cable any more."""
        self.call(0, "ip", "link", "set", DEVICES[0], "down")

    def shape(self, rate: str) -> None:
        """Limits the cable in both directions, to a rate as tc writes it: 1gbit."""
        for host, end in enumerate(DEVICES):
            self.call(host, *f"tc qdisc replace dev {end} root tbf rate {rate} burst {BURST} latency 50ms".split())

    def gbits(self) -> float:
        """Gb/s that a TCP connection gets from the first host to the second."""
        receive, send = ([sys.executable, "-S", "-c", text.format(address=ADDRESSES[1], bytes=TIMED_BYTES)]
                         for text in (RECEIVE, SEND))
        with subprocess.Popen(self.inside(1, receive), stdout=subprocess.PIPE, text=True) as receiver:
            assert receiver.stdout is not None
            receiver.stdout.readline()
            self.call(0, *send)
            return 8e-9 * TIMED_BYTES / float(receiver.stdout.readline())

    def close(self) -> None:
        for holder in self._holders:
            holder.kill()
            holder.communicate()
        self._holders.clear()
