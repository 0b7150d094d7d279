"""Addresses at which the processes of a run connect, and authentication of both ends: by user, or by a secret.

On a host that is a name in Linux' abstract namespace, of which nothing is left; between hosts, an address.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket

from hpmoe.ranks.launchers import Launched
from hpmoe.ranks.messages import GoneError, receive_bytes, send_bytes, user_of

NONCE_BYTES = 32


class HostPoint:
    """A name on this host at which one process of a run listens and others connect. They are on the same host and `node`."""

    takes_files = True  # whether processes can hand each other open files there
    beside = None

    def __init__(self, run: bytes, tag: str, node: str = ""):
        self._name = b"\0hpmoe-" + hashlib.sha256(run + tag.encode() + node.encode()).hexdigest().encode()

    def __str__(self) -> str:
        return "the socket of this run"

    def listen(self) -> socket.socket:
        """Raises OSError if another process listens there."""
        return _listening(socket.AF_UNIX, self._name)

    def connect(self, timeout: float) -> socket.socket:
        """Raises OSError if no process listens there."""
        return _connected(socket.AF_UNIX, self._name, timeout)

    def stranger(self, connection: socket.socket, listens: bool, deadline: float) -> str:
        """Returns who is at the other end if it is no process of this run, else ""; `listens` says whether this end listens.

        Raises GoneError if the other end is gone, or says too little until `deadline`, of time.monotonic().
        """
        user = user_of(connection)
        return "" if user == os.getuid() else f"a process of user {user}"


def at_port(host: str, port: int) -> str:
    """Returns an address as NetPoint reads it, "host:port".

    Example:
        >>> at_port("10.0.0.1", 80), at_port("::1", 80)
        ('10.0.0.1:80', '[::1]:80')
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class NetPoint:
    """A HostPoint between hosts: an address, "host:port", and the secret of the run as proof. Port 0 is any free port."""

    takes_files = False

    def __init__(self, run: bytes, address: str):
        self._run = run
        self.host, _, self.port = address.rpartition(":")
        self.host = self.host.strip("[]")

    def __str__(self) -> str:
        return at_port(self.host, int(self.port))

    @property
    def beside(self) -> NetPoint:
        """Point at which a launcher tells that another process has the port."""
        return NetPoint(self._run, at_port(self.host, int(self.port) ^ 1))

    def _found(self) -> tuple[int, tuple[str, int]]:
        family, _, _, _, address = socket.getaddrinfo(self.host, int(self.port), type=socket.SOCK_STREAM)[0]
        return family, (str(address[0]), int(address[1]))

    def listen(self) -> socket.socket:
        return _listening(*self._found())

    def connect(self, timeout: float) -> socket.socket:
        return _connected(*self._found(), timeout)

    def stranger(self, connection: socket.socket, listens: bool, deadline: float) -> str:
        is_of_run = has_secret(connection, self._run, listens, deadline)
        return "" if is_of_run else "a process without the secret of this run"


Point = HostPoint | NetPoint


def meeting_point(launched: Launched) -> Point:
    """Returns the point at which rank 0 of a run listens."""
    return NetPoint(launched.run, launched.rendezvous) if launched.rendezvous else HostPoint(launched.run, "")


def has_secret(connection: socket.socket, run: bytes, listens: bool, deadline: float) -> bool:
    """Returns whether both ends have the same secret. Neither sends it.

    Raises:
        GoneError: the other end is gone, or says too little until `deadline`, of time.monotonic().
    """
    own = secrets.token_bytes(NONCE_BYTES)
    send_bytes(connection, own)
    theirs = receive_bytes(connection, NONCE_BYTES, deadline)
    send_bytes(connection, _proof(run, listens, own, theirs))
    proof = receive_bytes(connection, hashlib.sha256().digest_size, deadline)
    return hmac.compare_digest(proof, _proof(run, not listens, theirs, own))


def _proof(run: bytes, listens: bool, own: bytes, theirs: bytes) -> bytes:
    return hmac.digest(run, (b"listens" if listens else b"connects") + own + theirs, "sha256")


def secret_of(run: bytes, tag: str) -> bytes:
    """Returns 16 bytes of a group, without which messages between hosts are refused."""
    return hmac.digest(run, b"messages" + tag.encode(), "sha256")[:16]


def _listening(family: int, address: bytes | tuple[str, int]) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family != socket.AF_UNIX:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(socket.SOMAXCONN)
    except OSError:
        listener.close()
        raise
    return listener


def _connected(family: int, address: bytes | tuple[str, int], timeout: float) -> socket.socket:
    connection = socket.socket(family, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        connection.connect(address)
        connection.settimeout(None)
        if connection.getsockname() == connection.getpeername():  # connected to itself: the port has no listener
            raise GoneError("no process listens")
    except OSError:
        connection.close()
        raise
    return connection
