"""assert_same: what a transform does wrong is found, wherever it is wrong, and what is right passes."""

import dataclasses
import re

import mindspore as ms
import numpy as np
import pytest
from mindspore import mint
from value_changes import changing

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, VerifyError, chain, moe_ffn, overlap_comm, tile_partition
from hpmoe.rewriting import Builder, map_equations, primitives, rebuild
from hpmoe.runtime.transform import shown_transform
from hpmoe.testing import assert_same

MESH = Mesh(2)
AVALS = [ShapeDtypeStruct(*a) for a in (((5, 4), "float32"), ((5, 2), "int32"), ((5, 2), "float32"), ((2, 4, 6), "float32"),
                            ((2, 3, 4), "float32"))]
ONE_EXPERT_A_RANK = [ShapeDtypeStruct(*a) for a in (((5, 4), "float32"), ((5, 1), "int32"), ((5, 1), "float32"),
                                        ((1, 4, 6), "float32"), ((1, 3, 4), "float32"))]
EMULATOR = chain(tile_partition(rows=2, cols=16, machine=hpmoe.machines.ascend_a3.replace(num_aic=1, num_aiv=2)),
                 overlap_comm,
             hpmoe.assign_queues, hpmoe.fuse_persistent(target="ascend-emulator"))


def two_results(x, ids, weights, up, down):
    return {"hidden": moe_ffn(x, ids, weights, up, down), "scores": mint.tanh(x)}


def failure(transform, f=moe_ffn, avals=AVALS, mesh=MESH, **options):
    with pytest.raises(AssertionError) as caught:
        assert_same(transform, f, avals, mesh, **{"orders": 1, **options})
    return str(caught.value)


def after(primitive, change, passes=None):
    """A transform that puts `change(builder, output)` in the place of what equations of a primitive compute."""
    def planted(program):
        def rule(builder, eqn):
            if eqn.primitive is primitive:
                return [change(builder, builder.keep(eqn), eqn)]
        return map_equations(program, rule)
    return hpmoe.transform(requires="program", passes=passes)(planted)


def doubled(builder, x, eqn=None):
    return builder.add(primitives.mul, x, 2.0)


@hpmoe.transform(requires="program", passes="both")
def double(program):
    """Computes the same bits: twice what is combined, halved."""
    def rule(builder, eqn):
        if eqn.primitive is primitives.combine:
            return [builder.add(primitives.mul, doubled(builder, builder.keep(eqn)), 0.5)]
    return map_equations(program, rule)


def negative(builder, x, eqn=None):
    return builder.add(primitives.neg, x)


# What is right.

@pytest.mark.parametrize("transform", [
    chain(), hpmoe.send_rows(scheme="deduplicated"), hpmoe.assign_queues(policy="round_robin"), hpmoe.launch_kernels,
    hpmoe.save_for_backward(policy="recompute_swiglu"), hpmoe.fuse_persistent,
    hpmoe.replicate_experts(loads=[9, 1, 1, 1]), chain(tile_partition(rows=2), overlap_comm, hpmoe.assign_queues),
    lambda f: tile_partition(f, rows=3), EMULATOR], ids=shown_transform)
def test_transforms_of_every_level_pass(transform):
    assert_same(transform, moe_ffn, AVALS, MESH, orders=1)


def test_main_gradients_grow_by_the_gradient():
    mains = {"down_weight": ms.Tensor(np.full((2, 2, 3, 4), 3.0), ms.float32)}
    assert_same(hpmoe.accumulate_grads(into=mains), moe_ffn, AVALS, MESH, orders=1)
    assert (mains["down_weight"].asnumpy() != 3.0).any()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_held_to_its_own_roundings(dtype):
    half = [ShapeDtypeStruct(a.shape, dtype) if a.dtype == "float32" else a for a in AVALS]
    assert_same(overlap_comm, moe_ffn, half, MESH, orders=1)
    assert "output of rank 0 differs" in failure(after(primitives.combine, lambda b, x, e: b.add(primitives.mul, x, 1.25)),
                                                 avals=half)


def closing_over(weight):
    return lambda x: mint.tanh(x @ weight)


@pytest.mark.parametrize("f, avals, mesh", [
    (lambda x: x * x, [ShapeDtypeStruct((3, 2), "float32")], None),
    (lambda x, by: x * by, [ShapeDtypeStruct((3, 2), "float32"), 3.0], Mesh(1)),
    (lambda params: params["x"] @ params["w"],
     [{"x": ShapeDtypeStruct((3, 2), "float32"), "w": ShapeDtypeStruct((2, 5), "float32")}], MESH),
    (closing_over(ms.Tensor(np.ones((2, 4)), ms.float32)), [ShapeDtypeStruct((3, 2), "float32")], MESH),
    (lambda x: x > 0, [ShapeDtypeStruct((3, 2), "float32")], None),
    (lambda *a: moe_ffn(*a, capacity_factor=0.5, drop_policy="probs", return_drop_counts=True), AVALS, MESH),
    (lambda *a: moe_ffn(*a, capacity_factor=2.0), AVALS, MESH),
    (two_results, AVALS, MESH)])
def test_functions_of_any_arguments_and_results_pass(f, avals, mesh):
    assert_same(chain(), f, avals, mesh, orders=1)


def test_a_function_without_gradient_is_compared_forward():
    x = ShapeDtypeStruct((4, 3), "float32")
    assert_same(tile_partition(rows=2), hpmoe.swiglu, [ShapeDtypeStruct((4, 2), "float32")], grads=False, orders=1)
    assert_same(tile_partition(rows=2), lambda x: mint.floor(x), [x], orders=1)


# What is planted.

def test_doubled_rows_are_found_wherever_gradients_are_taken():
    for passes in (None, "both"):
        text = failure(after(primitives.dispatch, doubled, passes))
        assert re.match(r"planted: output of rank 0 differs first at \[0, 0\]: \S+ by the kernel; it must be \S+\n", text)
        assert "routing='uniform', seed=0" in text and "20 of 20 elements differ" in text


def test_a_gradient_alone_is_named():
    assert "planted: gradient of hidden_states of rank 0 differs first at [0, 0]" in failure(
        after(primitives.combine, negative, "backward"))
    assert_same(after(primitives.combine, negative, "backward"), moe_ffn, AVALS, MESH, grads=False, orders=1)

    @hpmoe.transform(requires="program", passes="backward")
    def loses_the_last(program):
        builder = Builder()
        for eqn in program.equations:
            builder.keep(eqn)
        return program.replace(outputs=(*program.outputs[:-1], doubled(builder, program.outputs[-1])),
                               equations=tuple(builder.equations))
    assert "loses_the_last: gradient of down_weight of rank 0" in failure(loses_the_last)


def test_a_backward_pass_that_does_not_follow_is_named():
    for passes in ("forward", "both"):
        text = failure(chain(hpmoe.send_rows(scheme="deduplicated"), changing("relu_squared", passes), double),
                       reference=of_relu_squared)
        assert text.startswith("chain(send_rows(scheme=deduplicated), relu_squared, double): gradient of hidden_states of "
                               "rank 0 differs")
        assert re.search(r"\n  relu_squared: its backward pass is not the gradient of its forward pass: along a random "
                         r"direction gradient of hidden_states gives \S+, and differences of the forward pass \S+\n", text)
    assert "its backward pass" not in failure(after(primitives.combine, negative))


def test_half_precision_hides_no_small_mismatch():
    """It is less than a rounding of bfloat16 for each equation, and is found by Programs in float64."""
    half = [ShapeDtypeStruct(a.shape, "bfloat16") if a.dtype == "float32" else a for a in AVALS]
    slightly = after(primitives.combine, lambda b, x, e: b.add(primitives.mul, x, 1.002), "backward")
    text = failure(slightly, avals=half)
    assert "gradient of hidden_states of rank 0 differs" in text and "by its Programs in float64" in text
    assert "planted: its backward pass is not the gradient of its forward pass" in text


def of_relu_squared(x, ids, weights, up, down):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=up.shape[0])
    gate, value = mint.chunk(hpmoe.grouped_matmul(rows, up, route), 2, -1)
    act = mint.square(mint.nn.functional.relu(gate)) * value
    return hpmoe.combine(hpmoe.grouped_matmul(act, down, route), route, weights)


def test_a_reference_of_ones_own():
    half = [ShapeDtypeStruct(a.shape, "bfloat16") if a.dtype == "float32" else a for a in AVALS]
    for avals in (AVALS, half):
        assert_same(changing("relu_squared"), moe_ffn, avals, MESH, orders=1, reference=of_relu_squared)
    assert "output of rank 0 differs" in failure(changing("scale_rows"), reference=of_relu_squared)
    assert "gradient of" in failure(chain(changing("relu_squared"), after(primitives.combine, negative, "backward")),
                                    reference=of_relu_squared)


def test_one_of_several_results_is_named():
    assert "planted: output['scores'] of rank 0 differs" in failure(after(primitives.tanh, negative, "forward"), two_results)


def test_a_task_that_is_lost_is_refused_or_found():
    @hpmoe.transform(requires="tiles")
    def lost(flow):
        op = flow.ops[-1]
        return rebuild(flow, (*flow.ops[:-1], op.replace(domain=dataclasses.replace(op.domain, size=op.domain.size - 1))))
    with pytest.raises(VerifyError, match="unit"):
        assert_same(lost, moe_ffn, AVALS, MESH, orders=1)


def test_another_operation_of_a_task_is_found():
    @hpmoe.transform(requires="tiles")
    def halves_swapped(flow):
        def swapped(op):
            return op.replace(operands=(op.operands[0], *op.operands[:0:-1])) if op.opcode == "SWIGLU" else op
        return rebuild(flow, tuple(map(swapped, flow.ops)))
    assert "halves_swapped: output of rank 0 differs" in failure(halves_swapped)


@hpmoe.transform(requires="program", passes="forward")
def wrong_on_empty_ranks(program):
    """Adds 1 to the result of a rank that receives nothing."""
    return _where_received(program, 0.0)


@hpmoe.transform(requires="program", passes="forward")
def wrong_where_one_takes_all(program):
    """Adds 1 to the result of a rank whose expert receives every token of both ranks."""
    return _where_received(program, 10.0)


def _where_received(program, number):
    def rule(builder, eqn):
        if eqn.primitive is not primitives.combine:
            return None
        rows, route, _ = eqn.inputs
        ones = builder.add(primitives.exp, builder.add(primitives.mul, rows, 0.0))
        counts = builder.add(primitives.expert_sum, ones, route)
        wrong = builder.add(primitives.select, builder.add(primitives.equal, counts, number), 1.0, 0.0)
        return [builder.add(primitives.add, builder.keep(eqn), wrong)]
    return map_equations(program, rule)


@pytest.mark.parametrize("transform, routings", [
    (wrong_on_empty_ranks, ["uniform", "empty_ranks"]), (wrong_where_one_takes_all, ["uniform", "one_expert"])])
def test_what_is_wrong_on_one_routing_alone_is_found_there(transform, routings):
    text = failure(transform, avals=ONE_EXPERT_A_RANK, routings=routings)
    assert f"routing='{routings[1]}'" in text and "by the kernel" in text
    assert "output of rank" in failure(transform, avals=ONE_EXPERT_A_RANK)
    assert_same(transform, moe_ffn, ONE_EXPERT_A_RANK, MESH, orders=1, routings=["uniform"])


def test_a_tolerance_of_ones_own():
    slightly = after(primitives.combine, lambda b, x, e: b.add(primitives.mul, x, 1.001), "forward")
    assert "output of rank 0" in failure(slightly)
    assert_same(slightly, moe_ffn, AVALS, MESH, orders=1, tolerance=0.01)


def test_routings_of_ones_own_and_refusals():
    def last_rank(rng, ep_size, num_tokens, top_k, num_experts):
        return np.tile(np.arange(num_experts - top_k, num_experts, dtype=np.int32), (ep_size, num_tokens, 1))
    text = failure(after(primitives.dispatch, doubled), routings=[last_rank])
    assert "routing=last_rank" in text
    with pytest.raises(hpmoe.ArgumentError, match="its capacity"):
        assert_same(chain(), lambda *a: moe_ffn(*a, capacity_factor=0.1), AVALS, MESH)
