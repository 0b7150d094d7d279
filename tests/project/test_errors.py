"""Errors name the user's line and what the user's own functions returned; test_every_error.py compares every text."""

import re

import numpy as np
import pytest
from helpers import Layer, tensors
from mindspore import mint

from hpmoe import (
    Mesh,
    ShapeDtypeStruct,
    TransformError,
    assign_queues,
    cpu,
    moe_ffn,
    overlap_comm,
    spmd,
    tile_partition,
    verify,
)
from hpmoe.costs.task_costs import task_costs
from hpmoe.transforms.assign_queues import POLICIES

TILES = tile_partition(moe_ffn)


def error_of(call, kind):
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


# The user's own order and policy.

@pytest.mark.parametrize("order", [lambda r, n: [0] * n, lambda r, n: [0], lambda r, n: None,
                                   lambda r, n: list(range(1, n + 1))])
def test_user_order_must_be_a_permutation(order):
    f = spmd(overlap_comm(TILES, order=order), Mesh(2))
    text = error_of(lambda: f.lower(*tensors(Layer().arguments())), TransformError)
    assert text == f"overlap_comm: order(0, 2) is {order(0, 2)}; it must name each of the ranks 0..1 once."


def loses_one(flow, machine):
    return [np.arange(1, flow.num_tasks)]


def repeats_one(flow, machine):
    return [np.append(np.arange(flow.num_tasks), 0)]


def backwards(flow, machine):
    return [np.arange(flow.num_tasks)[::-1]]


def two_queues(flow, machine):
    return [np.arange(flow.num_tasks), np.zeros(0, int)]


def nothing(flow, machine):
    return None


def no_queues(flow, machine):
    return []


def costs_instead_of_tasks(flow, machine):
    return [task_costs(flow, machine)]


@pytest.mark.parametrize("policy, words", [
    (loses_one, "task t0 .* is in no queue; it must be in one queue, once"),
    (repeats_one, "task t0 .* is in worker.0 at 0, worker.0 at [0-9]+; it must be"),
    (backwards, "can never run: a cycle leads through what it waits for"), (two_queues, "there are 2 queues, cpu has 1"),
    (nothing, "'NoneType' object is not iterable"), (no_queues, "there are 0 queues, cpu has 1"),
    (costs_instead_of_tasks, "queue 0 is of float64; it must be of the numbers of tasks")])
def test_user_policy_must_be_a_schedule(policy, words):
    f = spmd(assign_queues(tile_partition(moe_ffn, rows=2, cols=3), policy=policy, machine=cpu(1)), Mesh(2))
    text = error_of(lambda: f.lower(*tensors(Layer().arguments())), TransformError)
    assert text.startswith(f"assign_queues: policy {policy.__name__} made no legal schedule: ") and re.search(words, text)


def test_a_policy_without_memory():
    """MemoryError is no fault of the policy, and reaches a handler around the call."""
    def hungry(flow, machine):
        raise MemoryError("no memory")

    with pytest.raises(MemoryError, match=r"^assign_queues: policy.* is hungry .*raised MemoryError: no memory; "):
        assign_queues(tile_partition(mint.exp), policy=hungry).lower(ShapeDtypeStruct((4, 8), "float32"))


@pytest.mark.parametrize("part", ["hpmoe.tiling.rebuild.derive_dependencies", "hpmoe.verification.verify.check_sizes"])
def test_a_plan_without_memory(monkeypatch, part):
    """MemoryError is no fault of the plan."""
    def hungry(*args):
        raise MemoryError("no memory")

    monkeypatch.setattr(part, hungry)
    with pytest.raises(MemoryError, match="^no memory$"):
        verify(tile_partition(mint.exp).lower(ShapeDtypeStruct((4, 8), "float32")))


def test_what_a_handler_raises_is_not_the_policys(monkeypatch):
    """A timer's handler raises inside a built-in policy."""
    def interrupted(flow, machine):
        raise TimeoutError("too slow")

    monkeypatch.setitem(POLICIES, "critical_path", interrupted)
    with pytest.raises(TimeoutError, match="^too slow$"):
        assign_queues(tile_partition(mint.exp)).lower(ShapeDtypeStruct((4, 8), "float32"))
