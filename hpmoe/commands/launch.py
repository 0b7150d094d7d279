"""hpmoe launch: starts a script as several ranks, on this computer or on several."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

from absl import flags

from hpmoe.commands import options
from hpmoe.ranks.launchers import SECRET
from hpmoe.ranks.restarts import start_with_restarts
from hpmoe.ranks.starting import Hosts

SUMMARY = "starts a script as several ranks, each a process: hpmoe launch -n 4 script.py its arguments"
NOTES = """\
What follows the script is passed on to it. Each rank has its own number in RANK, LOCAL_RANK and RANK_ID, and how many
there are in WORLD_SIZE; hpmoe.world() reads them. Folder and environment are this process's, cores are divided.

On several computers it is called on each, with the same HPMOE_SECRET in the environment, as of openssl rand -hex 32:
hpmoe launch -n 4 --hosts=2 --host_rank=0 --rendezvous=ADDRESS:PORT script.py,
with the address of the one of host_rank 0.

If a rank fails, a line on stderr says how. The others go on: they raise an error where they need that rank. Ctrl-C
and SIGTERM reach all. Exits with the status of the first rank that failed, 128 and its number after a signal.

With --max_restarts=N, the same on every computer, the other ranks are ended when one fails, and all are started again,
N times at most. The script goes on from hpmoe.nn.latest_shards(folder)."""


def define(values: flags.FlagValues) -> None:
    options.define_integer(values, "ranks", None, "how many; -n says it shorter", short_name="n")
    options.define_integer(values, "hosts", 1, "computers that start as many ranks")
    options.define_integer(values, "host_rank", 0, "which of them this one is", least=0)
    flags.DEFINE_string("rendezvous", "", "host:port at which rank 0 listens, with several computers", flag_values=values)
    options.define_integer(values, "max_restarts", 0, "how often all ranks are started again when one fails", least=0)
    options.define_integer(values, "node_size", None, "neighbouring ranks that share memory, the others as if elsewhere")


def run(o: flags.FlagValues, script: Sequence[str]) -> int:
    """Runs `hpmoe launch`; `script` is a file and its arguments, the words after the flags."""
    options.check_flag(o.ranks is not None, "ranks", None, "a number of ranks, as in hpmoe launch -n 4 "
                       + (script[0] if script else "script.py"))
    if not script or not os.path.isfile(script[0]):
        found = f"script {script[0]!r}: it is not a file" if script else "the script is not given"
        raise options.UsageError(f"{found}; expected a file after the flags, as in hpmoe launch -n {o.ranks} script.py")
    status = start_with_restarts([sys.executable, *script], o.ranks, _hosts(o), o.max_restarts)
    if o.json:
        print(json.dumps({"status": status}))
    return status


def _hosts(o: flags.FlagValues) -> Hosts:
    secret = os.environ.get(SECRET, "") if o.hosts > 1 else ""
    options.check_flag(o.host_rank < o.hosts, "host_rank", o.host_rank, f"below {o.hosts}, the number of hosts")
    host, _, port = o.rendezvous.rpartition(":")
    is_address = bool(host) and port.isdecimal() and 0 < int(port) < 65536
    options.check_flag(is_address if o.hosts > 1 or o.rendezvous else True, "rendezvous", o.rendezvous,
                       "an address and a port that rank 0 can listen at, such as 10.0.0.1:29500")
    options.check_flag(o.hosts == 1 or len(secret) >= 16, "hosts", o.hosts,
                       f"with {SECRET} in the environment, 16 characters or more and the same on all of them")
    return Hosts(o.hosts, o.host_rank, o.rendezvous, secret, o.node_size)
