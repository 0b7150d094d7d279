"""Ids that somebody writes to during a call: it reads them once, and a kernel refuses more rows than its arrays hold."""

import threading
import time

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, fused, stages, tensors

import hpmoe
from hpmoe.ir.layout import received_rows
from hpmoe.kernels import host_launch, launch
from hpmoe.kernels.buffers import Placed
from hpmoe.kernels.cpu.target import CPU
from hpmoe.kernels.host_launch import POOL
from hpmoe.kernels.protocol import Code
from hpmoe.runtime.rank_arrays import to_array

LAYER = Layer(ep=2, T=24, H=6, I=4, E=8, K=2)
NEAR, FAR = (np.stack([np.array([pair] * 24, np.int32) for pair in pairs]) for pairs in (((0, 1), (0, 1)), ((0, 4), (5, 6))))


def kernel_of(f=hpmoe.moe_ffn):
    """A kernel for any routing, and what each rank brings to it."""
    args = LAYER.arguments()
    avals = [hpmoe.ShapeDtypeStruct(x.shape, str(x.dtype).lower()) for x in tensors(args)]
    flow = hpmoe.spmd(stages()["queues"](f), hpmoe.Mesh(2)).lower(*avals)
    return CPU.compile([flow], 5.0), [[a[rank] for a in args[:5]] for rank in range(2)]


def check_refused(error, rank, route, received, row_capacity):
    status = error.value.status
    assert (status["code"], status["rank"], status["wait"]) == (Code.NO_ROW_CAPACITY, rank, route)
    assert (status["value"], status["threshold"]) == (received, row_capacity)
    text = (f"rank {rank} would receive {received} rows through route {route}, and its arrays can hold {row_capacity}: "
            "topk_ids changed after these were made for them. Nothing may write to ids during a call.")
    assert text in str(error.value)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("f, route", [(hpmoe.moe_ffn, 0), (hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"), 0),
                                      (hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"), 1)])
def test_arrays_without_room_are_refused(f, route, rank):
    """By a launch of the image that is given one row less than the ids ask for; with all of them it runs."""
    kernel, inputs = kernel_of(f)
    want = kernel.run(inputs)
    rows = received_rows(kernel.flow, inputs, None)
    if route:  # what is made room for is the most that tokens sent once can be
        rows[rank][1] = len({(r, t) for r in range(2) for t in range(24) if (inputs[r][1][t] // 4 == rank).any()})

    def launched():
        placed = Placed(kernel.state.places, POOL, inputs, rows, False, {})
        launch(kernel.image, placed.read_ranks(), [24, 24], kernel.state.counters, kernel.state.bases, 5.0)
        return [placed.array(r, kernel.flow.outputs[0]) for r in range(2)]
    assert all((got == out[0]).all() for got, out in zip(launched(), want, strict=True))
    rows[rank][route] -= 1
    with pytest.raises(hpmoe.LaunchError) as error:
        launched()
    check_refused(error, rank, route, rows[rank][route] + 1, rows[rank][route])


def test_a_kernel_refuses_ids_that_change_during_a_call(monkeypatch):
    kernel, inputs = kernel_of()
    for mine, ids in zip(inputs, NEAR, strict=True):
        mine[1] = ids.copy()

    def then_changed(*args):
        out = received_rows(*args)
        for mine, ids in zip(inputs, FAR, strict=True):
            mine[1][...] = ids
        return out
    monkeypatch.setattr(host_launch, "received_rows", then_changed)
    with pytest.raises(hpmoe.LaunchError) as error:
        kernel.run(inputs)
    check_refused(error, 1, 0, 72, 0)
    monkeypatch.undo()
    want = kernel_of()[0].run(inputs)
    assert all((a[0] == b[0]).all() for a, b in zip(kernel.run(inputs), want, strict=True))


def differentiated():
    """A function of ids that gives the value and the gradients, and the memory of the tensor that it reads ids from."""
    f, (x, ids, *rest) = hpmoe.spmd(fused()(hpmoe.moe_ffn), hpmoe.Mesh(2)), tensors(LAYER.arguments())

    def compute(between=None):
        def loss(*args):
            out = f(*args)
            if between is not None:
                shared[...] = between
            return (out ** 2).sum()
        value, grads = ms.value_and_grad(loss, (0, 2, 3, 4))(x, ids, *rest)
        return [value.asnumpy(), *(g.asnumpy() for g in grads)]
    shared = to_array(ids)
    return compute, shared


def of_ids(compute, shared, ids):
    shared[...] = ids
    return compute()


def are_same(got, want):
    return all((a == b).all() for a, b in zip(got, want, strict=True))


def test_backward_has_the_ids_of_forward():
    compute, shared = differentiated()
    want = of_ids(compute, shared, NEAR)
    shared[...] = NEAR
    assert are_same(compute(between=FAR), want) and (shared == FAR).all()


def test_a_call_has_one_set_of_ids_whoever_writes_to_them():
    """Each result, value and gradients, is that of ids which were there at some time."""
    compute, shared = differentiated()
    wanted = [of_ids(compute, shared, ids) for ids in (NEAR, FAR)]
    is_over, deadline = threading.Event(), time.monotonic() + 20

    def write():
        while not is_over.is_set() and time.monotonic() < deadline:
            for ids in (NEAR, FAR):
                shared[...] = ids  # in one piece: so small a copy keeps the interpreter's lock
                time.sleep(1e-4)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        seen = set()
        for i in range(200):
            got = compute()
            found = [ids for ids, want in enumerate(wanted) if are_same(got, want)]
            assert len(found) == 1
            seen |= set(found)
            if i > 30 and len(seen) == 2:
                break
        assert seen == {0, 1}
    finally:
        is_over.set()
        thread.join()
