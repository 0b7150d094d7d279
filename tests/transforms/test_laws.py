"""Laws of the transforms over random programs and shapes."""

import dataclasses

import hypothesis
import numpy as np
import pytest
import random_programs
from helpers import Layer, assert_close, jax_vjp, numpy_moe_ffn, run_spmd, stages, tensors
from hypothesis import given, strategies as st

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, chain, cpu, spmd, tile_partition
from hpmoe.interpreters.interpret import interpret
from hpmoe.rewriting import requeue

few = hypothesis.settings(max_examples=5, derandomize=True)


@st.composite
def layers(draw):
    ep = draw(st.integers(1, 4))
    experts, tokens = ep * draw(st.integers(1, 3)), draw(st.integers(0, 6))
    lengths = draw(st.none() | st.tuples(*[st.integers(0, tokens)] * ep))
    return Layer(ep=ep, T=tokens, H=draw(st.integers(1, 5)), I=draw(st.integers(1, 4)), E=experts,
                 K=draw(st.integers(1, min(4, experts))), num_tokens=lengths,
                 routing=draw(st.sampled_from(["random", "one expert", "one rank"])))


schedules = st.fixed_dictionaries({
    "rows": st.integers(1, 5), "cols": st.integers(1, 7), "signal": st.sampled_from(["tile", "expert", "peer"]),
    "order": st.sampled_from(["ratr", "sequential"]), "combine_order": st.sampled_from([None, "ratr", "sequential"]),
    "machine": st.sampled_from([cpu(1), cpu(2)]),
    "policy": st.sampled_from(["critical_path", "round_robin", "stage_order"])})


@few
@given(layers(), schedules, st.integers(0, 100))
def test_every_prefix_of_the_chain_keeps_values_and_gradients(layer, schedule, seed):
    args, cotangent = layer.arguments(seed), layer.cotangent(seed)
    want, want_grads = numpy_moe_ffn(args, cotangent, layer.num_tokens)
    for name, stage in stages(**schedule).items():
        outs, grads = run_spmd(stage(hpmoe.moe_ffn), layer.ep, args, [cotangent], layer.num_tokens)
        assert_close([*outs, *grads], [want, *want_grads], name)


@few
@given(layers(), schedules)
def test_text_is_deterministic_and_has_no_addresses(layer, schedule):
    """Compares both ends of the chain; the text of the last contains every level."""
    args = tensors(layer.arguments())
    for name in ("plain", "fused"):
        for direction in ("forward", "backward"):
            one, two = (str(spmd(stages(**schedule)[name](hpmoe.moe_ffn), Mesh(layer.ep)).lower(*args, direction=direction))
                        for _ in range(2))
            assert one == two and " at 0x" not in one
            assert one.startswith("# moe_ffn")


def random_policy(seed):
    """A legal policy: program order on random queues, then neighbours exchanged wherever the verifier allows it."""
    def policy(flow, machine):
        rng, is_aic = np.random.default_rng(seed), flow.units()
        to = [int(rng.choice(machine.queues_of("aic" if aic else "aiv"))) for aic in is_aic]
        queues = [np.flatnonzero(np.array(to) == q) for q in range(machine.num_queues)]
        for _ in range(12):
            q = int(rng.integers(len(queues)))
            if len(queues[q]) < 2:
                continue
            i, old = int(rng.integers(len(queues[q]) - 1)), queues[q]
            queues[q] = np.concatenate([old[:i], old[[i + 1, i]], old[i + 2:]])
            try:
                requeue(flow, queues, machine=machine)
            except hpmoe.VerifyError:
                queues[q] = old
        return queues
    return policy


orders = st.sampled_from(["ratr", "sequential"]) | st.integers(0, 9).map(
    lambda seed: lambda rank, ep_size: np.random.default_rng([seed, rank]).permutation(ep_size).tolist())


@hypothesis.settings(max_examples=4, derandomize=True)
@given(layers(), random_programs.programs, schedules, orders, st.integers(0, 99))
def test_random_layers_equal_jax_at_every_stage(layer, program, schedule, order, seed):
    """Random steps before, between and after the exchange of rows; JAX differentiates its own forward."""
    layer = dataclasses.replace(layer, num_tokens=None)
    args = random_programs.arguments(layer, seed)
    cotangent, positions = layer.cotangent(seed), (0, *range(2, len(args)))
    want, want_grads = jax_vjp(random_programs.in_jax(program), args, cotangent, positions)
    schedule = {**schedule, "order": order, "policy": random_policy(seed)}
    for name, stage in stages(**schedule).items():
        outs, grads = run_spmd(stage(random_programs.in_mindspore(program)), layer.ep, args, [cotangent], None, positions)
        assert_close([*outs, *grads], [want, *want_grads], f"{name} of {program}", 1e-4)


@hypothesis.settings(max_examples=5, derandomize=True)
@given(layers(), st.integers(1, 4), st.integers(1, 6), st.integers(0, 99))
def test_any_legal_order_gives_the_same_bits(layer, rows, cols, seed):
    """Schedules, workers and interleavings change nothing in the output and the gradients, bit by bit."""
    args, cotangent = layer.arguments(seed), layer.cotangent(seed)

    def bits(signal, order, machine, policy):
        f = stages(rows=rows, cols=cols, signal=signal, order=order, machine=machine, policy=policy)["fused"](hpmoe.moe_ffn)
        outs, grads = run_spmd(f, layer.ep, args, [cotangent], layer.num_tokens)
        return [a.tobytes() for a in (*outs, *grads)]

    want = bits("tile", "ratr", cpu(1), "stage_order")
    for signal, order, workers, policy in (("tile", "sequential", 3, "round_robin"), ("expert", "ratr", 2, "critical_path"),
                                           ("peer", "ratr", 2, random_policy(seed)),
                                           ("tile", "ratr", 4, random_policy(seed + 1))):
        assert bits(signal, order, cpu(workers), policy) == want, (signal, order, workers)

    queued = stages(rows=rows, cols=cols, policy=random_policy(seed))["queues"](hpmoe.moe_ffn)
    flow = queued.lower(*(ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in args), mesh=Mesh(layer.ep))
    inputs = [[a[r] for a in args] for r in range(layer.ep)]
    results = [interpret(flow, inputs, layer.num_tokens, seed=s) for s in (None, 1, 2, 3)]
    assert len({b"".join(np.asarray(o[0]).tobytes() for o in result) for result in results}) == 1


def test_what_is_known_of_a_stage_is_data():
    """Each transform wraps a function once more; its description is one list that is never changed."""
    tiled = tile_partition(hpmoe.moe_ffn, rows=8)
    staged, inner = hpmoe.overlap_comm(tiled).staged, tiled.staged
    assert (staged.function, list(map(str, staged.steps))) == (hpmoe.moe_ffn, [
        "tile_partition(rows=8)", "overlap_comm(order=ratr, signal=tile)"])
    assert (inner.steps, staged.level, inner.level) == (staged.steps[:1], "tiles", "tiles")
    for field in ("function", "stages"):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(staged, field, ())


def test_chain_of_none_is_the_identity_and_of_one_is_that_one():
    x = ShapeDtypeStruct((5, 6), "float32")
    assert chain()(hpmoe.swiglu) is hpmoe.swiglu
    assert str(chain(tile_partition)(hpmoe.swiglu).lower(x)) == str(tile_partition(hpmoe.swiglu).lower(x))
    one = chain(tile_partition, chain(hpmoe.overlap_comm, hpmoe.assign_queues))(hpmoe.swiglu)
    two = hpmoe.assign_queues(hpmoe.overlap_comm(tile_partition(hpmoe.swiglu)))
    assert str(one.lower(x)) == str(two.lower(x))


