"""Ranks on two hosts, which are network namespaces here: the numbers of virtual ranks, and a cable that is cut."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import needs
import pytest
from namespaces import ADDRESSES, DEVICES, Hosts, NoHostsError
from running_time import now, running_clock

from hpmoe.ranks.link import ENGINES

FOLDER = Path(__file__).parent
pytestmark = pytest.mark.slow


@pytest.fixture(params=ENGINES)
def engine(request):
    if request.param == "ucx":
        needs.has_ucx()
    return request.param


@pytest.fixture
def hosts():
    try:
        hosts = Hosts()
    except NoHostsError as error:
        pytest.skip(str(error))
    with hosts:
        yield hosts


def start(hosts, folder, ranks, script, *args):
    """The launchers of both hosts; what each prints goes to a file of its number."""
    paths = [str(FOLDER.parent / "support"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "HPMOE_SECRET": "secret of this test", "PYTHONPATH": os.pathsep.join(paths)}
    launch = [sys.executable, "-m", "hpmoe", "launch", "-n", str(ranks), "--hosts=2", f"--rendezvous={ADDRESSES[0]}:29500"]
    launchers = []
    for host in range(2):
        with (folder / str(host)).open("w") as out:
            command = hosts.inside(host, [*launch, f"--host_rank={host}", str(script), *args])
            launchers.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=out, stderr=subprocess.STDOUT))
    return launchers


def said(folder):
    return (folder / "0").read_text() + (folder / "1").read_text()


def test_two_hosts_have_the_numbers_of_virtual_ranks(hosts, engine, tmp_path):
    launchers = start(hosts, tmp_path, 1, FOLDER.parent / "support" / "replayed_launches.py", "2", "failed", engine)
    assert [launcher.wait(150) for launcher in launchers] == [0, 0], said(tmp_path)
    assert said(tmp_path).count("20 kernels are equal") == 2 and said(tmp_path).count("goes on") == 2, said(tmp_path)


CUTS = {  # nothing comes through: in both directions, or in one
    "cut": lambda hosts: hosts.cut(),
    "one way": lambda hosts: hosts.call(1, "tc", "qdisc", "replace", "dev", DEVICES[1], "root", "pfifo", "limit", "0")}


@pytest.mark.parametrize("how, engine", [("cut", "tcp"), ("one way", "tcp"), ("one way", "ucx")], indirect=["engine"])
def test_a_cable_that_is_cut_ends_the_step_on_every_rank(hosts, engine, how, tmp_path, monkeypatch):
    """If the cable is back after a second, all ranks continue."""
    def steps():
        text = said(tmp_path)
        return [max(map(int, re.findall(rf"rank {rank} at step (\d+)$", text, re.M)), default=0) for rank in range(4)]

    def wait_for(step):
        while min(steps()) < step and now() < 150:
            time.sleep(0.05)
        assert min(steps()) >= step, said(tmp_path)

    with running_clock(monkeypatch):
        launchers = start(hosts, tmp_path, 2, FOLDER / "fault_script.py", "cut", engine)
        wait_for(4)
        hosts.cut()
        time.sleep(1)
        hosts.call(0, "ip", "link", "set", DEVICES[0], "up")
        wait_for(max(steps()) + 4)
        CUTS[how](hosts)
        cut = now()
        [launcher.wait(60) for launcher in launchers]
    told = re.findall(r"rank (\d) told (.*) (\d) (\S+)$", said(tmp_path), re.M)
    assert sorted(int(rank) for rank, *_ in told) == [0, 1, 2, 3], said(tmp_path)
    for rank, text, blamed, when in told:
        is_told = rf"rank {blamed} (was not heard of for 3\.|died during|failed: rank)"
        assert int(blamed) // 2 != int(rank) // 2 and re.search(is_told, text), text
        assert float(when) - cut < 5, (rank, float(when) - cut)
