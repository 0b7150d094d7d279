"""Small user programs that each provoke one error: name -> callable. What they raise is in golden/errors.txt.

Here calls with tensors and what is traced; transforms, options, the IR and the Ascend target have files of their own.
"""

import random
import sys

import mindspore as ms
import numpy as np
import untraceable
from helpers import Layer, fused, tensors
from mindspore import Parameter, Tensor, mint, ops

import hpmoe
from hpmoe import (
    Mesh,
    ShapeDtypeStruct,
    assign_queues,
    combine,
    cpu,
    dispatch,
    fuse_persistent,
    grouped_matmul,
    moe_ffn,
    overlap_comm,
    spmd,
    swiglu,
    tile_partition,
    trace,
)
from hpmoe.token_ops import permute, rms_norm_rows, unpermute

F = mint.nn.functional
X, IDS = ShapeDtypeStruct((4, 3), "float32"), ShapeDtypeStruct((4, 2), "int32")
PARAMETER = Parameter(Tensor(np.ones((2, 3), np.float32)), name="p")
CASES = {}


def case(f):
    """Adds a function to the cases by its name."""
    CASES[f.__name__.replace("_", " ")] = f
    return f


def cases(group, calls):
    CASES.update({f"{group}: {name}": call for name, call in calls.items()})


def array(*shape, dtype=np.float32):
    return Tensor(np.ones(shape, dtype))


def numbers(*rows, dtype=np.int32):
    return Tensor(np.array(rows, dtype))


def doubled(x):
    return x * 2.0


def under_a_profiler(call):
    sys.setprofile(lambda frame, event, arg: None)
    try:
        call()
    finally:
        sys.setprofile(None)


def two_lengths(x, ids, y, more):
    a, b = (combine(*dispatch(t, i, num_local_experts=4)) for t, i in ((x, ids), (y, more)))
    return a, b


# Calls and options that do not fit.

def repeated(ids):
    out = ids.copy()
    out[..., 1, 1] = out[..., 1, 0]
    return out


BAD_ARGUMENTS = {
    "float ids": (1, lambda a: a.astype(np.float32)),
    "int16 ids": (1, lambda a: a.astype(np.int16)),
    "ids without choices": (1, lambda a: a[:, 0]),
    "too many choices": (1, lambda a: np.zeros((4, 5), np.int32)),
    "hidden states of another rank": (0, lambda a: a[None]),
    "too few hidden states": (0, lambda a: a[:3]),
    "narrow hidden states": (0, lambda a: a[:, :3]),
    "double hidden states": (0, lambda a: a.astype(np.float64)),
    "half experts": (3, lambda a: a.astype(np.float16)),
    "weights of fewer choices": (2, lambda a: a[:, :1]),
    "double weights": (2, lambda a: a.astype(np.float64)),
    "a matrix of experts": (3, lambda a: a[0]),
    "an odd gate_up_weight": (3, lambda a: a[:, :, :5]),
    "fewer down experts": (4, lambda a: a[:2]),
    "short down weights": (4, lambda a: a[:, :2]),
}
BAD_IDS = {"repeated": repeated, "too large": lambda a: a + 2, "negative": lambda a: a - 2}
ONE = Layer(ep=1, T=4, E=3, K=2)


def changed_arguments(position, change):
    args = [a[0] for a in ONE.arguments()]
    args[position] = change(args[position])
    return tensors(args)


BAD_LENGTHS = {"too few": [1], "too many": [1, 2, 3], "negative": [-1, 2], "a number": 3, "a bool": [True, 2],
               "fractions": [1.5, 1], "too large": [5, 1]}
TILES = tile_partition(moe_ffn)
BAD_OPTIONS = {
    "rows": lambda: tile_partition(moe_ffn, rows=0),
    "cols": lambda: tile_partition(moe_ffn, cols=1.5),
    "tiles for": lambda: tile_partition(moe_ffn, machine="a3"),
    "put cols": lambda: overlap_comm(TILES, put_cols=-1),
    "order": lambda: overlap_comm(TILES, order="up"),
    "signal": lambda: overlap_comm(TILES, signal="row"),
    "machine": lambda: assign_queues(TILES, machine="cpu"),
    "policy": lambda: assign_queues(TILES, policy="best"),
    "timeout": lambda: fuse_persistent(assign_queues(TILES), timeout=0),
    "mesh": lambda: spmd(moe_ffn, 2),
    "ep_size": lambda: Mesh(0),
    "workers": lambda: cpu(0),
}
BAD_ORDERS = {
    "overlap a plain function": lambda: overlap_comm(moe_ffn),
    "assign a plain function": lambda: assign_queues(moe_ffn),
    "fuse tiles": lambda: fuse_persistent(TILES),
    "overlap queues": lambda: overlap_comm(assign_queues(TILES)),
    "assign a kernel": lambda: assign_queues(fused()(moe_ffn)),
    "tile twice": lambda: tile_partition(TILES),
    "overlap twice": lambda: overlap_comm(overlap_comm(TILES)),
}
MIXED = {
    "softmax over rows": lambda x: mint.softmax(x, 0),
    "transpose": lambda x: x.T * 2.0,
    "maximum over rows": lambda x: mint.amax(x, dim=0),
    "some rows": lambda x: x[:2] * 2.0,
    "joined rows": lambda x: mint.cat([x, x]),
}


def _argument(change, position, f):
    return lambda: f(*changed_arguments(position, change))


def _ids(change):
    args = [a[0] for a in ONE.arguments()]
    ids = np.int32([[0, 1], [2, 0], [1, 2], [0, 2], [1, 0]])[:len(args[1])]
    return lambda: fuse_persistent(assign_queues(tile_partition(moe_ffn)))(*tensors([args[0], change(ids), *args[2:]]))


cases("moe_ffn called", {name: _argument(change, i, moe_ffn) for name, (i, change) in BAD_ARGUMENTS.items()})
cases("moe_ffn traced", {name: _argument(change, i, TILES) for name, (i, change) in BAD_ARGUMENTS.items()})
cases("ids", {name: _ids(change) for name, change in BAD_IDS.items()})
cases("num_tokens", {name: lambda n=n: spmd(moe_ffn, Mesh(2))(*tensors(Layer(ep=2, T=4).arguments()), num_tokens=n)
                     for name, n in BAD_LENGTHS.items()})
cases("padding", {name: lambda f=f: spmd(f, Mesh(2))(array(2, 4, 3), array(2, 3, 3), num_tokens=[2, 3]) for name, f in {
    "mixed": lambda x, w: x @ mint.transpose(x, 0, 1),
    "reshaped": lambda x, w: x.reshape(1, -1),
    "a mean": lambda x, w: x.mean(0),
    "a maximum": lambda x, w: mint.amax(x, 0),
    "a token for all": lambda x, w: x + x[:1],
}.items()})
cases("padding", {
    "picked": lambda: spmd(lambda x, i: x[i], Mesh(2))(array(2, 4, 3), numbers(*[[0, 1]] * 2), num_tokens=[2, 3]),
    "more than rows": lambda: spmd(doubled, Mesh(2))(array(2, 4, 3), num_tokens=[2, 5]),
    "of a scalar": lambda: spmd(doubled, Mesh(2))(array(2), num_tokens=[0, 0]),
    "two numbers of tokens": lambda: hpmoe.interpret(
        trace(two_lengths, X, IDS, ShapeDtypeStruct((6, 3), "float32"), ShapeDtypeStruct((6, 2), "int32")),
        [[array(4, 3), np.ones((4, 2), np.int32), array(6, 3), np.ones((6, 2), np.int32)]], [2]),
})
cases("options", BAD_OPTIONS)
cases("order", BAD_ORDERS)
cases("rows", {name: lambda f=f: tile_partition(f).lower(ShapeDtypeStruct((4, 3), "float32")) for name, f in MIXED.items()})
cases("trace", {name: lambda f=f: trace(f, untraceable.X) for name, f in untraceable.CATALOGUE.items()})
CASES["trace: a draw nobody sees"] = lambda: under_a_profiler(lambda: trace(lambda x: x * random.random(), untraceable.X))
cases("received", {name: lambda f=f: untraceable.routed(f) for name, f in untraceable.ROWS.items()})


# dispatch, combine, grouped_matmul and the rest, called with tensors.

ROUTED_IDS = ((0, 1), (1, 0))


def _routed(f):
    return lambda: f(*dispatch(array(2, 3), numbers(*ROUTED_IDS), num_local_experts=2))


def _in_trace(f):
    return lambda: trace(lambda x, ids: f(*dispatch(x, ids, num_local_experts=4)), X, IDS)


def _dropping(ids=ROUTED_IDS, weights=None, **options):
    return lambda: dispatch(array(2, 3), numbers(*ids), num_local_experts=2, topk_weights=weights, **options)


cases("called", {
    "product of a list": _routed(lambda rows, route: grouped_matmul([[1.0]], array(2, 3, 3), route)),
    "product without a route": _routed(lambda rows, route: grouped_matmul(rows, array(2, 3, 3), None)),
    "bias that is a list": _routed(lambda rows, route: grouped_matmul(rows, array(2, 3, 3), route, bias=[1.0])),
    "bias of all experts": _routed(lambda rows, route: grouped_matmul(rows, array(2, 3, 3), route, bias=array(4, 3))),
    "combine of a list": _routed(lambda rows, route: combine([[1.0]], route)),
    "layer of lists": lambda: moe_ffn(array(2, 3), numbers(*ROUTED_IDS), array(2, 2), [[1.0]], array(2, 3, 3)),
    "ranks that are no list": lambda: hpmoe.interpret(trace(doubled, X), 3),
    "capacity of zero": _dropping(capacity_factor=0),
    "unknown drop policy": _dropping(capacity_factor=1.0, drop_policy="random"),
    "drop by no weights": _dropping(capacity_factor=1.0, drop_policy="probs"),
    "drop by nan": _dropping(((0,), (0,)), Tensor(np.float32([[np.nan], [1]])), capacity_factor=1.0, drop_policy="probs"),
    "drop by a vector": _dropping(((0,), (0,)), array(2), capacity_factor=1.0, drop_policy="probs"),
    "more than the capacity": _dropping(((0,), (0,)), capacity_factor=1.0, drop_policy="error"),
    "rows of another number": _routed(lambda rows, route: combine(rows[:1], route)),
    "combine on no route": lambda: combine(array(2, 3), 3),
    "weights of another shape": _routed(lambda rows, route: combine(rows, route, array(2, 1))),
    "weight of two dimensions": _routed(lambda rows, route: grouped_matmul(rows, array(3, 3), route)),
    "rows of another width": _routed(lambda rows, route: grouped_matmul(rows, array(2, 5, 3), route)),
    "weight of another dtype": _routed(lambda rows, route: grouped_matmul(rows, array(2, 3, 3, dtype=np.float16), route)),
    "ids too wide": lambda: dispatch(array(2, 3), numbers((0, 1, 2), (0, 1, 2)), num_local_experts=2),
    "ids that are a list": lambda: dispatch(array(2, 3), [[0], [1]], num_local_experts=2),
    "tokens of another number": lambda: dispatch(array(3, 3), numbers((0,), (1,)), num_local_experts=2),
    "odd swiglu": lambda: swiglu(array(2, 3)),
    "rms_norm_rows of a vector": lambda: rms_norm_rows(array(3)),
    "rms_norm_rows without an epsilon": lambda: rms_norm_rows(array(2, 3), 0.0),
    "permute to too many": lambda: permute(array(2, 3), numbers((0,), (1,)), 99),
    "permute by floats": lambda: permute(array(2, 3), array(2, 1)),
    "permute of too few": lambda: permute(array(3, 3), numbers((0,), (1,))),
    "permute of a vector": lambda: permute(array(2), numbers((0,), (1,))),
    "unpermute by ids": lambda: unpermute(array(2, 3), numbers((0,), (1,))),
    "unpermute a vector": lambda: unpermute(array(2), numbers(0, 1)),
    "unpermute with probs of a vector": lambda: unpermute(array(2, 3), numbers(0, 1), array(2)),
    "half a shared expert": lambda: trace(moe_ffn, *(a[0] for a in Layer(ep=1).arguments()), array(4, 6)),
    "imbalance": lambda: hpmoe.routing.workload.imbalanced_ids(4, 2, 2, 8, 9.0),
    "a skew that there is not": lambda: hpmoe.routing.skewed.skewed_ids("cold", 4, 2, 2, 8),
    "more experts than half of the ranks have": lambda: hpmoe.routing.skewed.skewed_ids("half", 4, 2, 5, 8),
    "a term that there is not": lambda: hpmoe.scheduling.terms.without("gravity").__enter__(),
    "a workload that there is not": lambda: hpmoe.routing.public_workloads.workload_ids("W8", 4, 2, 2, 8),
})
IDS_TENSOR, HALVES = numbers(0, 1), array(2, 3).astype(ms.bfloat16)


def _kept():
    kept = []
    trace(lambda x: (kept.append(x), x)[1], X)
    return kept[0]


cases("in a trace", {
    "combine other rows": lambda: trace(lambda x, ids: combine(x, dispatch(x, ids, num_local_experts=4)[1]), X, IDS),
    "drop by nothing": lambda: trace(lambda x, ids: dispatch(x, ids, num_local_experts=4, capacity_factor=1.0,
                                                             drop_policy="probs"), X, IDS),
    "drop by ids": lambda: trace(lambda x, ids: dispatch(x, ids, num_local_experts=4, capacity_factor=1.0,
                                                         drop_policy="probs", topk_weights=ids), X, IDS),
    "multiply other rows": lambda: trace(lambda x, ids, w: grouped_matmul(x, w, dispatch(x, ids, num_local_experts=4)[1]), X,
                                         IDS, ShapeDtypeStruct((4, 3, 2), "float32")),
    "matmul of other widths": lambda: trace(lambda x: x @ x, X),

    "slice of step -1 by an operation": lambda: trace(lambda x: ops.strided_slice(x, (3, 0), (0, 3), (-1, 1)), X),
    "a known index out of bounds": lambda: trace(lambda x: x[:, [0, 3]], X),
    "gather with batch_dims": lambda: trace(lambda x: ops.gather(x, Tensor([[0], [1], [0], [1]]), 1, 1), X),
    "bias of three dimensions": lambda: trace(lambda x, b: ops.BiasAdd()(x, b), ShapeDtypeStruct((2, 3, 4), "float32"),
                                              ShapeDtypeStruct((3,), "float32")),
    "unpermute with padding": lambda: trace(lambda x: ops.moe_token_unpermute(x, numbers(0, 1, 2, 3), padded_mode=True), X),
    "slice up to the number of received rows": lambda: trace(
        lambda x, ids: x[:dispatch(x, ids, num_local_experts=4)[0].shape[0]], X, IDS),
    "spmd inside": lambda: trace(lambda x: spmd(doubled, Mesh(1))(x), X),
    "length of a scalar": lambda: trace(lambda x: len(x.sum()), X),
    "kept beyond its trace": lambda: mint.exp(_kept()),
    "kept for another trace": lambda: trace(lambda x: x + _kept(), X),
    "a field of a route": _in_trace(lambda rows, route: route.tokens_per_expert),
    "exp of a route": _in_trace(lambda rows, route: mint.exp(route)),
    "sum with a route": _in_trace(lambda rows, route: rows + route),
    "grouped_matmul without a route": lambda: trace(lambda x, w: grouped_matmul(x, w, x), X,
                                                    ShapeDtypeStruct((4, 3, 2), "float32")),
    "logic of integers": lambda: trace(lambda x: x.astype(ms.int32) & x.astype(ms.int32), X),
    "shapes that do not broadcast": lambda: trace(lambda x, y: x + y, X, ShapeDtypeStruct((2, 3), "float32")),
    "reshape to another size": lambda: trace(lambda x: x.reshape(5, 5), X),
    "broadcast to less": lambda: trace(lambda x: mint.broadcast_to(x, (2, 3)), X),
    "concatenate other rows": lambda: trace(lambda x, y: mint.cat([x, y], -1), X, ShapeDtypeStruct((2, 3), "float32")),
    "transpose by other axes": lambda: trace(lambda x: mint.permute(x, (0, 2)), X),
    "sum over another dimension": lambda: trace(lambda x: x.sum(5), X),
    "odd swiglu": lambda: trace(swiglu, X),
    "rms_norm_rows of a vector": lambda: trace(rms_norm_rows, ShapeDtypeStruct((3,), "float32")),
    "a norm of order 3": lambda: trace(lambda x: mint.norm(x, 3), X),
    "a tensor to embed with max_norm": lambda: trace(lambda x: F.embedding(IDS_TENSOR, x, max_norm=1.0), X),
    "an embedding with padding_idx": lambda: trace(lambda x: F.embedding(IDS_TENSOR, x, padding_idx=1), X),
    "an embedding with scale_grad_by_freq": lambda: trace(lambda x: F.embedding(IDS_TENSOR, x, scale_grad_by_freq=True), X),
    "swiglu over rows": lambda: trace(lambda x: ops.swiglu(x, 0), ShapeDtypeStruct((4, 4), "float32")),
    "padding with ones": lambda: trace(lambda x: F.pad(x, (1, 1), value=1.0), X),
    "negative padding": lambda: trace(lambda x: F.pad(x, (-1, 1)), X),
    "index past the end": lambda: trace(lambda x: x[7], X),
    "too many indices": lambda: trace(lambda x: x[0, 0, 0], X),
    "index of a string": lambda: trace(lambda x: x["a"], X),
    "bounds that are computed": lambda: trace(lambda x: x[x.sum():], X),
    "gather columns by a matrix": lambda: trace(lambda x: x[:, Tensor([[0, 1]])], X),
    "no function": lambda: trace(3, X),
    "a plain argument nobody can compare": lambda: tile_partition(lambda x, s: x)(array(2, 3), np.ones(3).tolist and {1, 2}),
    "a wrong call": lambda: tile_partition(doubled)(),
})
