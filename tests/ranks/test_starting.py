"""hpmoe launch: what ranks are given, how they end, and that none is left."""

import json
import os
import signal
import sys
import threading
import time

import pytest
from command_line import run

from hpmoe.ranks.starting import Ranks, divided, start_ranks

PRINT = """
import json, os, sys
names = ("RANK", "LOCAL_RANK", "RANK_ID", "WORLD_SIZE", "MARK")
told = {name: os.environ.get(name) for name in names}
with open(f"{sys.argv[1]}/{told['RANK']}", "w") as file:
    json.dump([told, sys.argv[2:], os.getcwd(), sorted(os.sched_getaffinity(0)), os.environ["HPMOE_SECRET"]], file)
"""
FAIL = """
import os, sys, time
if os.environ["RANK"] == "1":
    {fail}
time.sleep(0.3)
open(sys.argv[1], "a").write(os.environ["RANK"])
"""
WAIT = """
import os, signal, sys, time
BEGIN
open(f"{sys.argv[1]}/{os.environ['RANK']}", "w").write(str(os.getpid()))
time.sleep(300)
"""


@pytest.fixture
def script(tmp_path):
    def written(text):
        path = tmp_path / "script.py"
        path.write_text(text)
        return [sys.executable, "-S", str(path)]
    return written


def test_each_rank_is_told_who_it_is_and_given_all_else(script, tmp_path, monkeypatch):
    monkeypatch.setenv("MARK", "x")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RANK", "7")
    assert start_ranks([*script(PRINT), str(tmp_path), "-n", "3"], 3) == 0
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    for rank, (names, args, folder, _, _) in enumerate(told):
        assert names == {"RANK": str(rank), "LOCAL_RANK": str(rank), "RANK_ID": str(rank), "WORLD_SIZE": "3", "MARK": "x"}
        assert (args, folder) == (["-n", "3"], str(tmp_path))
    cores = sorted(os.sched_getaffinity(0))
    assert [set(mine) for _, _, _, mine, _ in told] == divided(cores, 3)
    assert len({secret for *_, secret in told}) == 1 and len(told[0][-1]) == 64


def test_cores_are_divided_whole_and_shared_where_they_are_few():
    for num_cores in range(1, 12):
        for num_ranks in range(1, 12):
            shares = divided(range(num_cores), num_ranks)
            assert len(shares) == num_ranks and set().union(*shares) == set(range(num_cores))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1
            assert num_cores < num_ranks or sum(map(len, shares)) == num_cores


@pytest.mark.parametrize("fail, how, status", [
    ("sys.exit(3)", "rank 1 ended with status 3", 3),
    ("os.kill(os.getpid(), 9)", "rank 1 was killed by SIGKILL", 137),
    ("raise ValueError('no')", "rank 1 ended with status 1", 1),
])
def test_others_go_on_where_a_rank_fails(script, tmp_path, capfd, fail, how, status):
    assert start_ranks([*script(FAIL.format(fail=fail)), str(tmp_path / "ended")], 3) == status
    assert set((tmp_path / "ended").read_text()) == {"0", "2"}
    assert f"hpmoe launch: {how}\n" in capfd.readouterr().err


def pids(folder, size):
    """The numbers of the processes, once all run."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = [p.read_text() for p in folder.glob("[0-9]")]
        if len(found) == size and all(found):
            return [int(pid) for pid in found]
        time.sleep(0.01)
    raise AssertionError("they do not start")


def is_there(pid):
    """Returns True if a process runs; a zombie does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.parametrize("numbers, begin, status", [
    ((signal.SIGINT,), "", 130),
    ((signal.SIGTERM,), "", 143),
    ((signal.SIGINT,) * 3, "signal.signal(signal.SIGINT, signal.SIG_IGN)", 137),
])
def test_a_signal_reaches_all_ranks(script, tmp_path, capfd, numbers, begin, status):
    before = signal.getsignal(signal.SIGINT)

    def send():
        pids(tmp_path, 2)
        while signal.getsignal(numbers[0]) != ranks._pass_on:
            time.sleep(0.01)
        for i, number in enumerate(numbers):
            while ranks._interrupts < i:  # several at once are one
                time.sleep(0.01)
            os.kill(os.getpid(), number)

    begin = begin or "signal.signal(signal.SIGINT, signal.default_int_handler)"  # of whoever runs tests in the background
    command = [*script(WAIT.replace("BEGIN", begin)), str(tmp_path)]
    ranks = Ranks(command, 2)
    threading.Thread(target=send).start()
    assert ranks.wait() == status and not any(map(is_there, pids(tmp_path, 2)))
    assert capfd.readouterr().err.count("hpmoe launch: rank") == 2
    assert signal.getsignal(signal.SIGINT) is before


def test_no_rank_outlives_a_launcher_that_is_killed(script, tmp_path):
    command = [*script(WAIT.replace("BEGIN", "")), str(tmp_path)]
    launcher = os.fork()
    if launcher == 0:
        start_ranks(command, 2)
        os._exit(0)
    started = pids(tmp_path, 2)
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    until = time.monotonic() + 60
    while any(map(is_there, started)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_there, started))


def test_the_command_takes_only_flags_before_the_script(script, tmp_path, capfd):
    path = script(PRINT)[-1]
    assert run(capfd, "launch", "-n", "1", path, str(tmp_path), "--json", "-n")[0] == 0
    assert json.loads((tmp_path / "0").read_text())[1] == ["--json", "-n"]
    assert run(capfd, "launch", "--ranks=1", "no/such.py")[::2] == (
        2, "hpmoe launch: script 'no/such.py': it is not a file; expected a file after the flags, as in hpmoe launch -n 1 "
           "script.py. See hpmoe launch --help.\n")


def test_one_process_is_a_run_too(script, tmp_path):
    ranks = Ranks([*script(FAIL.format(fail="pass")), str(tmp_path / "ended")], 1)
    assert ranks.wait() == 0 and (tmp_path / "ended").read_text() == "0"


def test_several_hosts_number_their_ranks_one_after_the_other(script, tmp_path, capfd, monkeypatch):
    path = script(PRINT)[-1]
    more = ["--hosts=2", "--host_rank=1", "--rendezvous=127.0.0.1:29500"]
    code, _, err = run(capfd, "launch", "-n", "2", *more, path, str(tmp_path))
    assert code == 2 and "flag --hosts=2: it must be with HPMOE_SECRET in the environment, 16 characters or more" in err
    monkeypatch.setenv("HPMOE_SECRET", "0123456789abcdef")
    assert run(capfd, "launch", "-n", "2", *more, path, str(tmp_path))[0] == 0
    told = [json.loads((tmp_path / str(rank)).read_text()) for rank in (2, 3)]
    assert [t[0]["LOCAL_RANK"] for t in told] == ["0", "1"] and {t[0]["WORLD_SIZE"] for t in told} == {"4"}
    assert {t[4] for t in told} == {"0123456789abcdef"}
    for flags, words in ((("--hosts=2", "--host_rank=2"), "flag --host_rank=2: it must be below 2, the number of hosts"),
                         (("--hosts=2", "--rendezvous=here"), "flag --rendezvous=here: it must be an address and a port")):
        code, _, err = run(capfd, "launch", "-n", "2", *flags, path)
        assert code == 2 and words in err
