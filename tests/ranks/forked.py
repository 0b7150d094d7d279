"""Scripts as several ranks, which start_ranks starts from forks of one process that has imported MindSpore for all of them.

A process of its own for each rank takes two seconds more. How processes begin and end is tested of such ones.
"""

import atexit
import ctypes
import dataclasses
import functools
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

from hpmoe.ranks import restarts, starting, world


def start_forked(command, size, hosts=starting.ONE_HOST, max_restarts=0):
    """Returns the exit status, stdout and stderr of `size` ranks of the script that `command` begins with."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = (Path(folder, name) for name in ("out", "err"))
        wanted = [[*map(str, command)], size, dataclasses.asdict(hosts), max_restarts, os.getcwd(), {**os.environ}, str(out),
                  str(err)]
        print(json.dumps(wanted), file=_server().stdin, flush=True)
        return int(_server().stdout.readline()), out.read_text(), err.read_text()


@functools.cache
def _server():
    return subprocess.Popen([sys.executable, __file__], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def _serve():
    """Starts what is wanted, line by line, and says how each ended."""
    _end_with_parent()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _exit_after(_start, *json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _start(command, size, hosts, max_restarts, folder, environment, *streams):
    _end_with_parent()
    os.chdir(folder)
    for number, path in enumerate(streams, 1):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    _be_in(environment)
    starting.subprocess.Popen = Fork
    sys.exit(restarts.start_with_restarts(command, size, starting.Hosts(**hosts), max_restarts))


class Fork:
    """Stand-in for subprocess.Popen in start_ranks: a script in a fork of this process."""

    def __init__(self, command, env, stdin, stdout, stderr, preexec_fn):
        self.returncode = None
        self.pid = os.fork()
        if self.pid == 0:
            os.dup2(stdout, 1)
            os.dup2(stderr, 2)
            os.close(stdout)
            os.close(stderr)
            _exit_after(_run, command, env, stdin, preexec_fn)

    def wait(self, options=0):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def poll(self):
        return self.wait(os.WNOHANG)


def _run(command, environment, stdin, prepare):
    prepare()
    if stdin == subprocess.DEVNULL:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _be_in(environment)
    world._process.pid = os.getpid()  # it is the one that the launcher has started
    sys.argv = command
    sys.path[:0] = [os.path.dirname(command[0]), *environment.get("PYTHONPATH", "").split(":")]
    runpy.run_path(command[0], run_name="__main__")


def _be_in(environment):
    os.environ.clear()
    os.environ.update(environment)


def _end_with_parent():
    ctypes.CDLL(None).prctl(starting.PR_SET_PDEATHSIG, signal.SIGKILL)


def _exit_after(function, *args):
    """Calls it and ends this process as the interpreter would."""
    status = 0
    try:
        function(*args)
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(status)


if __name__ == "__main__":
    _serve()
