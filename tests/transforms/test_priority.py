"""assign_queues(priority=): queues are legal under any priority, and follow it where they may."""

import functools

import hypothesis
import numpy as np
import pytest
from helpers import SMALL_NPU, Layer, avals_of, run_spmd, stages
from hypothesis import given, strategies as st

import hpmoe
from hpmoe import ShapeDtypeStruct
from hpmoe.rewriting import expected_rows
from hpmoe.transforms.assign_queues import POLICIES

few = hypothesis.settings(max_examples=20, derandomize=True)
MACHINES = {"cpu": hpmoe.cpu(2), "npu": SMALL_NPU}


def lowered(priority, machine, policy="critical_path", layer=Layer(), direction="forward"):  # noqa: B008
    queues = functools.partial(hpmoe.assign_queues, machine=machine, policy=policy, priority=priority)
    return hpmoe.chain(stages()["overlap"], queues)(hpmoe.moe_ffn).lower(
        *avals_of(layer.arguments()), mesh=hpmoe.Mesh(layer.ep), direction=direction)


@few
@given(st.sampled_from(sorted(MACHINES)), st.sampled_from(sorted(POLICIES)), st.integers(0, 1000),
       st.sampled_from(["float64", "float32", "int64", "bool", "inf"]), st.sampled_from(["forward", "backward"]))
def test_queues_are_legal_whatever_it_returns(machine, policy, seed, kind, direction):
    def priority(flow):
        values = np.random.default_rng(seed).integers(-5, 5, flow.num_tasks)
        return np.where(values > 3, -np.inf, np.where(values < -3, np.inf, values)) if kind == "inf" else values.astype(kind)

    flow = lowered(priority, MACHINES[machine], policy, direction=direction)  # apply_to verifies
    assert sorted(np.concatenate(flow.queues).tolist()) == list(range(flow.num_tasks))
    again = lowered(priority, MACHINES[machine], policy, direction=direction)
    assert str(flow) == str(again)


@pytest.mark.parametrize("policy", [*POLICIES, lambda flow, machine: POLICIES["round_robin"](flow, machine)],
                         ids=lambda p: p if isinstance(p, str) else "a function")
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_results_are_the_same(policy, machine):
    def expected_full_first(flow):
        assert flow.machine is not None and not flow.queues and not flow.level == "queues"
        rows, out = expected_rows(flow), np.zeros(flow.num_tasks)
        for i, op in enumerate(flow.ops):
            if op.domain.is_slots:
                mine = flow.tasks["op"] == i
                out[mine] = rows[op.domain.route][flow.tasks["row"][mine]]
        return out

    layer = Layer()
    args, cotangent = layer.arguments(), layer.cotangent()
    queues = functools.partial(hpmoe.assign_queues, machine=machine, policy=policy)
    make = hpmoe.chain(stages()["overlap"], queues, hpmoe.fuse_persistent)
    prior = hpmoe.chain(stages()["overlap"], functools.partial(queues, priority=expected_full_first), hpmoe.fuse_persistent)
    (outs, grads), (theirs, their_grads) = (run_spmd(f(hpmoe.moe_ffn), layer.ep, args, [cotangent]) for f in (make, prior))
    for a, b in zip((*outs, *grads), (*theirs, *their_grads), strict=True):
        np.testing.assert_array_equal(a, b)


TILES = hpmoe.tile_partition(lambda x: x * 2.0, rows=1)


def order_of(priority, policy="critical_path"):
    staged = hpmoe.assign_queues(TILES, machine=hpmoe.cpu(1), priority=priority, policy=policy)
    return staged.lower(ShapeDtypeStruct((6, 2), "float32")).queues[0].tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_largest_first_and_equal_ones_in_their_order(policy):
    assert order_of(lambda flow: [1, 3, 3, 2, 1, 5], policy) == [5, 1, 2, 3, 0, 4]
    assert order_of(lambda flow: np.zeros(6), policy) == [0, 1, 2, 3, 4, 5]
    big = 2**62
    assert order_of(lambda flow: np.array([big, big + 1, big + 2, 0, -big, -big - 1]), policy) == [2, 1, 0, 3, 4, 5]
    assert order_of(lambda flow: np.array([0, 1, 2, 3, 2**64 - 1, 2**63], np.uint64), policy) == [4, 5, 3, 2, 1, 0]
    assert order_of(lambda flow: flow.tasks["row"] % 2 == 0, policy) == [0, 2, 4, 1, 3, 5]


def test_it_chooses_among_those_that_are_ready():
    """The task with the highest priority runs as soon as its waits are over."""
    flow = lowered(lambda flow: np.arange(flow.num_tasks), hpmoe.cpu(1), layer=Layer(ep=1))
    plain = lowered(None, hpmoe.cpu(1), layer=Layer(ep=1))
    assert not np.array_equal(flow.queues[0], plain.queues[0])
    place = np.argsort(flow.queues[0])
    puts = [i for i, op in enumerate(flow.ops) if op.primitive.sends_rows]
    first = place[np.isin(flow.tasks["op"], puts)]
    assert first.min() == 0 and (np.diff(first) <= 0).mean() > 0.5  # the last slots are sent first


def by_row(flow):
    return -flow.tasks["row"]


class Named:
    def __call__(self, flow):
        return -flow.tasks["row"]


@pytest.mark.parametrize("priority, text", [
    (by_row, "priority=by_row"), (lambda flow: by_row(flow), "priority=<lambda>"), (Named(), "priority=Named"),
    (functools.partial(by_row), "priority=partial")], ids=lambda x: x if isinstance(x, str) else "")
def test_provenance(priority, text):
    one, two = (str(lowered(priority, SMALL_NPU, "round_robin")) for _ in range(2))
    assert one == two and f"assign_queues(ascend_a3, round_robin, {text})" in one.splitlines()[0] and "0x" not in one
