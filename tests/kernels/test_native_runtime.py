"""The native runtime on hand-packed images, against NumPy in float64."""

import re
import subprocess
import sys

import needs
import numpy as np
import pytest
from native.image_builder import MoeLayer

import hpmoe
from hpmoe.kernels import launch, load, protocol, use_blas
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.native import find_blas
from hpmoe.kernels.packing import pack
from hpmoe.kernels.protocol import Code, Dtype, Opcode
from hpmoe.support.errors import ArgumentError, LaunchError

STYLES = ("put", "notify", "all_to_all")


@pytest.fixture(params=["own", "dnnl_sgemm"])
def blas(request):
    """Every product comes from our own loop, then from the bundled library."""
    if request.param == "dnnl_sgemm":
        needs.has_onednn()
    use_blas(None if request.param == "own" else find_blas())
    assert load().hpmoe_gemm_name().decode() == request.param
    yield request.param
    use_blas(find_blas())


def epoch(image):
    header = image[: protocol.HEADER.itemsize].view(protocol.HEADER)[0]
    return np.zeros((2, int(header["ep_size"]), int(header["num_events"])), np.int64)


def run(image, buffers, num_tokens, timeout=30.0, trace=None, counters=None):
    counters, bases = epoch(image) if counters is None else counters
    launch(image, buffers, num_tokens, counters, bases, timeout, trace)


def layer(style="put", ep_size=2, num_queues=2, num_tokens=10, **sizes):
    return MoeLayer(ep_size=ep_size, num_queues=num_queues, style=style, num_tokens=num_tokens, **sizes)


def assert_equals_numpy(moe, ranks, num_tokens):
    for arrays, expected in zip(ranks, moe.expected(ranks, num_tokens), strict=True):
        np.testing.assert_allclose(arrays[moe.out], expected, rtol=2e-5, atol=2e-5)


# --- a layer on one and several ranks ---


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "ep_size, num_queues, num_tokens", [(1, 1, [10]), (1, 3, [10]), (2, 2, [10, 7]), (4, 1, [10, 0, 3, 10])]
)
def test_layer_equals_numpy(style, ep_size, num_queues, num_tokens, blas):
    moe = layer(style, ep_size, num_queues)
    ranks = moe.make_buffers(np.random.default_rng(ep_size), num_tokens)
    run(moe.image, ranks, num_tokens)
    assert_equals_numpy(moe, ranks, num_tokens)
    assert all(not arrays[moe.out][count:].any() for arrays, count in zip(ranks, num_tokens, strict=True))


@pytest.mark.parametrize("num_tokens, hot", [([0, 0], None), ([10, 10], 3), ([1, 0], None)])
def test_extreme_routings(num_tokens, hot):
    moe = layer(top_k=1)
    ranks = moe.make_buffers(np.random.default_rng(0), num_tokens)
    if hot is not None:
        for arrays in ranks:
            arrays[0][:] = hot
    run(moe.image, ranks, num_tokens)
    assert_equals_numpy(moe, ranks, num_tokens)


def test_relaunch_continues_the_epoch_and_repeats_every_bit():
    moe = layer(num_queues=3)
    ranks, counters = moe.make_buffers(np.random.default_rng(1), [10, 9]), epoch(moe.image)
    outputs = []
    for _ in range(20):
        began = counters[0].copy()
        run(moe.image, ranks, [10, 9], counters=counters)
        outputs.append(np.stack([arrays[moe.out] for arrays in ranks]).tobytes())
        assert (counters[1] == began).all() and (counters[0] - began).any()
    assert len(set(outputs)) == 1


def test_trace_orders_waits_bodies_and_ends():
    moe = layer()
    num_tasks = len(unpack_image(moe.image)[1]["tasks"])
    trace = np.zeros((2, num_tasks, 3), np.int64)
    run(moe.image, moe.make_buffers(np.random.default_rng(2), [10, 10]), [10, 10], trace=trace)
    assert (trace > 0).all() and (np.diff(trace, axis=2) >= 0).all()


# --- failures ---


def without_signal(image, opcode):
    """The image with the signals of the first task of this opcode lost."""
    image = image.copy()
    _, sections = unpack_image(image)
    opcodes = sections["ops"]["opcode"][sections["templates"]["op"]]
    sections["templates"]["num_signals"][np.flatnonzero(opcodes == opcode)[0]] = 0  # a hand-made image has a template a task
    return image


def test_lost_signal_is_diagnosed_and_the_next_launch_works():
    moe = layer(num_tokens=8)
    ranks, counters = moe.make_buffers(np.random.default_rng(3), [8, 8]), epoch(moe.image)
    broken = without_signal(moe.image, Opcode.SWIGLU)
    with pytest.raises(LaunchError, match=r"rank \d, queue \d, task \d+ \(GMM of op .*threshold is \d") as error:
        run(broken, ranks, [8, 8], timeout=0.4, counters=counters)
    status = error.value.status
    assert status["code"] == Code.TIMEOUT and status["value"] < status["threshold"]
    assert "No task signals it" in str(error.value)
    run(moe.image, ranks, [8, 8], counters=counters)
    assert_equals_numpy(moe, ranks, [8, 8])


def test_diagnosis_names_who_should_have_signalled():
    moe = layer(ep_size=1, num_tokens=8)
    ranks = moe.make_buffers(np.random.default_rng(3), [8])
    with pytest.raises(LaunchError, match=r"It is signalled by tasks? \d+"):
        run(without_signal(moe.image, Opcode.GMM), ranks, [8], timeout=0.4)


def test_extra_signal_is_reported():
    moe = layer(ep_size=1, num_queues=1)
    _, sections = unpack_image(moe.image)
    sections["event_runs"]["mult"][-1] -= 1
    with pytest.raises(LaunchError, match="received 3 where its threshold is 2") as error:
        run(moe.image, moe.make_buffers(np.random.default_rng(0), [10]), [10])
    assert error.value.status["code"] == Code.WRONG_COUNT


def test_more_rows_than_the_plan_holds():
    moe = layer()
    _, sections = unpack_image(moe.image)
    sections["routes"]["max_rows"] = 9
    with pytest.raises(LaunchError, match=r"rank \d would receive \d\d rows through route 0, and can hold 9\.") as error:
        run(moe.image, moe.make_buffers(np.random.default_rng(0), [10, 10]), [10, 10])
    assert error.value.status["code"] == Code.SLOT_OVERFLOW


@pytest.mark.parametrize("expert", [-2, 4])
def test_expert_out_of_range(expert):
    moe = layer()
    ranks = moe.make_buffers(np.random.default_rng(0), [10, 10])
    ranks[1][0][3, 1] = expert
    with pytest.raises(LaunchError, match=f"topk_ids of rank 1 names expert {expert}; there are 4") as error:
        run(moe.image, ranks, [10, 10])
    assert error.value.status["code"] == Code.INDEX_OUT_OF_RANGE


HEADER_FAULTS = [
    ("magic", 1, "magic"),
    ("version", 1, "version"),
    ("image_bytes", 64, "size"),
    ("tasks_offset", 65, "section"),
    ("num_tasks", 10**6, "section"),
    ("num_signals", -1, "section"),
    ("tile_rows", 0, "tile_rows"),
    ("ep_size", 2**30, "section"),
    ("ep_size", 2**31 - 1, "section"),
    ("index_bits", 32, "index bits"),
    ("num_events", 3, "runs do not cover"),
]


@pytest.mark.parametrize("field, value, words", HEADER_FAULTS)
def test_broken_header(field, value, words):
    image = layer().image
    image[: protocol.HEADER.itemsize].view(protocol.HEADER)[field] = value
    assert_broken(image, words)


TABLE_FAULTS = [
    ("tasks", ..., 2**32 - 1, "template that does not exist"),
    ("tasks", ..., 127, "outside the grid"),
    ("templates", "op", 99, "op that does not exist"),
    ("templates", "first_wait", 10**6, "outside their tables"),
    ("templates", "num_signals", -1, "outside their tables"),
    ("ops", "first_row", -7, "row is outside"),
    ("routes", "num_slots", 2**30, "a route's sizes do not fit together"),
    ("routes", "num_tokens", 2**31 - 1, "a route's sizes do not fit together"),
    ("ops", "num_units", 10**6, "row is outside"),
    ("ops", "num_units", -1, "negative number"),
    ("ops", "num_peers", 3, "peer is outside|row is outside"),
    ("ops", "num_peers", 0, "transfer has no peer"),
    ("ops", "cols", 10**6, "columns"),
    ("ops", "tile_cols", 0, "no columns"),
    ("signals", "event", 10**6, "signal names an event"),
    ("signals", "event", -(2**31), "signal names an event"),
    ("signals", "kind", 7, "signal's kind"),
    ("waits", "event", -1, "wait names an event"),
    ("waits", "kind", 2, "wait's kind"),
    ("event_runs", "index", 10**6, "event's extent"),
    ("event_runs", "route", 3, "event's extent"),
    ("event_runs", "first", 0, "runs do not cover"),
    ("ops", "opcode", 77, "opcode"),
    ("ops", "domain", 3, "domain"),
    ("ops", "route", 5, "route that does not exist"),
    ("ops", "num_operands", 1, "operands"),
    ("ops", "num_outputs", 2, "writes another number of operands"),
    ("ops", "num_outputs", 0, "writes another number of operands"),
    ("ops", "num_outputs", -1, "writes another number of operands"),
    ("ops", "blocks", 0, "blocks"),
    ("buffers", "rows", 1, "too few rows|sizes"),
    ("buffers", "cols", 3, "columns|sizes|rows|differ"),
    ("buffers", "dtype", len(Dtype), "dtype"),
    ("routes", "num_local_experts", 3, "route's sizes"),
]


@pytest.mark.parametrize("table, field, value, words", TABLE_FAULTS)
def test_broken_table(table, field, value, words):
    image = layer().image
    _, sections = unpack_image(image)
    column = sections[table] if field is ... else sections[table][field]
    column[:] = value
    assert_broken(image, words)


@pytest.mark.parametrize("mode", ["rows", "cols"])
def test_broken_operand_mode(mode):
    image = layer().image
    _, sections = unpack_image(image)
    sections["ops"]["operands"][mode][:] = 2
    assert_broken(image, "mode its op cannot take")


@pytest.mark.parametrize("f, which", [(lambda x, w: x @ w, 2), (lambda x, w: x @ (w * 2.0), 1)])
def test_a_weight_that_the_image_makes_is_not_read_early(f, which):
    """Nor is it another number than 1 that says so."""
    staged = hpmoe.assign_queues(hpmoe.tile_partition(f), machine=hpmoe.cpu(1))
    image = pack(staged.lower(*[hpmoe.ShapeDtypeStruct((8, 8), "float32")] * 2))
    _, sections = unpack_image(image)
    sections["ops"]["param"][sections["ops"]["opcode"] == Opcode.GMM, 1] = which
    assert_broken(image, "read early")


def assert_broken(image, words):
    fault = load().hpmoe_image_fault(image.ctypes.data, image.nbytes)
    assert fault and re.search(words, fault.decode()), fault
    with pytest.raises(LaunchError, match="the packed image is broken") as error:
        launch(image, [], [], None, None, 1.0)
    assert error.value.status["code"] == Code.BAD_IMAGE


INTERRUPTED = """
import os, signal, sys, threading, time
sys.path[:] = {path!r}
import numpy as np
from test_native_runtime import Opcode, epoch, layer, run, without_signal

moe = layer(ep_size=1)
broken = without_signal(moe.image, Opcode.SWIGLU)
ranks, counters = moe.make_buffers(np.random.default_rng(0), [10]), epoch(broken)

def press_ctrl_c():
    while not counters[0].any():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=press_ctrl_c).start()
try:
    run(broken, ranks, [10], timeout=60, counters=counters)
except KeyboardInterrupt:
    print("interrupted")
run(moe.image, ranks, [10])
"""


def test_ctrl_c_ends_a_stuck_launch():
    code = INTERRUPTED.format(path=sys.path)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


def test_arguments_are_checked():
    moe = layer()
    ranks, (counters, bases) = moe.make_buffers(np.random.default_rng(0), [10, 10]), epoch(moe.image)
    with pytest.raises(ArgumentError, match="launch: len.num_tokens. is 1; it must be 2"):
        launch(moe.image, ranks, [10], counters, bases, 1.0)
    with pytest.raises(ArgumentError, match=r"num_tokens\[1\] is 11"):
        launch(moe.image, ranks, [10, 11], counters, bases, 1.0)
    with pytest.raises(ArgumentError, match=r"counters is int64\[2, 3\]"):
        launch(moe.image, ranks, [10, 10], counters[:, :3].copy(), bases, 1.0)
    ranks[1][moe.x] = ranks[1][moe.x].astype(np.float64)
    with pytest.raises(ArgumentError, match=r"buffers\[1\]\[1\] is float64\[10, 6\]"):
        launch(moe.image, ranks, [10, 10], counters, bases, 1.0)
