"""Launches survive other threads, signal handlers, forks, and stops of the process."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from helpers import Layer, assert_close, numpy_moe_ffn, stages, tensors

import hpmoe
from hpmoe import Mesh, spmd
from hpmoe.kernels.cpu.target import CPU

LAYER = Layer(ep=2, T=500, H=64, I=32, E=4, K=2)
ARGS = LAYER.arguments()
INPUTS = [[a[rank] for a in ARGS] for rank in range(2)]


@pytest.fixture(scope="module")
def kernel():
    flow = spmd(stages(rows=64, cols=32)["queues"](hpmoe.moe_ffn), Mesh(2)).lower(*tensors(ARGS))
    return CPU.compile([flow], 10.0)


def outputs(kernel):
    return np.stack([out[0] for out in kernel.run(INPUTS)])


class Child:
    """A forked process that runs a function, and leaves with 0 where it returns True."""

    def __init__(self, function):
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os._exit(0 if function() else 1)
            finally:
                os._exit(2)

    def status(self, seconds=20):
        """Its exit status, once it has left; an error where it does not."""
        for _ in range(100 * seconds):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.01)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        raise AssertionError("it hangs")


def test_a_process_forked_amid_launches_can_launch(kernel):
    want = outputs(kernel)
    assert_close([want], [numpy_moe_ffn(ARGS, LAYER.cotangent())[0]])
    stop = threading.Event()

    def go_on():
        while not stop.is_set():
            outputs(kernel)

    threads = [threading.Thread(target=go_on) for _ in range(2)]
    [t.start() for t in threads]
    try:
        for i in range(4):
            time.sleep(0.003 * i)
            assert Child(lambda: (outputs(kernel) == want).all()).status() == 0
    finally:
        stop.set()
        [t.join() for t in threads]
    assert (outputs(kernel) == want).all()


def test_ctrl_c_reaches_a_process_forked_amid_a_launch(kernel):
    """Launches of the main thread count Ctrl-C; the forked process has no launches."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a graph that was compiled left one of MindSpore's
    children = []
    thread = threading.Thread(target=lambda: [children.append(Child(lambda: signal.raise_signal(signal.SIGINT)))
                                              for _ in range(6)])
    thread.start()
    while thread.is_alive():
        outputs(kernel)
    assert [child.status() for child in children] == [2] * 6  # KeyboardInterrupt, in the one thread it has


def num_threads():
    return len(os.listdir("/proc/self/task"))


def test_launches_share_their_helpers(kernel):
    """One after the other or side by side: of the threads that serve them no more stay than there are cores."""
    kernels = [CPU.compile([kernel.flow], 10.0) for _ in range(4)]
    outputs(kernels[0])
    before, threads = num_threads(), [threading.Thread(target=lambda k=k: [outputs(k) for _ in range(10)]) for k in kernels]
    [t.start() for t in threads]
    [t.join() for t in threads]
    [outputs(kernels[0]) for _ in range(20)]
    assert num_threads() <= before + os.cpu_count()


def test_signals_are_for_the_threads_of_the_program(kernel):
    def pending():
        outputs(kernel)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(3))
        os.kill(os.getpid(), signal.SIGUSR1)  # whatever thread does not block it would take it
        outputs(kernel)
        return signal.SIGUSR1 in signal.sigpending()

    assert Child(pending).status() == 0


def test_a_handler_of_a_signal_may_launch_amid_a_launch(kernel):
    want = outputs(kernel)

    def interrupted():
        seen = []

        def handler(*_):
            signal.setitimer(signal.ITIMER_REAL, 0)
            seen.append((outputs(kernel) == want).all())
            signal.setitimer(signal.ITIMER_REAL, 0.001)

        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        while len(seen) < 30:
            seen.append((outputs(kernel) == want).all())
        return all(seen)

    assert Child(interrupted).status() == 0


def test_time_in_which_a_process_is_stopped_is_not_waiting():
    """One of these tasks can run at a time, and the other workers wait."""
    args = Layer(ep=1, T=400, H=256, I=256, E=1, K=1).arguments()
    flow = spmd(stages(rows=1024, cols=1024)["queues"](hpmoe.moe_ffn), Mesh(1)).lower(*tensors(args))
    soon, inputs = 0.5, [[a[0] for a in args]]
    kernel, until = CPU.compile([flow], soon), time.monotonic() + 4 * soon

    def go_on():
        while time.monotonic() < until:
            kernel.run(inputs)
        return True

    child = Child(go_on)
    for _ in range(2):
        time.sleep(0.1)
        os.kill(child.pid, signal.SIGSTOP)
        time.sleep(2 * soon)
        os.kill(child.pid, signal.SIGCONT)
    assert child.status() == 0


def test_a_pool_that_is_being_asked_gives_new_memory():
    pool = hpmoe.kernels.memory.Pool()
    first = pool.empty((4, 4), np.float32)
    with pool._lock:
        second = pool.empty((4, 4), np.float32)
    assert not np.may_share_memory(first, second) and second.ctypes.data % hpmoe.kernels.memory.ALIGNMENT == 0
    assert pool.peak_bytes == 4 * 4 * 4 + hpmoe.kernels.memory.ALIGNMENT
