"""The launcher copies the output of ranks in whole lines, and copies a prompt, which has no newline, after a moment."""

import os
import sys
import threading

import pytest

from hpmoe.ranks.starting import start_ranks
from hpmoe.ranks.whole_lines import WholeLines

WRITE = """
import os, sys
for i in range(500):
    for piece in (os.environ["RANK"], "a" * 50, str(i), "\\n"):
        os.write(1 + i % 2, piece.encode())
"""


def test_lines_of_ranks_do_not_run_together(tmp_path, capfd):
    script = tmp_path / "script.py"
    script.write_text(WRITE)
    assert start_ranks([sys.executable, "-S", str(script)], 3) == 0
    lines = sorted("".join(capfd.readouterr()).splitlines())
    assert lines == sorted(f"{rank}{'a' * 50}{i}" for rank in range(3) for i in range(500))


@pytest.fixture
def written():
    """Copies of what is written to pipes, in the order of copies: (the pipe's write end, read what was copied)."""
    source, to = os.pipe()
    lines = WholeLines()
    yield lines, to, lambda: os.read(source, 1 << 20).decode()
    lines.close()
    [os.close(each) for each in (source, to)]


def test_a_prompt_comes_out_and_another_rank_begins_a_line(written):
    lines, to, read = written
    one, other = lines.pipe(to), lines.pipe(to)
    os.write(one, b"how many? ")
    assert read() == "how many? "
    os.write(other, b"a line\n")
    assert read() == "\na line\n"
    os.write(one, b"the rest\n")
    assert read() == "the rest\n"
    [os.close(each) for each in (one, other)]


def test_a_last_line_without_an_end_is_copied(written):
    lines, to, read = written
    end = lines.pipe(to)
    os.write(end, b"first\nlast")
    os.close(end)
    lines.close()
    assert read() == "first\nlast"


def test_a_reader_that_is_gone_is_noticed_by_the_writer(written):
    lines, _, _ = written
    source, to = os.pipe()
    os.close(source)
    end, has_failed = lines.pipe(to), threading.Event()
    with pytest.raises(BrokenPipeError):
        while not has_failed.wait(0.01):
            os.write(end, b"a line\n")
    [os.close(each) for each in (end, to)]
