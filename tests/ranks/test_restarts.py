"""hpmoe launch --max_restarts: runs with kills at random moments end with the bits of an undisturbed one."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from forked import start_forked

from hpmoe.ranks.starting import Hosts, free_address

FOLDER = Path(__file__).parent
SCRIPT = FOLDER / "restarted_script.py"


def hashes(text):
    return re.findall(r"^rank (\d) began at (\d+) and has (\w+)$", text, re.M)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    status, out, err = start_forked([SCRIPT, tmp_path_factory.mktemp("undisturbed")], 2)
    assert status == 0 and len(hashes(out)) == 2, out + err
    return {rank: found for rank, _, found in hashes(out)}


@pytest.mark.slow
@pytest.mark.parametrize("node_size", [None, 1])
@pytest.mark.parametrize("first", [0, 5])
def test_a_killed_run_ends_with_the_bits_of_an_undisturbed_one(undisturbed, tmp_path, first, node_size):
    """Five kills of one run: those with a seed that 4 divides come in the midst of a write."""
    for seed in range(first, first + 5):
        (tmp_path / f"kill_{seed}_rank_{seed % 2}").touch()
    status, out, err = start_forked([SCRIPT, tmp_path], 2, Hosts(node_size=node_size), 10)
    assert status == 0 and {rank: found for rank, _, found in hashes(out)} == undisturbed, out + err
    assert not [*tmp_path.glob("kill_*")] and not [*tmp_path.rglob(".*")], err
    restarts = re.findall(r"^hpmoe launch: rank \d was killed by SIGKILL; restart (\d+) of 10$", err, re.M)
    assert restarts == ["1", "2", "3", "4", "5"], err


@pytest.mark.slow
def test_the_launchers_of_two_hosts_restart_together(undisturbed, tmp_path, monkeypatch):
    """Each launcher starts a rank, as on two hosts of its own."""
    for seed in range(10, 14):
        (tmp_path / f"kill_{seed}_rank_{seed % 2}").touch()
    monkeypatch.setenv("HPMOE_SECRET", "0123456789abcdef")
    address = free_address()
    launchers = []
    for host in range(2):
        monkeypatch.setenv("HPMOE_NODE", str(host))
        command = [sys.executable, "-m", "hpmoe", "launch", "-n", "1", "--hosts=2", f"--host_rank={host}",
                   f"--rendezvous={address}", "--max_restarts=10", str(SCRIPT), str(tmp_path)]
        launchers.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    ended = [(*launcher.communicate(timeout=200), launcher.returncode) for launcher in launchers]
    assert [status for *_, status in ended] == [0, 0], ended
    assert {rank: found for out, *_ in ended for rank, _, found in hashes(out)} == undisturbed, ended
    told = [re.findall(r"^hpmoe launch: (.*); (restart \d) of 10$", err, re.M) for _, err, _ in ended]
    assert told[0] == told[1] and len(told[0]) == 4 and all("was killed by SIGKILL" in how for how, _ in told[0]), told


@pytest.mark.parametrize("size, ends", [(3, 1), (2, 0)])
def test_after_all_restarts_the_first_cause_is_the_error(size, ends):
    status, out, err = start_forked([FOLDER / "late_script.py", ends, 1 - ends], size, max_restarts=2)
    told = re.findall(r"^hpmoe launch: (rank \d .*; .*)$", err, re.M)
    assert (status, told) == (3, [f"rank {ends} ended with status 3; {what}" for what in (
        "restart 1 of 2", "restart 2 of 2", "no restart is left")]), err
    assert err.count(f"hpmoe launch: rank {ends} ended with status 3\n") == 3, err


def test_a_run_that_ends_well_is_not_restarted():
    status, out, err = start_forked([FOLDER / "late_script.py", 9, 1], 2, max_restarts=3)
    assert (status, err.count("restart")) == (0, 0), err
