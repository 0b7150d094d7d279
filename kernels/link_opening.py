"""Opens the native part of a Link: all ranks agree on versions and engine, then each maps the heaps of its host."""

from __future__ import annotations

import ast
import ctypes
import os

from hpmoe.kernels.link_native import NativeLink
from hpmoe.kernels.native import ABI_VERSION, Hosts, find_ucx, load, ucx_fault
from hpmoe.kernels.protocol import VERSION
from hpmoe.ranks.hosts import Group
from hpmoe.ranks.rendezvous import failed
from hpmoe.support.errors import LaunchError


def cores_of_ranks(group: Group, engine: str) -> list[list[int]]:
    """Returns the cores that each rank may run on.

    Raises:
        LaunchError: a rank has another version of the kernels or another engine, or the engine does not work on it.
    """
    fault = ucx_fault() if engine == "ucx" and any(group.sockets) else ""
    own = (ABI_VERSION, VERSION), sorted(os.sched_getaffinity(0)), (engine, fault)
    ranks = [ast.literal_eval(data.decode()) for data in group.all_gather("a heap", repr(own).encode())]
    for rank, (version, _, (other_engine, problem)) in enumerate(ranks):
        name = group.members[rank].name
        if version != own[0]:
            raise failed(f"{name} has another version of hpmoe's kernels", rank)
        if problem:
            raise failed(f"hpmoe.world: engine=\"ucx\" does not work on {name}: {problem}", rank)
        if other_engine != engine:
            raise failed(f"hpmoe.world: {name} passes engine=\"{other_engine}\" and this rank engine=\"{engine}\"; pass "
                         "the same engine on all ranks", rank)
    return [cores for _, cores, _ in ranks]


def open_native(group: Group, engine: str, heap_bytes: int, message_bytes: int) -> NativeLink:
    """Allocates this rank's heap, maps the heaps of its host, and connects to ranks of other hosts.

    The native link owns the sockets of `group` from then on.

    Raises:
        LaunchError: a rank cannot allocate or map the memory.
    """
    file = load().hpmoe_heap_make(heap_bytes)
    if file < 0:
        raise LaunchError(f"hpmoe.world: no memory for processes to share: {os.strerror(-file)}")
    files = group.share(file)
    os.close(file)
    pidfds = [member.pidfd for member in group.members]
    arrays = [_int32s(each) for each in (files, [member.pid for member in group.members], pidfds)]
    handle = load().hpmoe_link_open(group.rank, group.size, *arrays, _hosts(group, engine, message_bytes))
    native = NativeLink(handle, [each for each in (files.pop(group.rank), *pidfds) if each >= 0])
    for each in files:  # mapped heaps; -1 for ranks of other hosts
        if each >= 0:
            os.close(each)
    for rank, is_open in enumerate(group.all_gather("a map of the heaps", b"1" if handle else b"")):
        if not is_open:
            native.close()
            raise failed(f"{group.members[rank].name} has no address space for the memory that processes share", rank)
    return native


def _hosts(group: Group, engine: str, message_bytes: int) -> Hosts | None:
    """Returns the connections to ranks of other hosts, which `group` gives up; None if all ranks are on one host."""
    if not any(group.sockets):
        return None
    sockets = [-1 if each is None else each.detach() for each in group.sockets]
    ucx = str(find_ucx()).encode() if engine == "ucx" else None
    return Hosts(_int32s(sockets), group.secret, message_bytes, ucx)


def _int32s(values: list[int]) -> ctypes.Array[ctypes.c_int32]:
    return (ctypes.c_int32 * len(values))(*values)
