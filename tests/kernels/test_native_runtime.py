"""The native runtime on images of a layer, some of them broken, with arrays that fit or do not."""

import re

import numpy as np
import pytest
from helpers import Layer, assert_close, avals_of, numpy_moe_ffn, stages

import hpmoe
from hpmoe.kernels import launch, load, protocol
from hpmoe.kernels.image import unpack_image
from hpmoe.kernels.packing import pack
from hpmoe.kernels.protocol import Code, Dtype, Opcode
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import ArgumentError, LaunchError

LAYER = Layer(ep=2, T=10, H=6, I=5, E=4, K=2)


def planned():
    stage = stages(rows=4, cols=6, machine=hpmoe.cpu(2))["queues"]
    return stage(hpmoe.moe_ffn).lower(*avals_of(LAYER.arguments()), mesh=LAYER.mesh)


def image_of():
    """The image of a layer, which may be changed."""
    return pack(planned()).copy()


def arrays_of(flow, args):
    """An array of each buffer, for each rank; received rows have as much room as the plan."""
    ranks = []
    for rank in range(flow.ep_size):
        arrays = []
        for i, buffer in enumerate(flow.buffers):
            rows = flow.routes[buffer.route].max_rows if buffer.num_rows is None else buffer.num_rows
            arrays.append(arrays[buffer.storage].reshape(rows, buffer.cols) if buffer.storage != i else
                          np.zeros((rows, buffer.cols), numpy_dtype(buffer.dtype)))
        for i, a in zip(flow.inputs, args, strict=True):
            arrays[i][...] = a[rank].reshape(arrays[i].shape)
        ranks.append(arrays)
    return ranks


def counters_of(flow):
    return np.zeros((2, flow.ep_size, len(flow.deps.events)), np.int64)


def test_a_lost_signal_is_diagnosed_and_the_next_launch_works():
    flow, args = planned(), LAYER.arguments()
    image, ranks, counters = pack(flow), arrays_of(flow, args), counters_of(flow)
    broken = image.copy()
    _, sections = unpack_image(broken)
    opcodes = sections["ops"]["opcode"][sections["templates"]["op"]]
    sections["templates"]["num_signals"][opcodes == Opcode.PUT] = 0
    with pytest.raises(LaunchError, match=r"rank \d, queue \d, task \d+ \(GMM of op .*threshold is \d") as error:
        launch(broken, ranks, [10, 10], *counters, 0.4)
    status = error.value.status
    assert status["code"] == Code.TIMEOUT and status["value"] < status["threshold"]
    launch(image, ranks, [10, 10], *counters, 30.0)
    (out,) = flow.outputs
    assert_close([np.stack([arrays[out] for arrays in ranks])], [numpy_moe_ffn(args, LAYER.cotangent())[0]])


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
    image = image_of()
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
    ("ops", "blocks", 2, "divided where a task needs all of them"),
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
    image = image_of()
    _, sections = unpack_image(image)
    column = sections[table] if field is ... else sections[table][field]
    column[:] = value
    assert_broken(image, words)


@pytest.mark.parametrize("mode", ["rows", "cols"])
def test_broken_operand_mode(mode):
    image = image_of()
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


def test_arguments_are_checked():
    flow = planned()
    image, ranks, (counters, bases) = pack(flow), arrays_of(flow, LAYER.arguments()), counters_of(flow)
    with pytest.raises(ArgumentError, match="launch: len.num_tokens. is 1; it must be 2"):
        launch(image, ranks, [10], counters, bases, 1.0)
    with pytest.raises(ArgumentError, match=r"num_tokens\[1\] is 11"):
        launch(image, ranks, [10, 11], counters, bases, 1.0)
    with pytest.raises(ArgumentError, match=r"counters is int64\[2, 3\]"):
        launch(image, ranks, [10, 10], counters[:, :3].copy(), bases, 1.0)
    ranks[1][flow.inputs[0]] = ranks[1][flow.inputs[0]].astype(np.float64)
    with pytest.raises(ArgumentError, match=r"buffers\[1\]\[\d+\] is float64\[10, 6\]"):
        launch(image, ranks, [10, 10], counters, bases, 1.0)
