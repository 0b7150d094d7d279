"""Faults planted in whole layers: each ends in an error that says where, within the timeout, and the next call works."""

import ctypes
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_close, fused, numpy_moe_ffn, stages, tensors
from mutants import with_deps

import hpmoe
from hpmoe import LaunchError, Mesh, TransformError, spmd
from hpmoe.kernels.cpu.target import CPU

LAYER = Layer(ep=2, T=7, H=6, I=4, E=4, K=2)
SOON = 0.3  # seconds


def plan(direction="forward", **options):
    args = LAYER.arguments()
    return spmd(stages(**options)["queues"](hpmoe.moe_ffn), Mesh(2)).lower(*tensors(args), direction=direction), args


def launch(flow, args, timeout=60.0):
    position = [0, 1, 2, 3, 4]
    return CPU.compile([flow], timeout).run([[args[i][rank] for i in position] for rank in range(2)])


def assert_still_works(flow, args):
    """The plan as it was gives the right result, also after a broken one failed."""
    want, _ = numpy_moe_ffn(args, LAYER.cotangent())
    assert_close([np.stack([out[0] for out in launch(flow, args)])], [want])


def lost_signal(flow):
    return with_deps(flow, signals=np.delete(flow.deps.signals, np.flatnonzero(flow.deps.signals["remote"] == 0)[0]))


def lost_remote_signal(flow):
    signals = flow.deps.signals
    remote = signals["remote"] != 0
    about = signals["event"] == signals["event"][remote][0]  # whoever has rows for that slot
    return with_deps(flow, signals=signals[~(remote & about)])


def threshold_too_high(flow):
    events = flow.deps.events.copy()
    events["mult"][int(flow.deps.waits["event"][0])] += 1
    return with_deps(flow, events=events)


def worker_that_stops(flow):
    first, *others = flow.queues
    return flow.replace(queues=(first[:len(first) // 3], *others))


def waits_for_each_other(flow):
    return flow.replace(queues=tuple(q[::-1] for q in flow.queues))


@pytest.mark.parametrize("fault", [lost_signal, lost_remote_signal, threshold_too_high, worker_that_stops,
                                   waits_for_each_other])
def test_a_stuck_launch_names_task_and_event(fault):
    flow, args = plan()
    with pytest.raises(LaunchError) as error:
        launch(fault(flow), args, SOON)
    text = str(error.value)
    assert text.startswith("moe_ffn: rank ") and "waited too long: event " in text, text
    assert "\n  task t" in text and "\n  event " in text and " is !" in text, text
    assert_still_works(flow, args)


def test_a_threshold_that_is_too_low_is_noticed():
    flow, args = plan()
    events = flow.deps.events.copy()
    events["mult"][events["mult"] > 1] -= 1
    assert (events["mult"] != flow.deps.events["mult"]).any()
    with pytest.raises(LaunchError, match="every worker has left, but event .* received .* where its threshold is"):
        launch(with_deps(flow, events=events), args)
    assert_still_works(flow, args)


def raises(*args):
    raise RuntimeError("no idea")


@pytest.mark.parametrize("build, call, returns", [
    (lambda: stages(policy=raises)["fused"], "assign_queues: policy(taskflow, machine)", "the task numbers of each queue"),
    (lambda: stages(order=raises)["fused"], "overlap_comm: order(rank, ep_size)", "the ranks to send to, each once"),
    (lambda: hpmoe.chain(hpmoe.save_for_backward(policy=raises), fused()),
     "save_for_backward: policy(equation)", "True or False")])
def test_an_exception_in_a_users_function_names_it(build, call, returns):
    args = tensors(LAYER.arguments())
    with pytest.raises(TransformError) as error:
        spmd(build()(hpmoe.moe_ffn), Mesh(2))(*args)
    where = re.escape(f"{call} is raises (test_faults.py:") + r"\d+\)"
    assert re.fullmatch(where + f", which raised RuntimeError: no idea; it must return {returns}\\.", str(error.value))
    assert isinstance(error.value.__cause__, RuntimeError)
    spmd(fused()(hpmoe.moe_ffn), Mesh(2))(*args)


def test_what_is_checked_once_cannot_change_later():
    """A kernel's image is its own; a broken one, or one for other arrays, ends before anything runs."""
    flow, args = plan()
    kernel, inputs = CPU.compile([flow], 60.0), [[a[rank] for a in args[:5]] for rank in range(2)]
    with pytest.raises(ValueError, match="read-only"):
        kernel.image[0] = 1
    for wrong in (inputs[1][0].astype(np.float64), inputs[1][0][:-1]):
        with pytest.raises(hpmoe.ArgumentError,
                           match=r"launch: buffers\[1\]\[0\] is float..\[., 6\]; it must be a contiguous "
                           "float32 array of 7 rows and 6 columns"):
            kernel.run([inputs[0], [wrong, *inputs[1][1:]]])
    image = kernel.image.copy()
    own = kernel.replace(image=image)
    image[...] = 0
    assert_close([np.stack([out[0] for out in own.run(inputs)])], [numpy_moe_ffn(args, LAYER.cotangent())[0]])
    with pytest.raises(LaunchError, match="moe_ffn: the packed image is broken: "):
        kernel.replace(image=image).run(inputs)
    larger = Layer(ep=2, T=9, H=6, I=4, E=4, K=2).arguments()
    other = spmd(stages()["queues"](hpmoe.moe_ffn), Mesh(2)).lower(*tensors(larger))
    with pytest.raises(hpmoe.ArgumentError, match=r"launch: (buffers\[0\]\[\d+\]|counters) is "):
        kernel.replace(image=CPU.compile([other], 60.0).image).run(inputs)


MEMORY_RUNS_OUT = """
    import resource
    from pathlib import Path

    import mindspore as ms
    import numpy as np

    import hpmoe

    layer = hpmoe.tile_partition(lambda x, w, v: hpmoe.swiglu(x @ w) @ v, rows=64, cols=64)
    layer = hpmoe.spmd(hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.overlap_comm(layer))), hpmoe.Mesh(2))
    x, w, v = (ms.Tensor(np.ones(s, np.float32)) for s in ((2, 200_000, 32), (2, 32, 32), (2, 16, 32)))
    small = [ms.Tensor(np.ones((2, 8, 32), np.float32)), w, v]
    want = layer(*small).asnumpy()
    layer.warm_up(x, w, v)  # MindSpore and NumPy may end the process where a few bytes are missing while a plan is made
    limit = resource.getrlimit(resource.RLIMIT_AS)
    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (in_use + (16 << 20), limit[1]))
    try:
        layer(x, w, v)
    except MemoryError as error:
        print(error)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limit)
    assert (layer(*small).asnumpy() == want).all()
    assert layer(x, w, v).shape == (2, 200_000, 32)
"""


def test_out_of_memory_is_an_error_and_the_next_call_works():
    """The address space is capped below what the arrays of the launch take, each of which the system is asked for again.
    A process of its own is needed, as one that has launched more holds the memory already."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(MEMORY_RUNS_OUT)], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    assert "Unable to allocate 48.8 MiB" in done.stdout, done.stdout


@pytest.fixture
def sigint():
    """Puts a handler in place behind Python's back, as libraries do, and returns that which it replaces."""
    put = ctypes.CDLL(None).signal
    put.argtypes, put.restype = [ctypes.c_int, ctypes.c_void_p], ctypes.c_void_p
    signal.signal(signal.SIGINT,
                  signal.default_int_handler)  # an earlier test may have left MindSpore's, which ends the process
    yield lambda handler: put(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, signal.default_int_handler)


def is_ignored(number):
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16) >> (number - 1) & 1


def test_ctrl_c_ends_a_stuck_launch_under_another_handler(sigint):
    """MindSpore does so whenever one of its threads waits for another, and would end the process."""
    flow, args = plan()
    broken, replaced = CPU.compile([lost_signal(flow)], 60.0), []

    def put_a_handler_and_press_ctrl_c():
        while not broken.state.counters.any():
            time.sleep(0.01)
        replaced.append(sigint(int(signal.SIG_IGN)))
        while is_ignored(signal.SIGINT):  # until the launch has looked
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=put_a_handler_and_press_ctrl_c, daemon=True)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        broken.run([[a[rank] for a in args[:5]] for rank in range(2)])
    thread.join()
    sigint(replaced[0])  # as the library does later, which found the launch's handler
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(5)
    assert_still_works(flow, args)


class Found(ctypes.Structure):
    """Result of dladdr for an address."""

    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p), ("name", ctypes.c_char_p), ("place", ctypes.c_void_p)]


def handler_of_ctrl_c():
    """The file of the library that Ctrl-C comes to now."""
    get = ctypes.pythonapi.PyOS_getsig
    get.argtypes, get.restype = [ctypes.c_int], ctypes.c_void_p
    found = Found()
    is_of_library = ctypes.CDLL(None).dladdr(ctypes.c_void_p(get(signal.SIGINT)), ctypes.byref(found))
    return found.file.decode() if is_of_library else ""


INTERRUPTED = """
    import os, signal, sys, threading, time
    sys.path[:] = {path!r}
    import test_faults as t
    from test_faults import *
    from hpmoe.kernels.native import find_library
    from hpmoe.runtime.targets import Executable

    layer, args = spmd(fused()(hpmoe.moe_ffn), Mesh(2)), tensors(t.LAYER.arguments())
    run = Executable.run

    class Net(ms.nn.Cell):
        def construct(self, *args):
            return layer(*args)

    def call(*args):
        return layer(*args)

    def press_ctrl_c_during(launch):
        while not launch.state.counters.any():
            time.sleep(0.01)
        looks = 0  # in a row: threads of MindSpore that wait put handlers over the launch's, which takes them away
        while looks < 20:
            time.sleep(0.01)
            looks = looks + 1 if t.handler_of_ctrl_c() == str(find_library()) else 0
        os.kill(os.getpid(), signal.SIGINT)

    def stuck(kernel, *args, **options):
        broken = CPU.compile([lost_signal(kernel.flow)], 60.0)
        threading.Thread(target=press_ctrl_c_during, args=[broken]).start()
        return run(broken, *args, **options)

    def interrupt(name, f):
        want = f(*args).asnumpy()
        Executable.run = stuck
        try:
            f(*args).asnumpy()
        except KeyboardInterrupt:
            Executable.run = run
            print(name, "interrupted", (f(*args).asnumpy() == want).all())

    if "jit" in sys.argv:
        interrupt("jit", ms.jit(call))
    else:
        interrupt("pynative", layer)
        ms.set_context(mode=ms.GRAPH_MODE)
        interrupt("graph mode", Net())
"""


@pytest.mark.slow
@pytest.mark.parametrize("modes", [("pynative", "graph mode"), ("jit",)])
def test_ctrl_c_ends_a_stuck_call_and_the_next_one_works(tmp_path, modes):
    """In a compiled graph the kernel runs on a thread of MindSpore's, whose own handler of Ctrl-C would end the process by
    SIGTERM, as it does between launches."""
    script = tmp_path / "interrupted.py"  # MindSpore compiles what stands in a file
    script.write_text(textwrap.dedent(INTERRUPTED).format(path=sys.path))
    done = subprocess.run([sys.executable, "-W", "ignore", script, *modes], capture_output=True, text=True, timeout=120,
                          cwd=tmp_path)
    wanted = "".join(f"{mode} interrupted True\n" for mode in modes)
    assert (done.returncode, done.stdout) == (0, wanted), (done.stdout, done.stderr)


TIMER = """
    import signal, sys
    sys.path[:] = {path!r}
    from test_faults import *

    layer = Layer(ep=1, T=512, H=256, I=256, E=4, K=2)
    f, args = spmd(fused(rows=128, cols=256)(hpmoe.moe_ffn), Mesh(1)), tensors(layer.arguments())
    want, num_signals = f(*args).asnumpy(), []
    signal.signal(signal.SIGALRM, lambda *_: num_signals.append(1))
    signal.setitimer(signal.ITIMER_REAL, 5e-4, 5e-4)
    same = True
    while len(num_signals) < 60:
        same &= (f(*args).asnumpy() == want).all()
    signal.setitimer(signal.ITIMER_REAL, 0)
    print(same)
"""


@pytest.mark.slow
def test_signals_during_launches_do_no_harm():
    """Products of oneDNN use memory of the heap as their stack: a handler's frame there would damage what lies below."""
    code = textwrap.dedent(TIMER).format(path=sys.path)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "True\n"), (done.stdout, done.stderr)


def test_many_more_workers_than_cores_finish():
    """A spinning worker gives its core away, so 96 threads on a few cores do not stand in each other's way."""
    layer = Layer(ep=4, T=9, H=6, I=4, E=8, K=2)
    args = layer.arguments()
    f = spmd(fused(machine=hpmoe.cpu(24))(hpmoe.moe_ffn), Mesh(4))
    want, _ = numpy_moe_ffn(args, layer.cotangent())
    for _ in range(3):
        assert_close([f(*tensors(args)).asnumpy()], [want])


def resident_kib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() // 1024


@pytest.mark.slow
def test_500_steps_of_changing_routing_take_constant_memory():
    layer = Layer(ep=2, T=64, H=32, I=16, E=8, K=2)
    f = spmd(fused(rows=16, cols=16)(hpmoe.moe_ffn), Mesh(2))
    x, _, *rest = tensors(layer.arguments())
    step = ms.grad(lambda x, ids, *rest: (f(x, ids, *rest) ** 2).sum(), (0, 2, 3, 4))
    rng, before = np.random.default_rng(0), None
    for i in range(500):
        skew = rng.random(8) ** rng.integers(1, 6)  # from even to one hot expert
        ids = (rng.random((2, 64, 8)) * skew).argsort(axis=-1)[..., :2].astype(np.int32)
        step(x, ms.Tensor(ids), *rest)
        if i == 150:
            before = resident_kib()
    assert resident_kib() - before < 6_000, "KiB more after 350 steps"
