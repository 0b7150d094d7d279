"""Processes of MindSpore's world find each other by its AllGather, without an address that all are given."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import cast

import mindspore as ms
import numpy as np
from mindspore import communication, ops

from hpmoe.ranks.hosts import Group, Place, connect
from hpmoe.ranks.launchers import Launched

WORD = np.dtype(np.int32)  # MindSpore's AllGather on a CPU takes no bytes


def is_mindspore_up(launched: Launched) -> bool:
    """Returns True if the user has initialised MindSpore's world on these processes."""
    return communication.GlobalComm.INITED and (
        communication.get_rank(), communication.get_group_size()) == (launched.rank, launched.size)


def meet_in_mindspore(launched: Launched, names: Sequence[str], timeout: float) -> tuple[Place, Group]:
    """Finds all processes of a run by MindSpore's AllGather, and connects this one to them; see hosts.meet_all.

    The secret of the run is drawn by rank 0 and goes as MindSpore sends it, unencrypted.

    Raises:
        LaunchError: a rank cannot be reached.
    """
    run = all_gather("a secret", secrets.token_bytes(32))[0]
    place = Place(run, own_address(), launched.node)
    return place, connect(place, "", all_gather, launched.rank, names, timeout)


def all_gather(what: str, data: bytes) -> list[bytes]:
    """Returns the data of each rank of MindSpore's world."""
    gather = cast(Callable[[ms.Tensor], ms.Tensor], ops.AllGather())  # whose annotations know no result
    lengths = gather(ms.Tensor([len(data)], ms.int32)).asnumpy()
    num_words = -(-int(lengths.max()) // WORD.itemsize)
    padded = np.frombuffer(data.ljust(num_words * WORD.itemsize, b"\0"), WORD)
    rows = gather(ms.Tensor(padded)).asnumpy().reshape(len(lengths), num_words)
    return [row.tobytes()[:length] for row, length in zip(rows, lengths.tolist(), strict=True)]


def own_address() -> str:
    """Returns this host's address on the route to MindSpore's scheduler, which all ranks reach."""
    host, port = os.environ.get("MS_SCHED_HOST", "127.0.0.1"), int(os.environ.get("MS_SCHED_PORT", "1"))
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as way:
        way.connect(address)  # sends nothing
        return str(way.getsockname()[0])
