"""The launcher, and ranks that come late, name the rank that failed first."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from forked import start_forked

from hpmoe.ranks.starting import Hosts, free_address

FOLDER = Path(__file__).parent


@pytest.mark.parametrize("ends, late", [(2, 1), (0, 1)])
def test_a_late_rank_hears_of_the_rank_that_ended_first(ends, late):
    status, out, err = start_forked([FOLDER / "late_script.py", ends, late], 3)
    told = [line for line in out.splitlines() if " told " in line]
    text = f"rank {ends} ended with status 3 before it came to hpmoe.world()."
    assert sorted(told) == [f"rank {rank} told {text} {ends}" for rank in range(3) if rank != ends], out + err
    assert status == 3 and err.count(f"ended with status 1, as {text}") == 2, err


def test_ranks_of_declared_hosts_hear_it_too():
    status, out, err = start_forked([FOLDER / "late_script.py", 2, 1], 3, Hosts(node_size=1))
    assert status == 3 and out.count("told rank 2 ended with status 3 before it came to hpmoe.world(). 2") == 2, out + err


def test_a_taken_port_is_said_by_all_ranks(tmp_path):
    address = free_address()
    with socket.create_server(("127.0.0.1", int(address.rpartition(":")[2]))):
        hosts = Hosts(1, 0, address, "0123456789abcdef")
        status, out, err = start_forked([FOLDER / "late_script.py", 9, 1], 2, hosts)
    assert status == 1 and out.count(f"told rank 0 cannot listen at {address}: Address already in use") == 2, out + err


def test_variables_of_an_ended_launch_are_an_error(tmp_path):
    told = {**os.environ, "RANK": "1", "WORLD_SIZE": "2", "HPMOE_LAUNCHER": "00" * 16, "HPMOE_SECRET": "x" * 16}
    done = subprocess.run([sys.executable, "-c", "import hpmoe; hpmoe.world()"], env=told, capture_output=True, text=True)
    said = "hpmoe.world: RANK, WORLD_SIZE and HPMOE_LAUNCHER are those of a run of hpmoe launch that has ended: unset " \
           "them, or start the script again."
    assert done.stderr.strip().endswith(f"LaunchError: {said}"), done.stderr
