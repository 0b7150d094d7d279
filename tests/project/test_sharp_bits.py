"""Claims of examples/sharp_bits.md that a session does not show: forks, threads, and a trace of calls."""

import subprocess
import sys
import threading

import mindspore as ms
import numpy as np
import pytest

import hpmoe

TO_KERNEL = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues, hpmoe.fuse_persistent)
X = ms.Tensor([[1.0, 2.0]])
GRADIENTS = """
import threading, mindspore as ms
def work():
    for _ in range(400):
        ms.grad(lambda x: (x * x).sum())(ms.Tensor([1.0, 2.0]))
threads = [threading.Thread(target=work) for _ in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
FORK = """
import multiprocessing, mindspore as ms
def double():
    return (ms.Tensor([1.0]) * 2).asnumpy()
double()
child = multiprocessing.get_context("fork").Process(target=double)
child.start()
child.join(timeout=2)
print("waits after 2 seconds:", child.is_alive())
child.kill()
"""


def test_mindspore_waits_forever_in_a_forked_process():
    run = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=120)
    assert run.stdout.strip() == "waits after 2 seconds: True"


@pytest.mark.slow
def test_gradients_of_several_threads_abort_mindspore():
    """About every second run aborts, so 20 runs without an abort mean that MindSpore has changed."""
    runs = (subprocess.run([sys.executable, "-c", GRADIENTS], capture_output=True, timeout=120) for _ in range(20))
    assert any(run.returncode for run in runs), "the page may drop its warning about threads"


def test_launches_of_several_threads_are_right():
    f, found = TO_KERNEL(lambda x: x * 2.0), []
    threads = [threading.Thread(target=lambda: found.extend(f(X).asnumpy() for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80 and all((a == [[2.0, 4.0]]).all() for a in found)


def test_side_effects_happen_during_the_trace():
    calls = []
    f = TO_KERNEL(lambda x: calls.append(x.shape) or x * 2.0)
    for x in (X, X, ms.Tensor(np.ones((3, 2), np.float32))):
        f(x)
    assert calls == [(1, 2), (3, 2)]


def test_draws_and_means_with_padding_raise():
    with pytest.raises(hpmoe.TraceError, match="a draw from numpy.random is not traceable"):
        TO_KERNEL(lambda x: x + np.random.rand(2))(X)
    mean = hpmoe.spmd(TO_KERNEL(lambda x: x.mean(0)), hpmoe.Mesh(ep=2))
    with pytest.raises(hpmoe.ArgumentError, match="takes a mean over tokens"):
        mean(ms.Tensor(np.ones((2, 4, 1), np.float32)), num_tokens=[4, 2])
