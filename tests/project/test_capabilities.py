"""The tables of hpmoe/tracing are true: what it grants becomes tile tasks, what it denies is refused."""

import re

import documents
import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, ops

import hpmoe
from hpmoe import ShapeDtypeStruct, TraceError, TransformError

F32 = ms.float32
PAGE = documents.text_of("hpmoe/tracing/README.md")
CALLS = PAGE.partition("## Calls")[2].partition("\n## ")[0]
PARTS = PAGE.partition("## What may stand")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| (.+?) \| (.+?) \|(.*)\|$", PARTS, re.MULTILINE)
X, W, IDS = ShapeDtypeStruct((8, 4), "float32"), ShapeDtypeStruct((4, 6), "float32"), ShapeDtypeStruct((3,), "int32")
MOE = [X, ShapeDtypeStruct((8, 2), "int32"), ShapeDtypeStruct((8, 2), "float32"), ShapeDtypeStruct((4, 4, 10), "float32"),
       ShapeDtypeStruct((4, 5, 4), "float32"),
       ShapeDtypeStruct((4, 10), "float32"), ShapeDtypeStruct((5, 4), "float32")]
LINEAR = mint.nn.Linear(4, 6)


def looped(x, w):
    for _ in range(x.shape[1]):
        x = mint.tanh(x) if len(x.shape) == 2 else x
    return x


def written(x, *_):
    x += 1
    return x


def with_bias(x, ids, weights, gate_up, down, bias, _):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=4)
    act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, gate_up, route, bias=bias))
    return hpmoe.combine(hpmoe.grouped_matmul(act, down, route), route, weights)


def heads(x, ids, weights, gate_up, down, *_):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=4)
    cut = rows.reshape(-1, 2, 2)
    cut = mint.softmax(cut, -1) * cut.sum(1, keepdims=True)
    return hpmoe.combine(cut.reshape(-1, 4), route, weights)


def permuted(x, ids, weights, *experts):
    rows, indices = ops.moe_token_permute(x, ids)
    return ops.moe_token_unpermute(rows, indices, weights)


def exchanged(x, ids, weights, *experts):
    rows, indices = ops.moe_token_permute(x, ids)
    received, route = hpmoe.token_ops.exchange(rows, ids, num_local_experts=4)
    return ops.moe_token_unpermute(hpmoe.token_ops.exchange_back(received, route), indices, weights)


def capped(*args):
    *args, shared_gate_up, shared_down = args
    return hpmoe.moe_ffn(*args, shared_gate_up_weight=shared_gate_up, shared_down_weight=shared_down, capacity_factor=1.0,
                         drop_policy="position")


# For a row: the arguments, what is granted, what is denied.
CLAIMS = {
    "arithmetic": ([X, W], [lambda x, w: ((x + 1) * 2 - x / 3) ** 2 % 2 // 1, lambda x, w: ops.gelu(mint.exp(x)),
                            lambda x, w: mint.where((x > 0) & ~(x > 1), x, 0)], [written]),
    "softmax": ([X, W], [lambda x, w: mint.softmax(x, -1), lambda x, w: mint.nn.functional.layer_norm(x, (4,)),
                         lambda x, w: x.mean(-1, keepdim=True) + mint.amax(x, -1, True), lambda x, w: x.sum(0)],
                [lambda x, w: mint.softmax(x, (0, 1))]),
    "`x @ w`": ([X, W], [lambda x, w: x @ w, lambda x, w: LINEAR(x)], [lambda x, w: mint.bmm(x[None], w[None])]),
    "columns": ([X, IDS], [lambda x, i: x[:, 1:3], lambda x, i: x[:, ::2] * x[:, 1::2],
                           lambda x, i: mint.cat(mint.split(x, 2, -1), -1),
                           lambda x, i: x[i], lambda x, i: mint.nn.functional.pad(x, (1, 1))], [lambda x, i: x[x > 0]]),
    "reshapes": (MOE, [heads, lambda x, *rest: mint.softmax(x.reshape(8, 2, 2), -1), lambda x, *rest: x.reshape(16, 2) * 2],
                 [lambda x, *rest: x[2:5], lambda x, *rest: x.T, lambda x, *rest: mint.softmax(x, 0),
                  lambda x, *rest: mint.amax(x, 0)]),
    "Python `if`": ([X, W], [looped], [lambda x, w: x if x.sum() > 0 else -x]),
    "random": ([X, W], [], [lambda x, w: mint.nn.functional.dropout(x, 0.5, True), lambda x, w: np.maximum.reduce(x),
                            lambda x, w: x + ms.Tensor(np.random.rand(4), F32)]),
    "`dispatch`": (MOE, [with_bias, capped], []),
    "[`permute`": (MOE, [exchanged], [permuted]),
    "a router": ([X, W], [lambda x, w: hpmoe.route(x @ w, 2), lambda x, w: mint.gather(x, 1, mint.topk(x, 2)[1]),
                            lambda x, w: mint.cumsum(mint.sort(x)[0], -1),
                            lambda x, w: mint.nn.functional.one_hot(mint.topk(x, 1)[1][:, 0], 4)],
                   [lambda x, w: mint.topk(x, 2, 0)[0]]),
    "float32": ([X, IDS], [lambda x, i: x.astype(ms.bfloat16) * 2, lambda x, i: x.astype(ms.float16) * 2,
                           lambda x, i: mint.sum((i + 1).astype(ms.int64))],
                [lambda x, i: x.astype(ms.float64)]),
}


def rows_of(claim):
    return [row for row in ROWS if row[0].startswith(claim)]


@pytest.mark.parametrize("claim", CLAIMS)
def test_granted_calls_become_tiles_and_denied_ones_are_refused(claim):
    (row,), (avals, granted, denied) = rows_of(claim), CLAIMS[claim]
    assert row[1] != "yes" or granted
    assert row[1] != "no" or denied and not granted
    for f in granted:
        assert hpmoe.tile_partition(f).lower(*avals).num_tasks
    for f in denied:
        with pytest.raises((TraceError, TransformError, TypeError)):
            hpmoe.tile_partition(f).lower(*avals)


def test_permute_runs_and_is_traced():
    rng = np.random.default_rng(0)
    args = [ms.Tensor(rng.standard_normal(a.shape), F32) for a in MOE]
    args[1] = ms.Tensor(rng.integers(0, 4, (8, 2)), ms.int32)
    names = [e.primitive.name for e in hpmoe.trace(permuted, *MOE).equations]
    assert "permute" in names and hpmoe.token_ops.permute(args[0], args[1])[0].shape == (16, 4)


def test_every_other_row_says_where_it_is_shown():
    checked = {row for claim in CLAIMS for row in rows_of(claim)}
    others = [row for row in ROWS[1:] if row not in checked]
    assert len(others) < len(ROWS) / 2
    assert [row[0] for row in others if "](" not in row[1] + row[2]] == []


F = mint.nn.functional
GAMMA, FLAGS = ShapeDtypeStruct((4,), "float32"), ShapeDtypeStruct((8, 4), "bool")


def of_x(*functions):
    return [lambda x, *_, f=f: f(x) for f in functions]


# For a row of the table of hpmoe/tracing: functions of X, W, IDS, GAMMA and FLAGS that are traced, and some that are not.
TRACED = {
    "`+ - *": ([lambda x, w, i, g, b: -(x + 1) * 2 // 3 % 5 - x / 7, lambda x, w, i, g, b: (x**2 > 1) & b | ~b], [written]),
    "exp": (of_x(mint.exp, mint.log, mint.sqrt, mint.sin, mint.tanh, mint.erf, mint.floor, mint.isnan,
                 lambda x: mint.clamp(x, 0, 1), lambda x: mint.where(x > 0, x, 1), lambda x: mint.lerp(x, x, 0.5),
                 lambda x: mint.logaddexp(x, x), mint.nan_to_num), []),
    "flip": (of_x(lambda x: mint.flip(x, (1,)), lambda x: mint.roll(x, 1, 1), lambda x: mint.repeat_interleave(x, 2, dim=1)),
             of_x(lambda x: mint.repeat_interleave(x, ms.Tensor([1, 2, 1, 1]), dim=1))),
    "relu": (of_x(F.relu, F.leaky_relu, F.elu, F.selu, ops.celu, F.gelu, F.silu, F.softplus, F.mish, F.glu, hpmoe.swiglu,
                  ops.hardsigmoid, F.logsigmoid, lambda x: F.prelu(x, x[0]), ops.softsign, F.hardshrink, F.softshrink,
                  lambda x: F.threshold(x, 0.1, 20.0), lambda x: F.mse_loss(x, x), lambda x: F.l1_loss(x, x)), []),
    "softmax": ([lambda x, w, i, g, b: mint.softmax(x, 0), lambda x, w, i, g, b: F.log_softmax(x, -1),
                 lambda x, w, i, g, b: mint.logsumexp(x, -1), lambda x, w, i, g, b: F.layer_norm(x, (4,), g),
                 lambda x, w, i, g, b: ops.rms_norm(x, g)[0]], []),
    "sum": ([lambda x, w, i, g, b: x.sum() + x.mean() + mint.var(x) + mint.std(x), lambda x, w, i, g, b: mint.norm(x),
             lambda x, w, i, g, b: b.any() | b.all() | b.any(1)[0] | mint.any(b, 0, True)[0, 0],
             lambda x, w, i, g, b: mint.amax(x, 0) + mint.amin(x, 0),
             lambda x, w, i, g, b: mint.max(x, 0)[1] + mint.argmax(x, 0)], []),
    "`@`": ([lambda x, w, i, g, b: x @ w + mint.matmul(x, w) + F.linear(x, w.T),
             lambda x, w, i, g, b: mint.addmm(x @ w, x, w), lambda x, w, i, g, b: mint.outer(g, g)],
            [lambda x, w, i, g, b: mint.bmm(x[None], w[None])]),
    "reshape": ([lambda x, w, i, g, b: x.reshape(4, 8).T[None].squeeze(0), lambda x, w, i, g, b: mint.cat([x, x], 0),
                 lambda x, w, i, g, b: mint.stack(mint.unbind(x, 0), 1), lambda x, w, i, g, b: mint.split(x, 2, 0)[0],
                 lambda x, w, i, g, b: mint.chunk(x, 2, 0)[0], lambda x, w, i, g, b: F.pad(x, (1, 1, 1, 1)),
                 lambda x, w, i, g, b: mint.tile(x, (2, 1)), lambda x, w, i, g, b: ops.unstack(x, 0)[1]], []),
    "`x[i]`": ([lambda x, w, i, g, b: x[0] + x[2:5][..., None, 1].sum() + x[i][0] + x[::2, [2, 0]].sum(),
                lambda x, w, i, g, b: F.embedding(i, x)],
               [lambda x, w, i, g, b: x[::-1], lambda x, w, i, g, b: x[b], lambda x, w, i, g, b: x[i, i]]),
    "dropout": ([lambda x, w, i, g, b: F.dropout(x, 0.5, False)], [lambda x, w, i, g, b: F.dropout(x, 0.5, True)]),
    "topk": ([*of_x(lambda x: mint.topk(x, 2)[1], lambda x: mint.sort(x, dim=0)[1], mint.argsort, mint.round,
                    lambda x: mint.cumsum(x, 0)), lambda x, w, i, g, b: mint.gather(x, 1, mint.topk(x, 2)[1]),
              lambda x, w, i, g, b: F.one_hot(i, 5), lambda x, w, i, g, b: x.scatter_add(1, mint.topk(x, 4)[1], x)], []),
    "conv": ([], of_x(lambda x: ops.cumprod(x, 0), lambda x: mint.median(x, 0))),
}


@pytest.mark.parametrize("claim", TRACED)
def test_the_table_of_tracing_is_true(claim):
    assert len(re.findall(rf"^\| {re.escape(claim)}", CALLS, re.MULTILINE)) == 1
    traced, refused = TRACED[claim]
    for f in traced:
        assert hpmoe.trace(f, X, W, IDS, GAMMA, FLAGS).outputs
    for f in refused:
        with pytest.raises(TraceError):
            hpmoe.trace(f, X, W, IDS, GAMMA, FLAGS)


def test_no_row_of_tracing_is_left_out():
    table = CALLS.partition("|---|---|\n")[2].partition("\n\n")[0]
    assert len(table.splitlines()) == len(TRACED)
