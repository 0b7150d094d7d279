"""The Ascend kernel on its emulator, each rank in a process of its own: the bits of one process, and what survivors hear."""

import re
from pathlib import Path

import pytest
from forked import start_forked
from running_time import running_clock

pytestmark = pytest.mark.slow  # ten seconds each; test_world.py has two such processes among its other cases
SCRIPT = str(Path(__file__).parent / "emulator_script.py")


@pytest.fixture
def launch(tmp_path, monkeypatch):
    """The exit status and what each rank has told, line by line."""
    monkeypatch.chdir(tmp_path)

    def launched(size, what):
        status, out, _ = start_forked([SCRIPT, what], size)
        lines = [line for line in out.splitlines() if "WARNING" not in line]
        return status, [[line for line in lines if line.startswith(f"rank {rank} ")] for rank in range(size)], lines

    with running_clock(monkeypatch):
        yield launched


def test_a_failure_reaches_all_ranks_and_the_next_is_exact(launch):
    status, of_ranks, lines = launch(2, "failing")
    assert status == 0, lines
    for faulty, stuck, done in of_ranks:
        assert re.search(r"told moe_ffn: rank 0 failed: the kernel breaks a rule of the hardware \(seed \d+\): rank", faulty)
        assert re.search(r"rank \d, queue \d+, task \d+ \(.*\) waited too long: event \d+ stands at 0, its", stuck)
        assert done.endswith("has the bits of one process")


def test_a_rank_that_is_killed_is_named_by_all_in_time(launch):
    status, (first, _, last), lines = launch(3, "killed")
    died = float(next(line for line in lines if line.startswith("at ")).split()[1])
    assert status == 137, lines
    for (line,) in (first, last):
        assert "rank 1 was killed by SIGKILL during" in line and float(line.split()[-1]) - died < 2
