"""More of error_cases.py: transforms that are told, given or make what they cannot take."""

import dataclasses

import mindspore as ms
import numpy as np
from error_cases import IDS, X, array, cases, doubled, numbers, two_lengths
from helpers import Layer, stages, tensors
from mindspore import mint

import hpmoe
from hpmoe import (
    Mesh,
    ShapeDtypeStruct,
    accumulate_grads,
    assign_queues,
    autotune,
    chain,
    combine,
    cpu,
    dispatch,
    grouped_matmul,
    guard_values,
    limit_rows,
    moe_ffn,
    quantize_rows,
    replicate_experts,
    save_for_backward,
    select_grads,
    send_rows,
    spmd,
    swiglu,
    tile_partition,
    trace,
)
from hpmoe.rewriting import expected_rows, primitives, requeue
from hpmoe.routing.balance import place_replicas
from hpmoe.tuning import compare_plans


def _with_bias(x, ids, w, bias):
    rows, route = dispatch(x, ids, num_local_experts=2)
    return combine(grouped_matmul(rows, w, route, bias=bias), route)


def _without_bias(x, ids, w):
    rows, route = dispatch(x, ids, num_local_experts=2)
    return combine(grouped_matmul(rows, w, route), route)


def _aligned(x, ids):
    return hpmoe.combine(*hpmoe.dispatch(x, ids, num_local_experts=2, expert_alignment=8))


def _raises(*args):
    raise RuntimeError("no idea")


def _lowered(f, *avals, **options):
    return lambda: tile_partition(f).lower(*(avals or (X,)), **options)


@hpmoe.transform
def returns_nothing(program):
    return None


@hpmoe.transform
def loses_an_output(program):
    return program.replace(outputs=())


@hpmoe.transform
def repeats_an_equation(program):
    return program.replace(equations=program.equations * 2)


@hpmoe.transform
def forgets_an_equation(program):
    return program.replace(equations=program.equations[1:])


@hpmoe.transform
def loses_a_name(program):
    return program.replace(input_names=())


@hpmoe.transform
def reshapes_an_output(program):
    (eqn,) = program.equations
    var = hpmoe.ir.program.Var(ShapeDtypeStruct((3, 4), "float32"))
    return program.replace(equations=(dataclasses.replace(eqn, outputs=(var,)),))


@hpmoe.transform
def returns_another(program):
    return program.replace(outputs=(hpmoe.ir.program.Var(X),))


def _mapped(rule):
    @hpmoe.transform(requires="program")
    def mine(program):
        return hpmoe.rewriting.map_equations(program, rule)
    return mine(doubled).lower(X)


def _mapped_inputs(change):
    @hpmoe.transform(requires="program")
    def mine(program):
        inputs = change(program.inputs)
        return program.replace(inputs=inputs, input_names=tuple(f"x{i}" for i in range(len(inputs))))
    return mine(doubled).lower(X)


@hpmoe.transform(requires="program")
def transposes_its_output(program):
    builder = hpmoe.rewriting.Builder()
    for eqn in program.equations:
        builder.keep(eqn)
    out = builder.add(primitives.transpose, program.outputs[0], axes=(1, 0))
    return program.replace(equations=tuple(builder.equations), outputs=(out,))


@hpmoe.transform(requires="tiles")
def widens_its_output(flow):
    *others, last = flow.buffers
    return flow.replace(buffers=(*others, dataclasses.replace(last, dtype="float64")))


def _three_dimensions(x, ids):
    rows, route = dispatch(x, ids, num_local_experts=4)
    return combine(mint.exp(rows.reshape(1, -1, 3)).reshape(-1, 3), route)


SHARED = array(3, 3)


def _shared_name():
    return trace(lambda x: x @ SHARED, X).input_names[1]


def _policy(*answers):
    return lambda: assign_queues(tile_partition(doubled), policy=answers[0], machine=cpu(1)).lower(X)


def _priority(answer):
    tiles = tile_partition(lambda x: (x * 2.0).sum(-1), rows=2)
    return lambda: assign_queues(tiles, priority=answer, machine=cpu(1)).lower(X)


def _tiles():
    return tile_partition(doubled, rows=2).lower(X)


def _two_ranks():
    return spmd(stages(machine=cpu(1))["queues"](moe_ffn), Mesh(2)).lower(*tensors(Layer().arguments()))


cases("transforms", {
    "an unknown option": lambda: tile_partition(moe_ffn, row=3),
    "an unknown option alone": lambda: tile_partition(row=3),
    "an option without its name": lambda: tile_partition(moe_ffn, 64),
    "an option that is missing": lambda: accumulate_grads()(moe_ffn),
    "no function": lambda: tile_partition(3),
    "chain of a number": lambda: chain(3),
    "chain on a name": lambda: chain(tile_partition, machine="ascend_a3"),
    "chain called with what its function takes": lambda: chain(tile_partition)(np.zeros(2), np.zeros(2)),
    "spmd twice": lambda: spmd(spmd(moe_ffn, Mesh(2)), Mesh(2)),
    "spmd inside": lambda: tile_partition(spmd(moe_ffn, Mesh(2))),
    "a rewrite that is no function": lambda: hpmoe.transform(3),
    "other direction": _lowered(doubled, direction="up"),
    "returns nothing": lambda: returns_nothing(doubled).lower(X),
    "loses an output": lambda: loses_an_output(doubled).lower(X),
    "repeats an equation": lambda: repeats_an_equation(doubled).lower(X),
    "forgets an equation": lambda: forgets_an_equation(lambda x: x * 2.0 + 1.0).lower(X),
    "loses a name": lambda: loses_a_name(doubled).lower(X),
    "policy raises": _policy(_raises),
    "policy loses a task": _policy(lambda flow, machine: [np.arange(1, flow.num_tasks)]),
    "priority is a word": lambda: assign_queues(tile_partition(doubled), priority="largest"),
    "priority raises": _priority(_raises),
    "priority of fewer tasks": _priority(lambda flow: [1.0]),
    "priority of nan": _priority(lambda flow: np.full(flow.num_tasks, np.nan)),
    "requeue a word": lambda: requeue("flow", []),
    "requeue for a word": lambda: requeue(_tiles(), [], machine="cpu"),
    "requeue nothing": lambda: requeue(_tiles(), None),
    "requeue into nothing": lambda: requeue(_tiles(), [], machine=cpu(1)),
    "requeue a task twice": lambda: requeue(_tiles(), [[0, 1, 0], [1]], machine=cpu(2)),
    "requeue across ranks": lambda: requeue(_two_ranks(), [np.arange(_two_ranks().num_tasks)[::-1]]),
    "expected rows of a word": lambda: expected_rows("flow"),
    "combine order of one rank": lambda: spmd(stages(combine_order=lambda r, n: [0] * n)["overlap"](moe_ffn), Mesh(2)).lower(
        *tensors(Layer().arguments())),
    "order raises": lambda: spmd(stages(order=_raises)["overlap"](moe_ffn), Mesh(2)).lower(*tensors(Layer().arguments())),
    "order of one rank": lambda: spmd(stages(order=lambda r, n: [0] * n)["overlap"](moe_ffn), Mesh(2)).lower(
        *tensors(Layer().arguments())),
    "save policy raises": lambda: save_for_backward(lambda x: mint.exp(x) * x, policy=_raises).lower(
        X, direction="backward"),
    "save policy of numbers": lambda: save_for_backward(lambda x: mint.exp(x) * x, policy=lambda eqn: 1).lower(
        X, direction="backward"),
    "guard nothing": lambda: guard_values(moe_ffn, of=()),
    "guard below infinity": lambda: guard_values(moe_ffn, high=float("inf")),
    "guard an empty range": lambda: guard_values(moe_ffn, low=1.0, high=-1.0),
    "guard with another fill": lambda: guard_values(moe_ffn, fill="median"),
    "guard and count into a list": lambda: guard_values(moe_ffn, counts=[]),
    "guard no argument": lambda: guard_values(lambda x: x, of=("y",)).lower(ShapeDtypeStruct((3, 3), "float32")),
    "count one number": lambda: trace(lambda x: primitives.count_outside(x, 0.0, 1.0), ShapeDtypeStruct((), "float32")),
    "count and fill one number": lambda: trace(lambda x: primitives.count_and_fill(x, 0.0, 1.0, fill="zero"),
                                               ShapeDtypeStruct((), "float32")),
    "fill rows by one number": lambda: trace(lambda x: primitives.fill_outside(1.0, x, fill="zero"),
                                             ShapeDtypeStruct((3, 3), "float32")),
    "guard what is not a number": lambda: stages()["fused"](guard_values(lambda x: x * 1.0))(
        ms.Tensor([[1.0], [float("nan")]])),
    "select no gradient": lambda: select_grads(moe_ffn, of=()),
    "select the gradient of no argument": lambda: select_grads(lambda x, w: x @ w, of=("x", "v")).lower(*[
        ShapeDtypeStruct((3, 3), "float32")] * 2),
    "select other gradients than are accumulated": lambda: select_grads(
        accumulate_grads(lambda x, w: x @ w,
                         into={"w": array(3, 3)}), of=("x",)).lower(*[ShapeDtypeStruct((3, 3), "float32")] * 2),
    "accumulate nothing": lambda: accumulate_grads(moe_ffn, into={}),
    "accumulate into a number": lambda: accumulate_grads(moe_ffn, into={"w": 3}),
    "accumulate for no argument": lambda: accumulate_grads(lambda x, w: x @ w, into={"v": array(3, 3)}).lower(
        X, ShapeDtypeStruct((3, 3), "float32"), direction="backward"),
    "accumulate into one tensor twice": lambda: (lambda main: accumulate_grads(lambda x, a, b: x @ a + x @ b, into={
        "a": main, "b": main}).lower(*[ShapeDtypeStruct((3, 3), "float32")] * 3))(array(3, 3)),
    "accumulate into a transposed tensor": lambda: accumulate_grads(
        lambda x, w: x @ w, into={"w": mint.zeros((2, 3)).T}).lower(X, ShapeDtypeStruct((3, 2), "float32"),
                                                                    direction="backward"),
    "accumulate into the weight": lambda: (lambda w: accumulate_grads(lambda x, w: x @ w, into={"w": w})(
        array(4, 3), w))(array(3, 3)),
    "accumulate into another shape": lambda: accumulate_grads(lambda x, w: x @ w, into={"w": array(2, 3)})(
        array(4, 3), array(3, 3)),
    "nothing to send once": lambda: send_rows(doubled, scheme="deduplicated").lower(X),
    "nothing to send": lambda: send_rows(doubled, machine=hpmoe.machines.ascend_a2).lower(X),
    "another scheme": lambda: send_rows(moe_ffn, scheme="node"),
    "tune for a name": lambda: autotune(moe_ffn, machine="ascend_a2"),
    "tune for a negative budget": lambda: autotune(moe_ffn, budget=-1),
    "tune with a routing of no ids": lambda: autotune(moe_ffn, topk_ids=2.0),
    "send on no machine": lambda: send_rows(moe_ffn, machine="ascend_a2"),
    "padding to relay": lambda: send_rows(_aligned, scheme="hierarchical").lower(X, ShapeDtypeStruct((4, 1), "int32")),
    "nothing to relay": lambda: send_rows(doubled, scheme="hierarchical").lower(X),
    "nothing to quantise": lambda: quantize_rows(doubled).lower(X),
    "quantise to another dtype": lambda: quantize_rows(moe_ffn, dtype="int4"),
    "a scale of no columns": lambda: quantize_rows(moe_ffn, scale=0),
    "a scale of mxfp8 for other columns": lambda: quantize_rows(moe_ffn, dtype="mxfp8", scale=16),
    "quantise what combine": lambda: quantize_rows(moe_ffn, combine="int8"),
    "another quantised backward": lambda: quantize_rows(moe_ffn, backward="int8"),
    "quantise to an unknown dtype": lambda: trace(lambda x: primitives.quantize(x, dtype="int4"),
                                                  ShapeDtypeStruct((3, 3), "float32")),
    "quantise by no block": lambda: trace(lambda x: primitives.quantize(x, dtype="int8", block=-1),
                                          ShapeDtypeStruct((3, 3), "float32")),
    "dequantise to integers": lambda: trace(lambda x: primitives.dequantize(x, dtype="int8", to="int8"),
                                            ShapeDtypeStruct((3, 8), "uint8")),
    "quantise ids": lambda: trace(lambda x: primitives.quantize(x, dtype="int8"), ShapeDtypeStruct((3, 3), "int32")),
    "dequantise rows that are none": lambda: trace(lambda x: primitives.dequantize(x, dtype="int8", to="float32"),
                                                   ShapeDtypeStruct((3, 3), "uint8")),
    "a least load of words": lambda: replicate_experts(moe_ffn, loads=[1, 1], min_load="all"),
    "loads of words": lambda: replicate_experts(moe_ffn, loads="many"),
    "a load that is negative": lambda: replicate_experts(moe_ffn, loads=[1, -2]),
    "loads of another number of experts": lambda: spmd(replicate_experts(moe_ffn, loads=[1, 2]), Mesh(2)).lower(
        *tensors(Layer().arguments())),
    "loads that do not divide": lambda: place_replicas([1, 2, 3], ep_size=2),
    "room of no number": lambda: limit_rows(moe_ffn, rank_capacity_factor=0),
    "room of words": lambda: limit_rows(rank_capacity_factor="1.5"),
    "room without a dispatch": lambda: limit_rows(doubled, rank_capacity_factor=1.5).lower(X),
    "rows without room": lambda: spmd(limit_rows(moe_ffn, rank_capacity_factor=1.25), Mesh(2))(
        *tensors(Layer(routing="one rank").arguments())),
    "copies without a dispatch": lambda: replicate_experts(doubled, loads=[1, 2]).lower(X),
    "copies of biases": lambda: replicate_experts(_with_bias, loads=[9, 1, 1, 1]).lower(
        X, IDS, ShapeDtypeStruct((2, 3, 3), "float32"), ShapeDtypeStruct((2, 3), "float32"), mesh=Mesh(2)),
    "second derivative with copies": lambda: hpmoe.rewriting.vjp(replicate_experts(_without_bias, loads=[9, 1, 1, 1]).lower(
        X, IDS, ShapeDtypeStruct((2, 3, 3), "float32"), mesh=Mesh(2), direction="backward")),
    "launch_kernels after overlap_comm": lambda: spmd(hpmoe.launch_kernels(stages()["overlap"](moe_ffn)), Mesh(2)).lower(
        *tensors(Layer().arguments())),
    "memory of a plain function": lambda: hpmoe.transform(lambda ir: ir)(doubled).memory(X),
    "two numbers of tokens": _lowered(two_lengths, X, IDS, ShapeDtypeStruct((6, 3), "float32"),
                                      ShapeDtypeStruct((6, 2), "int32")),
    "doubles": _lowered(doubled, ShapeDtypeStruct((4, 3), "float64")),
    "more rows than 32 bits count": _lowered(doubled, ShapeDtypeStruct((2**20, 2**12, 4), "float32")),
    "more columns than 32 bits count": _lowered(doubled, ShapeDtypeStruct((1, 2**31), "float32")),
    "more tiles than a word tells apart": lambda: tile_partition(doubled,
                                                                 rows=8).lower(ShapeDtypeStruct((2**30, 4), "float32")),
    "more ranks than one orders": lambda: tile_partition(doubled).lower(X, mesh=Mesh(2**13)),
    "no columns": _lowered(doubled, ShapeDtypeStruct((4, 0), "float32")),
    "a cast to int8": _lowered(lambda x: x.astype(ms.int8)),
    "a large number among integers": _lowered(lambda x, ids: ids + 2**30, X, IDS),
    "a broadcast across tokens": _lowered(lambda x, y: x.reshape(2, 4, 2) + y, ShapeDtypeStruct((4, 4), "float32"),
                                          ShapeDtypeStruct((4, 2), "float32")),
    "a scatter": lambda: tile_partition(lambda x, i: x[i]).lower(X, ShapeDtypeStruct((2,), "int32"), direction="backward"),
    "a sum over the middle": _lowered(lambda x: x.sum(1), ShapeDtypeStruct((2, 4, 3), "float32")),
    "a broadcast of some rows": _lowered(lambda x, y: x + y, ShapeDtypeStruct((2, 4, 3), "float32"), X),
    "a column beside a vector": _lowered(lambda first, x, v: x.sum(-1) + v, X, ShapeDtypeStruct((5, 3), "float32"),
                                         ShapeDtypeStruct((5,), "float32")),
    "the maximum of received rows": _lowered(lambda x, ids: mint.amax(dispatch(x, ids, num_local_experts=4)[0].sum(-1), 0),
                                             X, IDS),
    "swiglu of a vector": _lowered(swiglu, ShapeDtypeStruct((4,), "float32")),
    "received rows of three dimensions": _lowered(_three_dimensions, X, IDS),
    "save after a transform of passes": lambda: chain(
        limit_rows(rank_capacity_factor=2.0), send_rows(scheme="direct"),
        save_for_backward(policy="dispatched_rows"))(moe_ffn),
    "a backward program": lambda: limit_rows.apply_to(hpmoe.rewriting.vjp(trace(doubled, X)), rank_capacity_factor=2.0),
    "another dtype by a rule": lambda: _mapped(lambda b, eqn: [b.add(primitives.cast, b.keep(eqn), dtype="float16")]),
    "operands that do not fit in a rule": lambda: _mapped(
        lambda b, eqn: [b.add(primitives.matmul, *eqn.inputs[:1] * 2)]),
    "a transformed function in a traced one": lambda: tile_partition(
        lambda x: hpmoe.guard_values(doubled)(x) + 1.0).lower(X),
    "other inputs": lambda: _mapped_inputs(lambda inputs: (*inputs, hpmoe.rewriting.Var(X))),
    "another shape of what is returned": lambda: transposes_its_output(doubled).lower(X),
    "another shape of what tiles return": lambda: widens_its_output(tile_partition(doubled)).lower(X),
    "another shape of output": lambda: reshapes_an_output(doubled).lower(X),
    "an output from nowhere": lambda: returns_another(doubled).lower(X),
    "second derivative": lambda: ms.grad(ms.grad(lambda x: (tile_partition(doubled)(x) ** 2).sum()))(array(4, 3)),
    "second derivative of a program": lambda: hpmoe.rewriting.vjp(hpmoe.rewriting.vjp(trace(swiglu,
                                                                                  ShapeDtypeStruct((4, 2), "float32")))),
    "accumulate what is shared": lambda: spmd(accumulate_grads(lambda x: x @ SHARED, into={_shared_name(): array(3, 3)}),
                                              Mesh(2))(array(2, 4, 3)),
    "a gather of columns": _lowered(lambda x, i: x[i], ShapeDtypeStruct((4, 3), "float32"),
                                    ShapeDtypeStruct((2, 2), "int64")),
    "received rows as a result": lambda: spmd(lambda x, ids: dispatch(x, ids, num_local_experts=2)[0], Mesh(2))(
        array(2, 4, 3), numbers(*[[[0], [1], [2], [3]]] * 2)),
    "tune what is tiled": lambda: autotune(tile_partition(doubled)),
    "tune twice": lambda: autotune(autotune(doubled)),
    "tune with a routing of one rank": lambda: autotune(moe_ffn, topk_ids=[[[0, 1]]]).lower(
        *(ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in Layer().arguments()), mesh=Mesh(2)),
    "tune another setting": lambda: compare_plans(trace(doubled, X), fixed={"depth": 2}),
    "tune another scheme": lambda: compare_plans(trace(doubled, X), fixed={"scheme": "other"}),
    "tune a tile of automatic rows": lambda: compare_plans(trace(doubled, X), fixed={"rows": "auto"}),
    "tune a policy of code": lambda: compare_plans(trace(doubled, X), fixed={"policy": len}),
    "lower without other arguments": lambda: spmd(moe_ffn, Mesh(2)).lower(3),
})
