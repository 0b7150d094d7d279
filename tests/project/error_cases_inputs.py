"""Error cases of inputs: sizes, ids, shapes instead of tensors, notifications."""

import dataclasses

import mindspore as ms
import numpy as np
from error_cases import IDS, X, array, cases, doubled, numbers
from helpers import Layer, fused, tensors
from mindspore import mint

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, combine, dispatch, moe_ffn, overlap_comm, spmd, tile_partition, trace
from hpmoe.ir.program import map_equations
from hpmoe.machines.machine import Body
from hpmoe.primitives.elementwise import add
from hpmoe.primitives.route import make_route
from hpmoe.tiling.rebuild import rebuild

TOKEN_IDS = numbers(*[(0, 1)] * 4)
PROGRAM, FLOW, ROWS = trace(doubled, X), tile_partition(doubled).lower(X), [[np.ones((4, 3), np.float32)]]


def routed(x, ids):
    return combine(*dispatch(x, ids, num_local_experts=4))


@hpmoe.transform(requires="program", passes="both")
def with_other_ids(program, *, which=0):
    """Adds 1 to the ids of a route, or to its weights, which is too late."""
    def rule(builder, eqn):
        if eqn.primitive is make_route:
            inputs = list(eqn.inputs)
            inputs[which] = builder.add(add, inputs[which], 1)
            builder.keep(eqn.replace(inputs=tuple(inputs)))
            return eqn.outputs
        return None
    return map_equations(program, rule)


def dropping(x, ids, w):
    return combine(*dispatch(x, ids, num_local_experts=4, capacity_factor=0.5, drop_policy="probs", topk_weights=w))


cases("ids", {
    "that are received": lambda: trace(lambda x, ids: routed(x, dispatch(ids, ids, num_local_experts=4)[0]), X, IDS),
    "that a later transform computes": lambda: tile_partition(with_other_ids(routed)).lower(X, IDS),
    "whose weights a later transform computes": lambda: tile_partition(with_other_ids(dropping, which=1)).lower(
        X, IDS, ShapeDtypeStruct((4, 2), "float32")),
})
cases("a shape for a tensor", {
    "in a trace": lambda: trace(mint.nn.functional.silu, (8, 6)),
    "of a staged function": lambda: tile_partition(lambda x: x.sum()).lower((8, 6)),
    "of a call": lambda: fused()(lambda x, w: x @ w.T)(array(4, 3), (5, 3)),
})
cases("a size", {
    "over 59 bits": lambda: ShapeDtypeStruct((2**62, 16), "float32"),
    "of many dimensions": lambda: ShapeDtypeStruct((1,) * 33, "float32"),
    "of a result": lambda: trace(lambda x: x.broadcast_to((2**62, 4, 3)), X),
    "of many copies": lambda: trace(lambda x: mint.tile(x, (2**31, 1)), X),
})


def _layer(tokens):
    return (ShapeDtypeStruct((tokens, 8), "float32"), ShapeDtypeStruct((tokens, 2), "int32"),
            ShapeDtypeStruct((tokens, 2), "float32"),
            ShapeDtypeStruct((4, 8, 16), "float32"), ShapeDtypeStruct((4, 8, 8), "float32"))


def _told(ops, at, params):
    return (*ops[:at], ops[at].replace(params=params), *ops[at + 1:])


def _notified(change):
    def call():
        flow = spmd(overlap_comm(tile_partition(moe_ffn), signal="peer"), Mesh(2)).lower(*tensors(Layer().arguments()))
        at = next(i for i, op in enumerate(flow.ops) if op.opcode == "NOTIFY")
        hpmoe.verify(rebuild(flow, change(flow.ops, at)))
    return call


cases("a NOTIFY", {
    "that comes twice": _notified(lambda ops, at: (*ops, ops[at])),
    "of no put": _notified(lambda ops, at: _told(ops, at, dataclasses.replace(ops[at].params, buffer=99))),
})
cases("a wrong type", {
    "swiglu": lambda: hpmoe.swiglu(None),
    "tokens": lambda: hpmoe.token_ops.permute(None, TOKEN_IDS),
    "indices": lambda: hpmoe.token_ops.permute(array(4, 3), [[0, 1]] * 4),
    "indices of no dimension": lambda: hpmoe.token_ops.permute(array(4, 3), ms.Tensor(3)),
    "permuted": lambda: hpmoe.token_ops.unpermute(X, numbers(0, 1)),
    "sorted_indices": lambda: hpmoe.token_ops.unpermute(array(2, 3), None),
    "probs": lambda: hpmoe.token_ops.unpermute(array(2, 3), numbers(0, 1), 3),
    "arrays of a rank": lambda: hpmoe.interpret(PROGRAM, [3]),
    "a number of tokens": lambda: hpmoe.interpret(PROGRAM, ROWS, num_tokens=3),
    "a number of tokens to interpret": lambda: hpmoe.interpret(FLOW, ROWS, num_tokens="a"),
    "tokens below none": lambda: hpmoe.interpret(PROGRAM, ROWS, num_tokens=[-1]),
    "a dtype": lambda: hpmoe.interpret(PROGRAM, ROWS, dtype="many"),
    "a level": lambda: hpmoe.transform(lambda ir: ir, requires=["program"]),
    "once": lambda: hpmoe.transform(lambda ir: ir, once=[]),
    "check": lambda: hpmoe.transform(lambda ir: ir, check="rows"),
    "passes": lambda: hpmoe.transform(lambda ir: ir, passes="all"),
    "passes of what makes tiles": lambda: hpmoe.transform(lambda ir: ir, requires="program", makes="tiles",
                                                          passes="forward"),
    "buffers to keep": lambda: hpmoe.interpret(FLOW, ROWS, keep="all"),
    "calibrated": lambda: hpmoe.cpu(calibrated="no"),
    "weights that are not read": lambda: dispatch(array(4, 3), TOKEN_IDS, num_local_experts=4, topk_weights="alike"),
    "rows by quantised weights": lambda: hpmoe.grouped_matmul(
        None, ms.Tensor(np.ones((4, 3, 2), np.int8)), dispatch(array(4, 3), TOKEN_IDS, num_local_experts=4)[1],
        scale=array(4, 2)),
    "rows of a trace": lambda: trace(lambda x, ids: combine(None, dispatch(x, ids, num_local_experts=4)[1]), X, IDS),
    "places that are not asked for": lambda: hpmoe.token_ops.init_routing(array(4, 3), TOKEN_IDS, expert_capacity="many"),
    "what is measured": lambda: hpmoe.measure(None),
    "a share": lambda: Body("GMM", "float32", float("nan")),
})


def _shared(gate_up, down, **options):
    return lambda: moe_ffn(array(4, 3), TOKEN_IDS, array(4, 2), array(4, 3, 4), array(4, 2, 3), gate_up, down, **options)


cases("a shared expert", {
    "of no tensor": _shared("up", array(2, 3)),
    "for other tokens": _shared(array(5, 4), array(2, 3)),
    "of two sizes": _shared(array(3, 4), array(3, 3)),
    "whose drops are counted, maybe": _shared(array(3, 4), array(2, 3), return_drop_counts="maybe"),
})
cases("ranks that are processes", {
    "as many as there are not": lambda: hpmoe.world(ep=2),
    "a number of them": lambda: hpmoe.world(ep=0),
    "shards of experts": lambda: hpmoe.world(tp=0),
    "a time to come": lambda: hpmoe.world(timeout=-1),
    "messages carried by nothing": lambda: hpmoe.world(engine="rdma"),
    "gradients of no mesh": lambda: hpmoe.all_reduce_gradients(array(2), 2),
    "gradients over nothing": lambda: hpmoe.all_reduce_gradients(array(2), Mesh(2), over="all"),
    "gradients that are none": lambda: hpmoe.all_reduce_gradients([1.0], Mesh(2)),
    "a number of tokens": lambda: spmd(doubled, hpmoe.world())(array(4, 3), num_tokens=[1]),
})
