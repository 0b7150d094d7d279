"""Ctrl-C ends the command with one line, wherever it is."""

import os
import subprocess
import sys

import pytest


@pytest.mark.slow
def test_ctrl_c_ends_a_command_that_uses_mindspore():
    code = """
import signal
import sys
import mindspore as ms
from hpmoe import cli
from hpmoe.commands import doctor

def run(_):
    ms.grad(lambda x: x + 1)(ms.Tensor([1.0])).asnumpy()
    signal.raise_signal(signal.SIGINT)

doctor.run = run
sys.exit(cli.main(["doctor"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (130, "hpmoe doctor: interrupted\n")


def command(tmp_path, code):
    """A process of these lines in a file named as the command is, with MindSpore's handler of Ctrl-C in place."""
    script = tmp_path / "hpmoe"
    script.write_text(f"""
import os, signal, sys, time
from hpmoe import cli
from hpmoe.commands import doctor
import mindspore as ms
ms.grad(lambda x: x + 1)(ms.Tensor([1.0])).asnumpy()
{code}
""")
    return subprocess.Popen([sys.executable, script], stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("program", [["hpmoe"], ["-m", "hpmoe", "doctor"]])
def test_ctrl_c_in_the_imports_of_the_command_is_one_line(tmp_path, monkeypatch, program):
    """MindSpore's import takes longest; a module that sends the signal replaces it."""
    (tmp_path / "hpmoe").write_text("import hpmoe")
    (tmp_path / "mindspore.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    done = subprocess.run([sys.executable, *program], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "hpmoe: interrupted\n")


@pytest.mark.slow
@pytest.mark.parametrize("code, text", [
    ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", "hpmoe: interrupted\n"),
    ("doctor.run = lambda _: (os.kill(os.getpid(), signal.SIGINT), time.sleep(30)); sys.exit(cli.main(['doctor']))",
     "hpmoe doctor: interrupted\n"),
])
def test_ctrl_c_is_never_mindspores_in_the_command(tmp_path, code, text):
    with command(tmp_path, code) as process:
        assert (process.communicate(timeout=120)[1], process.returncode) == (text, 130)
