"""A contest between ranks of two hosts that a cable joins: each rank runs this; see ranks_contest.

What it is given has also `node_size`, the ranks of a host, and `engine`, what carries messages between hosts.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

from ranks_contest import contest, leave_report

import hpmoe
from hpmoe.kernels.link import Link
from hpmoe.support.kept_files import Fields
from hpmoe.support.known import known


def carried(link: Link, run: Callable[[], object]) -> Fields:
    """What crosses while all ranks run: rows of this one to other hosts, their messages, and bytes of this host's cable."""
    link.meet("before a count", b"")
    then, cable = link.traffic, cable_bytes()
    run()
    link.meet("after a count", b"")  # by then other hosts have what was sent in the run
    sent = link.traffic
    return {"row_bytes": sent.row_bytes - then.row_bytes, "messages": sent.row_messages - then.row_messages,
            "cable_bytes": cable_bytes() - cable}


def cable_bytes() -> int:
    """What this host has sent over all interfaces but its own loopback."""
    lines = Path("/proc/self/net/dev").read_text(encoding="utf-8").splitlines()[2:]
    counts = {name.strip(): fields.split() for name, _, fields in (line.partition(":") for line in lines)}
    return sum(int(fields[8]) for name, fields in counts.items() if name != "lo")


def main() -> None:
    given = json.loads(sys.argv[1])
    mesh = hpmoe.world(node_size=given["node_size"], engine=given["engine"])
    link = cast(Link, known(mesh.link))
    report, sides = contest(link, mesh, given)
    counts = {side: {which: carried(link, run) for which, run in passes.items()} for side, passes in sides.items()}
    leave_report(link, given["folder"], {**report, "carried": counts})


if __name__ == "__main__":
    main()
