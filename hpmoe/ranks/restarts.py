"""Starting ranks again when one has failed, on all hosts together."""

from __future__ import annotations

import hashlib
import json
import socket
import sys
from collections.abc import Sequence

from hpmoe.ranks.points import NetPoint
from hpmoe.ranks.rendezvous import Meeting, meet
from hpmoe.ranks.starting import Hosts, Ranks, start_ranks

MEET_S = 300.0  # for the launchers of all hosts


def start_with_restarts(command: Sequence[str], num_ranks: int, hosts: Hosts, max_restarts: int) -> int:
    """Runs a command as `start_ranks` does. When a rank fails, ends the others and starts all again, on all hosts.

    The ranks of a host that have ended well are started again too. After `max_restarts` restarts the first cause of the last
    failure is printed, and the exit status is that of the rank that failed first. A signal to the launcher ends the run.

    Raises:
        LaunchError: the launcher of another host did not come, or has ended.
    """
    if max_restarts == 0:
        return start_ranks(command, num_ranks, hosts)
    launchers = _meet_launchers(hosts) if hosts.num_hosts > 1 else None
    for restart in range(1, max_restarts + 2):
        ranks = Ranks(command, num_ranks, hosts, end_together=True)
        status, (rank, cause) = ranks.wait(), ranks.first_cause()
        mine = {"status": status, "cause": cause, "is_own": ranks.has(rank), "is_interrupted": ranks.is_interrupted}
        ends = [mine] if launchers is None else [json.loads(told) for told in launchers.all_gather(
            f"the end of attempt {restart}", json.dumps(mine).encode())]
        failed = sorted((end for end in ends if end["status"]), key=lambda end: not end["is_own"])
        if not failed or any(end["is_interrupted"] for end in ends):
            return status
        what = f"restart {restart} of {max_restarts}" if restart <= max_restarts else "no restart is left"
        print(f"hpmoe launch: {failed[0]['cause'].rstrip('.')}; {what}", file=sys.stderr, flush=True)
    return status or int(failed[0]["status"])


def _meet_launchers(hosts: Hosts) -> Meeting:
    """Returns connections of the launchers of all hosts, by which they agree how an attempt has ended."""
    run = hashlib.sha256(f"launchers\0{hosts.secret}".encode()).digest()
    names = [f"the launcher of host {host}" for host in range(hosts.num_hosts)]
    meeting = meet(NetPoint(run, hosts.rendezvous), hosts.host_rank, names, MEET_S)
    meeting.timeout = float("inf")
    for connection in meeting.connections:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a host may go without a word
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    return meeting
