"""More of error_cases.py: what is made wrong in the IR, the graphs of MindSpore, the command line."""

import dataclasses

import mindspore as ms
import numpy as np
import pytest
from error_cases import CASES as CASES, PARAMETER, X, array, cases, doubled
from helpers import Layer, queued, stages, tensors
from mindspore import Tensor, mint
from mutants import changed, replaced, with_deps
from small_timelines import handmade, two_task_flow
from tile_words import kind

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, accumulate_grads, assign_queues, cli, cpu, moe_ffn, spmd, tile_partition, trace
from hpmoe.ir.program import Builder, Var, map_equations
from hpmoe.kernels.cpu.target import CPU
from hpmoe.kernels.simulate import simulate
from hpmoe.machines import ascend_a3
from hpmoe.primitives.primitive import REGISTRY, Primitive
from hpmoe.routing.kinds.direct import Direct
from hpmoe.routing.routing import make_routing
from hpmoe.tiling.rebuild import rebuild

# Mutations of a queued layer.


def _mutated(mutate):
    return lambda: hpmoe.verify(mutate(queued(signal="tile")))


def _broken(**changes):
    """A queued layer with other columns in the first wait or signal, or other operations, as a mutation makes it."""
    def mutate(flow):
        for name, columns in changes.items():
            flow = with_deps(flow, **{name: changed(getattr(flow.deps, name), 0, **columns)})
        return flow
    return _mutated(mutate)


def _without_last_operation(flow):
    return flow.replace(ops=flow.ops[:-1])


def _in_the_memory_of_an_output(flow):
    flow = with_deps(flow, origin=None)
    first, *_, last = [b for b, buffer in enumerate(flow.buffers) if buffer.role != "input" and buffer.storage == b]
    buffers = list(flow.buffers)
    buffers[last] = dataclasses.replace(buffers[last], memory=first)
    return flow.replace(buffers=tuple(buffers))


def _row_taken_for_tokens():
    flow = tile_partition(lambda x: (mint.sum(x, 0) * 3.0, x)).lower(ShapeDtypeStruct((5, 4), "float32"))
    i = next(i for i, op in enumerate(flow.ops) if (kind(op), op.domain.num_rows) == ("tiles", 1))
    op = flow.ops[i].replace(domain=dataclasses.replace(flow.ops[i].domain, clipped=True))
    hpmoe.verify(rebuild(flow, (*flow.ops[:i], op, *flow.ops[i + 1:])))


def _with_domain(change):
    """A queued layer rebuilt with another domain of its first operation."""
    return _mutated(lambda flow: rebuild(flow, (flow.ops[0].replace(domain=change(flow.ops[0].domain)), *flow.ops[1:])))


cases("verify", {
    "rows that are no tokens": _row_taken_for_tokens,
    "a slot less": _with_domain(lambda domain: dataclasses.replace(domain, size=1)),
    "same peer twice": _mutated(lambda flow: flow.replace(peer_orders=np.zeros_like(flow.peer_orders))),
    "a wait of unknown kind": _broken(waits={"kind": 7}),
    "queues without a machine": _mutated(lambda flow: flow.replace(machine=None)),
    "a queue of no numbers": _mutated(lambda flow: flow.replace(queues=(flow.queues[0] + 0.5, *flow.queues[1:]))),
    "a queue of numbers past 32 bits": _mutated(lambda flow: flow.replace(
        queues=tuple(q.astype(np.int64) + 2**32 for q in flow.queues))),
    "waits in a list": _mutated(lambda flow: with_deps(flow, waits=flow.deps.waits.tolist())),
    "a block that is none": _mutated(lambda flow: with_deps(flow, blocks=(3, *flow.deps.blocks[1:]))),
    "an operation that counts by letters": _mutated(lambda flow: flow.replace(
        ops=(flow.ops[0].replace(params=("mul",), tile_cols="x"), *flow.ops[1:]))),
    "an operation less": _mutated(_without_last_operation),
    "memory of a result": _mutated(_in_the_memory_of_an_output),
})
def _rebuilt(**changes):
    """The first operation of a layer, or its first operand, with another part."""
    def call():
        flow = queued(signal="tile")
        op, of_op = flow.ops[0], {name: part for name, part in changes.items() if hasattr(flow.ops[0], name)}
        of_access = {name: part for name, part in changes.items() if name not in of_op}
        first = dataclasses.replace(op.operands[0], **of_access)
        rebuild(flow, (op.replace(**{"operands": (first, *op.operands[1:]), **of_op}), *flow.ops[1:]))
    return call


cases("rebuild", {
    "a route that is none": _with_domain(lambda domain: dataclasses.replace(domain, route=7)),
    "a name for a mode of rows": _rebuilt(rows="own"),
    "a number of columns in words": _rebuilt(tile_cols="all"),
})
MADE_BY_HAND = {  # taskflows that nobody made for these tables
    "a route of no choices": lambda flow: {"routes": replaced(
        flow.routes, 0, kind=dataclasses.replace(flow.routes[0].kind, num_choices=0))},
    "more rows likely than there is room for": lambda flow: {"routes": replaced(flow.routes, 0, expected_rows=10**6)},
    "a route once of itself": lambda flow: {"routes": replaced(flow.routes, 0, of=0)},
    "a route over itself": lambda flow: {"routes": replaced(flow.routes, 0, over=0)},
    "sums of parts of tiles": lambda flow: {"routes": replaced(flow.routes, 0, return_tokens=3)},
    "rows of two kinds": lambda flow: {"buffers": replaced(flow.buffers, 0, num_rows=None)},
    "ids that nobody gives": lambda flow: {"inputs": tuple(b for b in flow.inputs if b != flow.routes[0].ids)},
    "tiles of no rows": lambda flow: {"tile_rows": 0},
    "too many tasks": lambda flow: {"ops": replaced(flow.ops, 0, cols=2**40, tile_cols=1)},
    "a shape of other rows": lambda flow: {"buffers": replaced(flow.buffers, 0, shape=(9, 9))},
    "an operation without operands": lambda flow: {"ops": replaced(flow.ops, 0, operands=None)},
    "a machine that is none": lambda flow: {"machine": 3},
    "queues that are none": lambda flow: {"queues": 3},
}
cases("verify", {name: _mutated(lambda flow, changes=changes: with_deps(flow, origin=None).replace(**changes(flow)))
                 for name, changes in MADE_BY_HAND.items()})


# Functions on IR.

def _flow(f=doubled, machine=None):
    tiles = tile_partition(f)
    return (assign_queues(tiles, machine=machine, policy="round_robin") if machine else tiles).lower(X)


def _stuck(run):
    """A launch in which the second of two tasks waits for the first, which does not signal."""
    flow = _flow(lambda x: (x * 2.0).sum(-1), cpu(2))
    return lambda: run(with_deps(flow, signals=flow.deps.signals[:0]))


LAYER = Layer(ep=2, T=40, E=4, K=1)


def _layer(run):
    """A plan for a balanced routing, and arguments of two ranks of which the second receives all rows."""
    args = LAYER.arguments()
    args[1][:] = np.arange(80).reshape(2, 40, 1) % 4
    staged = spmd(assign_queues(tile_partition(moe_ffn, rows=2), machine=cpu(1)), Mesh(2))
    return lambda: run(staged.lower(*tensors(args)),
                       [[a[r] if i != 1 else a[r] | 3 for i, a in enumerate(args)] for r in (0, 1)])


def _dropping():
    def layer(x, ids, w, up, down):
        return moe_ffn(x, ids, w, up, down, capacity_factor=0.5, drop_policy="probs")

    args = [a[0] for a in Layer(ep=1, T=4, E=4, K=1).arguments()]
    return assign_queues(tile_partition(layer), machine=cpu(1)).lower(*tensors(args))


ROWS = np.ones((4, 3), np.float32)
# Programs built by hand, as a transform of one's own may.

def _built(primitive, *avals, **params):
    """A case that applies a primitive to variables of these dtypes and dimensions."""
    return lambda: Builder().add(REGISTRY[primitive],
                                 *(Var(ShapeDtypeStruct(tuple(shape), dtype)) for dtype, *shape in avals), **params)


@hpmoe.transform(requires="program")
def multiplies_a_vector(program):
    builder = Builder()
    out = builder.add(REGISTRY["matmul"], *program.inputs)
    return program.replace(equations=tuple(builder.equations), outputs=(out,))


def _ruled(primitive, question, rule, call):
    """A case that runs with another rule of a primitive."""
    def run():
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(REGISTRY[primitive].rules, question, rule)
            call()
    return run


F32, BF16, I32 = "float32", "bfloat16", "int32"
cases("built", {
    "a sum of two dtypes": _built("add", (F32, 4, 3), (BF16, 4, 3)),
    "a sum of one": _built("add", (F32, 4, 3)),
    "a product without a param that it has": lambda: Builder().add(REGISTRY["reduce_max"], Var(X), axis=0),
    "a product with a param that it has not": lambda: Builder().add(REGISTRY["exp"], Var(X), axis=0, source="user.py:1"),
    "a product of two dtypes": _built("matmul", (F32, 4, 3), (BF16, 3, 2)),
    "a product of rows and a vector": _built("matmul", (F32, 4, 3), (F32, 3)),
    "columns of a vector": _built("take_columns", (F32, 4), (I32, 2)),
    "columns by floats": _built("take_columns", (F32, 4, 3), (F32, 4, 2)),
    "columns of other rows": _built("take_columns", (F32, 4, 3), (I32, 2, 2)),
    "columns added without an index each": _built("add_columns", (F32, 4, 3), (I32, 4, 2), num_cols=3),
    "a draw by a float": _built("draw", (F32, 1), shape=(4, 3), stream=0),
    "a draw of a vector": _built("draw", (I32, 1), shape=(4,), stream=0),
    "more choices than columns": _built("top_k", (F32, 4, 3), k=4, largest=True),
    "a weight gradient of other rows": _built("weight_grad", (F32, 4, 3), (F32, 5, 3)),
    "a main gradient of another shape": _built("weight_grad", (F32, 4, 3), (F32, 4, 2), (F32, 3, 3)),
    "a sort of three dimensions": _built("sort_indices", (I32, 4, 3, 2)),
    "places by floats": _built("expert_places", (F32, 4, 2), num_experts=2, capacity=1),
    "a permuted vector": _built("permute", (F32, 4), (I32, 4), top_k=1, num_rows=4),
    "rows permuted by floats": _built("permute", (F32, 4, 3), (F32, 4), top_k=1, num_rows=4),
    "rows permuted by places of others": _built("permute", (F32, 4, 3), (I32, 5), top_k=1, num_rows=4),
    "a vector brought back": _built("unpermute", (F32, 4), (I32, 4), top_k=1),
    "a gather from a scalar": _built("gather", (F32,), (I32, 2)),
    "a gather by floats": _built("gather", (F32, 4, 3), (F32, 2)),
    "a sum over an axis that is not there": _built("reduce_sum", (F32, 4, 3), axis=2, keepdims=False),
    "a dot of other rows": _built("row_dot", (F32, 4, 3), (F32, 5, 3)),
    "a slice past the end": _built("slice", (F32, 4, 3), axis=1, start=1, stop=4),
    "a transpose by one axis twice": _built("transpose", (F32, 4, 3), axes=(1, 1)),
    "a vector times a matrix": lambda: tile_partition(multiplies_a_vector(lambda x, w: x.sum() + w.sum(0))).lower(
        ShapeDtypeStruct((3,), F32), ShapeDtypeStruct((3, 2), F32)),
    "a vjp rule of another shape": _ruled(
        "square", "vjp", lambda b, eqn, cotangents: [b.add(REGISTRY["slice"], cotangents[0], axis=1, start=0, stop=2)],
        lambda: hpmoe.rewriting.vjp(trace(lambda x: x.square(), X))),
    "a reference rule of another shape": _ruled(
        "square", "reference", lambda x: x[:, :2], lambda: hpmoe.interpret(trace(lambda x: x.square(), X), [[ROWS]])),
    "a tile rule of another shape": _ruled(
        "square", "tile", lambda tiler, eqn: tiler.new(eqn.outputs[0], rows_and_cols=(4, 2)),
        lambda: tile_partition(lambda x: x.square()).lower(X)),
    "a primitive of a name that is taken": lambda: Primitive("add"),
    "a routing of experts that do not divide": lambda: make_routing(Direct(2, 2, 1, 3), [np.zeros((2, 1), np.int32)] * 2),
})
cases("IR", {
    "interpret a program for no rank": lambda: hpmoe.interpret(trace(doubled, X), []),
    "interpret a program without arrays": lambda: hpmoe.interpret(trace(doubled, X), [[]]),
    "interpret a program of another shape": lambda: hpmoe.interpret(trace(doubled, X), [[ROWS[1:]]]),
    "interpret with no seed": lambda: hpmoe.interpret(_flow(), [[ROWS]], seed=-1),
    "interpret no IR": lambda: hpmoe.interpret(3, []),
    "interpret a program by a seed": lambda: hpmoe.interpret(trace(doubled, X), [[ROWS]], seed=1),
    "interpret a taskflow in double": lambda: hpmoe.interpret(_flow(), [[ROWS]], dtype="float64"),
    "no machine of that name": lambda: hpmoe.machines.ascend_a4,
    "a name of a module": lambda: hpmoe.permute,
    "interpret another shape": lambda: hpmoe.interpret(_flow(), [[ROWS[1:]]]),
    "interpret a lost signal": _stuck(lambda flow: hpmoe.interpret(flow, [[ROWS]])),
    "launch a lost signal": _stuck(lambda flow: CPU.compile([flow], timeout=0.5).run([[ROWS]])),
    "simulate a lost signal": _stuck(lambda flow: simulate(flow)),
    "verify no taskflow": lambda: hpmoe.verify(3),
    "a program of no direction": lambda: trace(doubled, X).replace(direction="sideways"),
    "a primitive by no name": lambda: hpmoe.rewriting.primitives.combin,
    "a rule that adds an equation of an equation": lambda: map_equations(
        trace(doubled, X), lambda builder, eqn: [builder.add(eqn.primitive, eqn, 2.0)]),
    "a rule that returns too few": lambda: map_equations(trace(doubled, X), lambda builder, eqn: []),
    "vjp of no program": lambda: hpmoe.rewriting.vjp(3),
    "vjp of no function": lambda: hpmoe.vjp(3),
    "vjp at no tensor": lambda: hpmoe.vjp(doubled, 3.0),
    "cotangents of another structure": lambda: hpmoe.vjp(doubled, Tensor(ROWS))[1]((Tensor(ROWS), Tensor(ROWS))),
    "cotangents of another shape": lambda: hpmoe.vjp(doubled, Tensor(ROWS))[1](Tensor(ROWS[:1])),
    "simulate without queues": lambda: simulate(_flow()),
    "interpret more rows than planned": _layer(hpmoe.interpret),
    "launch more rows than planned": _layer(lambda flow, args: CPU.compile([flow], timeout=20.0).run(args)),
    "timeline of tiles": lambda: hpmoe.Timeline.from_trace(_flow(), np.zeros((1, 1, 2))),
    "bytes of links that nobody counted": lambda: handmade(two_task_flow(), (0, 0, 1), (1, 1, 2)).link_bytes(),
    "bytes of links of no node": lambda: handmade(two_task_flow(), (0, 0, 1), (1, 1, 2)).link_bytes(0),
    "picture of a rank that is none": lambda: hpmoe.simulate(_flow(machine=cpu(1))).picture("x.png", rank=1),
    "timeline of another trace": lambda: hpmoe.Timeline.from_trace(_flow(machine=cpu(1)), np.zeros((1, 1, 2))),
    "simulate drops by no weights": lambda: simulate(_dropping(), routing=[np.zeros((4, 1), np.int32)]),
    "simulate drops by weights of two ranks": lambda: simulate(_dropping(), routing=[np.zeros((4, 1), np.int32)],
                                                               topk_weights=[np.ones((4, 1))] * 2),
    "simulate drops by other weights": lambda: simulate(_dropping(), routing=[np.zeros((4, 1), np.int32)],
                                                        topk_weights=[np.ones((4, 2))]),
    "simulate other lengths": lambda: simulate(_flow(machine=cpu(1)), num_tokens=[9]),
    "simulate for one rank": _layer(lambda flow, args: simulate(flow, routing=[args[0][1]])),
    "simulate ids out of range": _layer(lambda flow, args: simulate(flow, routing=[a[1] + 1 for a in args])),
    "simulate other workers": lambda: simulate(_flow(machine=ascend_a3), ascend_a3.replace(num_aic=48, num_aiv=24)),
    "simulate for ages": lambda: simulate(_flow(machine=cpu(1)), machine=cpu(1).replace({"sync.task_us": 1e30})),
    "simulate a seed that is none": lambda: simulate(_flow(machine=cpu(1)), seed=-1),
})


# Graph mode.

def _compiled(f, x):
    layer = stages()["fused"](f)

    def call(x):
        return layer(x)

    return lambda: ms.jit(call)(x)


FUSED = stages()["fused"](lambda x, factor: x * factor)


def _scaled(x):
    return FUSED(x, 2.0)


def _total(x):
    return (_scaled(x) ** 2).sum()


def _call_with(factor):
    def call(x, y):
        return FUSED(x, y)
    return ms.jit(call)(array(2, 3), factor)


def _accumulating():
    layer = stages()["fused"](accumulate_grads(lambda x, w: x @ w, into={"w": array(3, 3)}))
    return lambda w: layer(array(4, 3), w).sum()


cases("graph mode", {
    "a parameter closed over": _compiled(lambda x: x * PARAMETER, array(2, 3)),
    "a dict": _compiled(lambda x: {"a": x + 1.0}, array(2, 3)),
    "an empty output": _compiled(lambda x: hpmoe.token_ops.permute_with_ep(x, x.astype(ms.int32), None, (1, 1))[0],
                                 array(2, 3)),
    "an empty array": _compiled(doubled, Tensor(np.zeros((0, 3), np.float32))),
    "a value that changes": lambda: _call_with(ms.mutable(2.0)),
    "a shape that changes": lambda: ms.enable_dynamic(x=Tensor(shape=(None, 3), dtype=ms.float32))(ms.jit(_scaled))(
        array(2, 3)),
    "a main gradient": lambda: ms.jit(ms.grad(_accumulating()))(array(3, 3)),
    "a gradient of a gradient in a graph": lambda: ms.jit(ms.grad(ms.grad(_total)))(array(2, 3)),
    "a gradient of a gradient": lambda: ms.grad(ms.grad(lambda x: (stages()["fused"](doubled)(x) ** 2).sum()))(array(2, 3)),
})


# The command line.

cases("command", {line: lambda line=line: cli._run(line.split()) for line in (
    "calibrate --budget=-1", "tune --budget=-1", "tune --policy=autotune",
    "tune --combine_order=ratr",
    "simulate --imbalance=x", "compare policy=round_robin", "compare unfused unfused --measured",
    "compare policy=autotune unfused --measured", "compare policy=stage_order unfused --min_load=4",
    "simulate --min_load=4", "tune --min_load=4", "simulate --policy=autotune --tile_rows=64",
    "simulate --policy=autotune --prefetch",
    "compare policy=round_robin machine=ascend_a3 --measured",
    "compare policy=round_robin unfused --out=no/such/folder/x.html",
    "simulate --imbalance=99", "simulate --imbalance=2 --routing=zipf",
    "simulate --experts=65536 --tokens=9999 --routing=uniform",
    "demp", "--foo", "demo --toks=3", "demo --ep=abc", "demo --ep 0", "demo --tokens", "demo --experts=30",
    "demo --top_k=33", "demo --processes=2 --ep=4",
    "demo --out=no/such/folder/x.json", "demo --out=picture", "demo --json=3", "demo 3", "show --stage=kernels",
    "show --stage=kernel --machine=ascend_a3", "show --rank_capacity_factor=0",
    "show --ep=8192 --experts=8192", "show --experts=4194306", "show --hidden=1073741824", "simulate --tokens=8388608")})
