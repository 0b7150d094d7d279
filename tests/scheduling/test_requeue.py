"""requeue: queues that what tasks read allows are a schedule with the same results, and others an error that says why."""

import hypothesis
import numpy as np
import pytest
from helpers import SMALL_NPU, Layer, avals_of, run_spmd, stages
from hypothesis import given, strategies as st

import hpmoe
from hpmoe import VerifyError
from hpmoe.ir import taskflow as tf
from hpmoe.rewriting import rebuild, requeue
from hpmoe.verification.order import op_spans

few = hypothesis.settings(max_examples=25, derandomize=True)


def spans(flow, table):
    """Returns the number of consecutive events that each wait or signal of a table may concern."""
    return op_spans(flow)[flow.tasks["op"][table["task"]], table["kind"]]


def in_random_order(flow, rng):
    """All tasks in an order in which each comes after all that may signal what it may wait for: from the full tables."""
    full = rebuild(flow, flow.ops)
    waits, signals = full.deps.waits, full.deps.signals
    adders, needs = ([set() for _ in range(n)] for n in (len(full.deps.events), full.num_tasks))
    for signal, span in zip(signals, spans(full, signals), strict=True):
        for event in range(signal["event"], signal["event"] + span):
            adders[event].add(int(signal["task"]))
    for wait, span in zip(waits, spans(full, waits), strict=True):
        needs[wait["task"]].update(*adders[wait["event"]:wait["event"] + span])
    order, done, left = [], set(), list(range(full.num_tasks))
    while left:
        ready = [t for t in left if needs[t] <= done]
        t = ready[rng.integers(len(ready))]
        order.append(t)
        done.add(t)
        left.remove(t)
    return order


def random_queues(flow, seed):
    rng, units = np.random.default_rng(seed), flow.units()
    queues = [[] for _ in flow.queues]
    for t in in_random_order(flow, rng):
        queues[rng.choice(flow.machine.queues_of("aic" if units[t] else "aiv"))].append(t)
    return queues


@hpmoe.transform(requires="queues")
def shuffled(flow, *, seed):
    return requeue(flow, random_queues(flow, seed))


def layers_of(ep):
    return st.builds(Layer, ep=st.just(ep), T=st.integers(0, 4), H=st.just(3), I=st.just(2), E=st.just(2 * ep),
                     K=st.integers(1, 2), routing=st.sampled_from(["random", "one expert", "one rank"]))


schedules = st.fixed_dictionaries({
    "rows": st.integers(1, 3), "cols": st.integers(2, 4), "signal": st.sampled_from(["tile", "expert", "peer"]),
    "order": st.sampled_from(["ratr", "sequential"]), "combine_order": st.sampled_from([None, "ratr", "sequential"]),
    "machine": st.sampled_from([hpmoe.cpu(1), hpmoe.cpu(3), SMALL_NPU]),
    "policy": st.sampled_from(["critical_path", "round_robin"])})


@few
@pytest.mark.slow
@given(st.integers(1, 3).flatmap(layers_of), schedules, st.integers(0, 100))
def test_any_legal_queues_verify_and_give_the_same_bits(layer, schedule, seed):
    """Forward and backward; apply_to verifies."""
    queued = stages(**schedule)["queues"](hpmoe.moe_ffn)
    other = shuffled(queued, seed=seed)
    args, cotangent = layer.arguments(), layer.cotangent()
    for make in (lambda f: f, hpmoe.fuse_persistent):  # by the interpreter, and by the kernel
        (outs, grads), (theirs, their_grads) = (run_spmd(make(f), layer.ep, args, [cotangent]) for f in (queued, other))
        for a, b in zip((*outs, *grads), (*theirs, *their_grads), strict=True):
            np.testing.assert_array_equal(a, b)


def queued(ep=2, machine=None, direction="forward", **options):
    layer = Layer(ep=ep)
    return stages(machine=machine, **options)["queues"](hpmoe.moe_ffn).lower(
        *avals_of(layer.arguments()), mesh=hpmoe.Mesh(ep), direction=direction)


@pytest.mark.parametrize("machine", [hpmoe.cpu(2), SMALL_NPU], ids=lambda m: m.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_its_own_queues_give_the_taskflow_again(machine, direction):
    flow = queued(machine=machine, direction=direction)
    again = requeue(flow, flow.queues)
    assert str(again) == str(flow)
    for name in ("waits", "signals", "events"):
        np.testing.assert_array_equal(getattr(again.deps, name), getattr(flow.deps, name))


def test_a_taskflow_without_queues_gets_some():
    tiles = hpmoe.tile_partition(lambda x: (x * 2.0).sum(-1), rows=2).lower(hpmoe.ShapeDtypeStruct((4, 3), "float32"))
    flow = requeue(tiles, [[0, 2], np.array([1, 3])], machine=hpmoe.cpu(2))
    assert flow.level == "queues" and len(flow.deps.waits) == 0
    crossed = requeue(tiles, ([0, 3], (1, 2)), machine=hpmoe.cpu(2))
    assert sorted(crossed.deps.waits["task"].tolist()) == [2, 3]
    assert all(q.dtype == np.int64 and not q.flags.writeable for q in crossed.queues)


def test_arrays_of_the_caller_stay_theirs():
    flow = queued()
    mine = [q.copy() for q in flow.queues]
    made = requeue(flow, mine)
    mine[0][:] = 0
    assert np.array_equal(made.queues[0], flow.queues[0]) and mine[0].flags.writeable


def with_queue(flow, q, queue):
    return [queue if i == q else other for i, other in enumerate(flow.queues)]


@pytest.mark.parametrize("change, words", [
    (lambda f: with_queue(f, 0, f.queues[0][1:]), r"task t\d+ \S+\[.*\] is in no queue"),
    (lambda f: with_queue(f, 1, [*f.queues[1], f.queues[0][0]]), r"is in aic.0 at 0, aic.1 at \d+; it must be in one queue"),
    (lambda f: with_queue(f, 0, [*f.queues[0], 9999]), r"a queue names task t9999; there are t0 to t\d+"),
    (lambda f: with_queue(f, 0, [*f.queues[0], -1]), r"a queue names task t-1"),
    (lambda f: [f.queues[2], f.queues[1], f.queues[0], *f.queues[3:]], "is aic work in queue aiv.0"),
    (lambda f: f.queues[:-1], "there are 4 queues, ascend_a3 has 5"),
    (lambda f: [], "there are 0 queues, ascend_a3 has 5"),
    (lambda f: with_queue(f, 0, f.queues[0] + 0.5), "queue 0 is of float64; it must be of the numbers of tasks"),
    (lambda f: with_queue(f, 0, [None]), "queue 0 is of object"),
    (lambda f: [q[::-1] for q in f.queues], "can never run: a cycle leads through"),
])
def test_what_is_no_schedule_is_said(change, words):
    flow = queued(machine=SMALL_NPU)
    with pytest.raises(VerifyError, match=words):
        requeue(flow, change(flow))


def test_fewer_waits_than_derived_and_none_lost():
    """Waits that the new queues imply are left out, and those that the old ones implied return."""
    flow = queued(machine=hpmoe.cpu(1))
    two = requeue(flow, [flow.queues[0][::2], flow.queues[0][1::2]], machine=hpmoe.cpu(2))
    derived = rebuild(flow, flow.ops)
    assert len(flow.deps.waits) < len(two.deps.waits) < len(derived.deps.waits)
    assert set(np.unique(two.deps.signals["kind"])) <= {tf.STATIC, tf.SLOT_EXPERT, tf.ENTRY_TILE}
