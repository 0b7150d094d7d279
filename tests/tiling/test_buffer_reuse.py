"""Temporaries that take over each other's memory: which do, what their writers wait for, and that nothing less will do."""

import dataclasses
import random

import mindspore as ms
import numpy as np
import pytest
from helpers import Layer, assert_equals_numpy, assert_every_access_ordered, bitwise_equal, lowered, nothing, stages, tensors
from mutants import with_deps
from random_layers import SIGNALS, random_layer, random_options
from variants import VARIANTS, arguments

import hpmoe
from hpmoe import VerifyError, save_for_backward, verify
from hpmoe.ir.layout import Layout
from hpmoe.kernels import host_launch
from hpmoe.kernels.memory import ALIGNMENT, Pool
from hpmoe.tiling.lifetimes import ColumnFootprint, lifetimes_of
from hpmoe.tiling.rebuild import rebuild
from hpmoe.tiling.shared_memory import memory_bytes, share_memory

EVEN = Layer(ep=1, T=6, H=4, I=2, E=3, K=2)  # gate_up is as wide as the hidden states


def shared(flow):
    return {b.name: flow.buffers[b.memory].name for b in flow.buffers if b.memory >= 0}


def without_sharing(flow):
    """Returns the tasks and queues with separate memory: the order that holds without the waits of reuse."""
    return flow.replace(buffers=tuple(dataclasses.replace(b, memory=-1) for b in flow.buffers))


def queued(layer, direction="forward", f=hpmoe.moe_ffn, stage="queues", **options):
    args = arguments(f, layer) if f in (g for g, _ in VARIANTS.values()) else layer.arguments()
    return lowered(stages(**options)[stage](f), args, layer.ep, direction)


def test_what_moe_ffn_shares():
    """Expert outputs go where the dispatched rows were; what a lone rank returns goes where gate_up was."""
    assert shared(queued(EVEN)) == {"d": "a", "e.entries": "b"}
    assert shared(queued(Layer(ep=2, T=6))) == {"d": "a"}


def test_an_order_that_data_makes_needs_no_waits():
    """GMM2 of a slot follows all of GMM1 of the slot under every routing, so its rows go there without a wait."""
    flow = queued(Layer(ep=2, T=6), machine=hpmoe.cpu(3))
    assert shared(flow) == {"d": "a"}
    assert not [b for b in flow.deps.blocks if b.name.endswith(".free")]


def test_waits_of_reuse_are_printed_like_others():
    text = str(queued(EVEN, "backward", machine=hpmoe.cpu(3)))
    assert "\n  memory: " in text
    assert "wait !c.free." in text or " !c.free." in text


@pytest.mark.parametrize("name", VARIANTS)
def test_no_more_memory_than_before_and_inputs_and_outputs_apart(name):
    f, _ = VARIANTS[name]
    for direction, ep in (("forward", 1), ("backward", 2)):
        flow = queued(Layer(ep=ep, T=5), direction, f)
        received = [3 for _ in flow.routes]
        now, before = (memory_bytes(x, received) for x in (flow, without_sharing(flow)))
        assert sum(now.values()) <= sum(before.values())
        kept = {b for b, buffer in enumerate(flow.buffers) if buffer.role != "temporary" and buffer.storage == b}
        assert kept <= set(now)
        assert all(flow.buffers[b.memory].role == b.role == "temporary" for b in flow.buffers if b.memory >= 0)


@pytest.mark.parametrize("name", [*VARIANTS, "moe_ffn"])
def test_any_order_gives_the_same_bits(name):
    f = VARIANTS[name][0] if name in VARIANTS else hpmoe.moe_ffn
    rng = np.random.default_rng(len(name))
    for direction, ep in (("forward", 1 + len(name) % 2), ("backward", 2 - len(name) % 2)):
        layer = Layer(ep=ep, T=4, num_tokens=None if ep == 1 else (4, 2))
        args = arguments(f, layer) if name in VARIANTS else layer.arguments()
        flow = queued(layer, direction, f, machine=hpmoe.cpu(3), policy="round_robin")
        inputs = inputs_of(flow, args, rng, layer.num_tokens)
        want = hpmoe.interpret(without_sharing(flow), inputs, layer.num_tokens)
        for seed in range(2):
            got = hpmoe.interpret(flow, inputs, layer.num_tokens, seed=seed)
            assert all(bitwise_equal(a, b) for a, b in zip(got, want, strict=True))


def inputs_of(flow, args, rng, num_tokens=None):
    """For each rank random inputs, but the ids, which are those of `args`."""
    ids = iter(a for a in args if a.dtype == np.int32)
    ids = {b: next(ids) for b in dict.fromkeys(plan.ids for plan in flow.routes)}
    routing = Layout(flow, [list(ids[p.ids]) for p in flow.routes], num_tokens).routings

    def one(r, b):
        buffer = flow.buffers[b]
        if b in ids:
            return ids[b][r]
        shape = [routing[buffer.route].num_rows(r) if not isinstance(d, int) else d for d in buffer.shape]
        return rng.standard_normal(shape).astype(np.float32)
    return [[one(r, b) for b in flow.inputs] for r in range(flow.ep_size)]


@pytest.mark.parametrize("policy", ["everything", "recompute_swiglu", "dispatched_rows", nothing])
def test_gradients_of_policies_in_shared_memory(policy):
    for layer in (EVEN, Layer(ep=2, T=7, H=4, I=2, E=4, K=2, num_tokens=(7, 3)), Layer(ep=1, T=9, H=5, I=5, E=2, K=1)):
        for machine in (hpmoe.cpu(1), hpmoe.cpu(3)):
            assert_equals_numpy(stages(machine=machine)["fused"](save_for_backward(hpmoe.moe_ffn, policy=policy)), layer)


def test_every_access_of_shared_memory_is_ordered():
    rng = np.random.default_rng(5)
    policies = ("everything", "dispatched_rows", nothing)
    for i in range(18):
        layer, options = random_layer(rng), random_options(rng)
        f = save_for_backward(hpmoe.moe_ffn, policy=policies[i % 3])
        layer = dataclasses.replace(layer, I=2) if i % 2 else layer
        for direction in ("forward", "backward"):
            flow = queued(layer, direction, f, **options)
            assert_every_access_ordered(flow, layer.arguments(), layer.num_tokens)


@pytest.mark.parametrize("signal", SIGNALS)
def test_memory_is_free_once_all_parts_of_a_put_have_left_it(signal):
    """Also where the receiver hears of all parts at once."""
    def two_layers(x, ids, w, up, down):
        return hpmoe.moe_ffn(x + hpmoe.moe_ffn(x, ids, w, up, down), ids, w, up, down)

    for direction in ("forward", "backward"):
        flow = lowered(stages(put_cols=2, signal=signal)["overlap"](two_layers), EVEN.arguments(), EVEN.ep, direction)
        assert "d.free" in [b.name for b in flow.deps.blocks]
        assert_every_access_ordered(flow, EVEN.arguments())


def is_release(flow, wait):
    return flow.deps.blocks[flow.deps.events["block"][wait["event"]]].name.endswith(".free")


def test_a_missing_wait_shows_as_a_wrong_result_under_some_seed():
    flow = queued(EVEN, stage="overlap")
    waits = np.array([is_release(flow, w) for w in flow.deps.waits])
    assert waits.any()
    inputs = inputs_of(flow, EVEN.arguments(), np.random.default_rng(0))
    want = hpmoe.interpret(flow, inputs)
    mutant = with_deps(flow, waits=flow.deps.waits[~waits])
    results = [hpmoe.interpret(mutant, inputs, seed=seed) for seed in range(20)]
    assert not all(bitwise_equal(r[0], want[0]) for r in results)


def test_memory_that_may_not_be_shared_is_rejected():
    flow = without_sharing(queued(EVEN, stage="overlap"))
    names = [b.name for b in flow.buffers]

    def sharing(new, old):
        changed = list(flow.buffers)
        changed[names.index(new)] = dataclasses.replace(changed[names.index(new)], memory=names.index(old))
        return with_deps(flow.replace(buffers=tuple(changed)), origin=None)

    for new, old, why in (("d", "hidden_states", "it is an input"), ("e", "a", "it is an output"),
                          ("c", "b", "operation 2 still uses the older when operation 2 writes the newer"),
                          ("a", "d", "which has none of its own before it")):
        with pytest.raises(VerifyError, match=why):
            verify(sharing(new, old))
    far = queued(Layer(ep=2), stage="overlap")
    names = [b.name for b in far.buffers]
    buffers = list(far.buffers)
    buffers[names.index("e.entries")] = dataclasses.replace(buffers[names.index("e.entries")], memory=names.index("b"))
    with pytest.raises(VerifyError, match="e.entries lives where b did, and other ranks write it"):
        verify(with_deps(far.replace(buffers=tuple(buffers)), origin=None))


def test_sharing_is_a_function_of_the_operations():
    flow = queued(EVEN, "backward", stage="overlap")
    for buffers in (flow.buffers, without_sharing(flow).buffers):
        assert share_memory(buffers, flow.ops, flow.routes) == flow.buffers
    assert str(rebuild(flow, flow.ops)) == str(flow)


@pytest.mark.parametrize("stage", ["tiles", "overlap", "queues", "blocking", "fused"])
def test_every_stage_shares(stage):
    flow = queued(EVEN, stage=stage)
    assert shared(getattr(flow, "flow", flow)) == {"d": "a", "e.entries": "b"}


def test_lifetimes_end_with_the_last_reader():
    flow = queued(EVEN)
    life = lifetimes_of(flow.buffers, flow.ops, flow.routes)
    name = {b.name: i for i, b in enumerate(flow.buffers)}
    labels = [op.label for op in flow.ops]
    assert [labels[i] for i in life.readers[name["a"]]] == ["grouped_matmul"]
    assert [labels[i] for i in life.writers[name["d"]]] == ["grouped_matmul"]


def test_columns_of_tiles_are_told_by_arithmetics():
    """Random operations give the answers of a loop over tiles."""
    rng = random.Random(0)
    for _ in range(3000):
        cols, offsets = rng.randint(1, 9), [rng.randint(0, 5) for _ in range(rng.randint(0, 3))]
        fixed = rng.choice([[], [(0, 1)], [(2, 4)]])
        touched = ColumnFootprint(fixed, offsets, cols, rng.randint(1, 6))
        tiles = [{c for a, b in touched.of_tile(k) for c in range(a, b)} for k in range(touched.num_tiles)]
        start = rng.randint(0, 8)
        columns = rng.choice([[(start, start + rng.randint(1, 5))], [(0, 1), (start + 2, start + 3)]])
        wanted = {c for a, b in columns for c in range(a, b)}
        assert touched.each_covers(columns) == all(wanted <= tile for tile in tiles), (touched, columns)
        assert touched.each_meets(columns) == all(bool(wanted & tile) for tile in tiles), (touched, columns)
        assert {c for a, b in touched.together for c in range(a, b)} == set().union(*tiles)


def test_columns_of_a_billion_tiles_are_not_walked_through():
    touched = ColumnFootprint([], [0, 1 << 29], 1 << 29, 1)
    assert touched.each_meets([(0, 1 << 30)]) and not touched.each_meets([(1, 1 << 29), ((1 << 29) + 1, 1 << 30)])
    assert not touched.each_covers([(0, 1)]) and touched.together == [(0, 1 << 30)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_launch_takes_the_bytes_of_the_estimate(dtype, monkeypatch):
    """The pool hands out what the plan says for the rows received, in a block for the result and one for temporaries."""
    monkeypatch.setattr(host_launch, "POOL", Pool())
    layer = dataclasses.replace(EVEN, T=64, H=64, I=32)
    args = [t if t.dtype == ms.int32 else t.astype(getattr(ms, dtype)) for t in tensors(a[0] for a in layer.arguments())]
    f = stages(rows=16, cols=16)["fused"](hpmoe.moe_ffn)
    flow = f.lower(*args).flow
    assert shared(flow) == {"d": "a", "e.entries": "b"}
    f(*args)
    own = {b: n for b, n in memory_bytes(flow, [layer.T * layer.K]).items() if flow.buffers[b].role != "input"}
    rows = layer.T * layer.K
    assert sum(own.values()) == {"float32": 4, "bfloat16": 2}[dtype] * (rows * (64 + 64 + 32) + layer.T * 64)
    assert host_launch.POOL.peak_bytes == sum(own.values()) + 2 * ALIGNMENT
