"""README's table of what may stand in a function is true: what it grants becomes tile tasks, what it denies is refused."""

import re

import documents
import mindspore as ms
import numpy as np
import pytest
from mindspore import mint, ops

import hpmoe
from hpmoe import Aval, TraceError, TransformError

F32 = ms.float32
ROWS = re.findall(r"^\| (.+?) \| (.+?) \| (.+) \|$", documents.text_of("README.md").partition("## What may stand")[2]
                  .partition("## The transforms")[0], re.MULTILINE)
X, W, IDS = Aval((8, 4), "float32"), Aval((4, 6), "float32"), Aval((3,), "int32")
MOE = [X, Aval((8, 2), "int32"), Aval((8, 2), "float32"), Aval((4, 4, 10), "float32"), Aval((4, 5, 4), "float32"),
       Aval((4, 10), "float32"), Aval((5, 4), "float32")]
LINEAR = mint.nn.Linear(4, 6)


def looped(x, w):
    for _ in range(x.shape[1]):
        x = mint.tanh(x) if len(x.shape) == 2 else x
    return x


def written(x, w):
    x += 1
    return x


def with_bias(x, ids, weights, gate_up, down, bias, _):
    rows, route = hpmoe.dispatch(x, ids, num_local_experts=4)
    act = hpmoe.swiglu(hpmoe.grouped_matmul(rows, gate_up, route, bias=bias))
    return hpmoe.combine(hpmoe.grouped_matmul(act, down, route), route, weights)


def permuted(x, ids, weights, *experts):
    rows, indices = ops.moe_token_permute(x, ids)
    return ops.moe_token_unpermute(rows, indices, weights)


def capped(*args):
    *args, shared_gate_up, shared_down = args
    return hpmoe.moe_ffn(*args, shared_gate_up_weight=shared_gate_up, shared_down_weight=shared_down, capacity_factor=1.0,
                         drop_policy="position")


# For a row: the arguments, what is granted, what is denied.
CLAIMS = {
    "arithmetic": ([X, W], [lambda x, w: ((x + 1) * 2 - x / 3) ** 2 % 2 // 1,
                            lambda x, w: mint.where((x > 0) & ~(x > 1), x, 0), lambda x, w: ops.gelu(mint.exp(x))], []),
    "softmax": ([X, W], [lambda x, w: mint.softmax(x, -1), lambda x, w: mint.nn.functional.layer_norm(x, (4,)),
                         lambda x, w: x.mean(-1, keepdim=True) + mint.amax(x, -1, True), lambda x, w: x.sum(0)],
                [lambda x, w: mint.max(x, -1)[0]]),
    "`x @ w`": ([X, W], [lambda x, w: x @ w, lambda x, w: LINEAR(x)], [lambda x, w: mint.bmm(x[None], w[None])]),
    "columns": ([X, IDS], [lambda x, i: x[:, 1:3], lambda x, i: mint.cat(mint.split(x, 2, -1), -1),
                           lambda x, i: x[i], lambda x, i: mint.nn.functional.pad(x, (1, 1))], [lambda x, i: x[x > 0]]),
    "slices": ([X, W], [], [lambda x, w: x[2:5], lambda x, w: x.reshape(4, 8), lambda x, w: x.T,
                            lambda x, w: mint.softmax(x, 0), lambda x, w: mint.amax(x, 0)]),
    "Python `if`": ([X, W], [looped], [lambda x, w: x if x.sum() > 0 else -x]),
    "in-place": ([X, W], [], [written, lambda x, w: mint.nn.functional.dropout(x, 0.5, True),
                              lambda x, w: np.maximum.reduce(x), lambda x, w: x + ms.Tensor(np.random.rand(4), F32)]),
    "`dispatch`": (MOE, [with_bias], []),
    "`permute`": (MOE, [], [permuted]),
    "the router": ([X, W], [], [lambda x, w: mint.topk(x, 2, -1)[0]]),
    "shared expert": (MOE, [capped], []),
    "float32": ([X, IDS], [lambda x, i: x.astype(ms.bfloat16) * 2, lambda x, i: x.astype(ms.float16) * 2],
                [lambda x, i: x.astype(ms.float64), lambda x, i: i + 1]),
}


def rows_of(claim):
    return [row for row in ROWS if row[0].startswith(claim)]


@pytest.mark.parametrize("claim", CLAIMS)
def test_what_is_granted_becomes_tiles_and_what_is_denied_is_refused(claim):
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
    assert "permute" in names and hpmoe.permute(args[0], args[1])[0].shape == (16, 4)


def test_every_other_row_says_where_it_is_shown():
    checked = {row for claim in CLAIMS for row in rows_of(claim)}
    others = [row for row in ROWS if row not in checked]
    assert len(others) < len(ROWS) / 2
    assert [row[0] for row in others if "](" not in row[2]] == ["ranks"]
