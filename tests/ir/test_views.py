"""Arrays read in other shapes than they are stored in: random small programs of reshapes, sums and broadcasts in small
tiles.

Each is proved by brute force, interpreted in several orders and run natively, against float64 op by op.
"""

import dataclasses
import math

import numpy as np
import pytest
from helpers import TIMEOUT, assert_every_access_ordered, relative_error
from mindspore import mint
from tile_words import kind

import hpmoe
from hpmoe import assign_queues, cpu, fuse_persistent, tile_partition

as_program = hpmoe.transform(lambda program: program)


def count_right_directions(f, shapes, rows, cols, num_tokens=None, seed=0):
    """Returns the number of directions of `f` that tiles accept; AssertionError if an accepted one is wrong or unordered."""
    avals, rng, checked = [hpmoe.ShapeDtypeStruct(s, "float32") for s in shapes], np.random.default_rng(seed), 0
    queues = assign_queues(tile_partition(f, rows=rows, cols=cols), machine=cpu(2))
    for direction in ("forward", "backward"):
        try:
            flow = queues.lower(*avals, direction=direction)
        except (hpmoe.TransformError, hpmoe.TraceError, hpmoe.ArgumentError):
            continue
        program = as_program(f).lower(*avals, direction=direction)
        inputs = [[rng.standard_normal(v.aval.shape).astype(np.float32) for v in program.inputs]]
        want = hpmoe.interpret(program, inputs, num_tokens, dtype="float64")[0]
        kernel = fuse_persistent(queues, timeout=TIMEOUT).lower(*avals, direction=direction)
        runs = [hpmoe.interpret(flow, inputs, num_tokens, seed) for seed in (None, 1, 2)]
        for run in (*runs, kernel.run(inputs, num_tokens)):
            for got, exact in zip(run[0], want, strict=True):
                assert relative_error(got, exact) <= 1e-5, (f"{direction} {shapes} in tiles of {rows} x {cols}", program)
        assert_every_access_ordered(flow, [], num_tokens)
        checked += 1
    return checked


# Random programs.

SHAPES = ("rc", "rc", "r1", "1c", "c", "r", "", "cc", "rc2")
STEPS = ("mul", "add", "sum", "sum0", "sum_last", "keep_sum", "reshape", "where", "slice", "cat", "broadcast", "matmul",
         "tanh")


def random_step(rng, shapes, rows, cols):
    """(function of the values so far, shape of its result), or None where what was drawn does not fit."""
    kind, i, j = rng.choice(STEPS), *(int(k) for k in rng.integers(len(shapes), size=2))
    s, t = shapes[i], shapes[j]
    if kind in ("mul", "add"):
        if any(a != b and 1 not in (a, b) for a, b in zip(s[::-1], t[::-1], strict=False)):
            return None
        return (lambda v: v[i] * v[j] if kind == "mul" else v[i] + v[j]), np.broadcast_shapes(s, t)
    if kind in ("sum", "tanh", "where"):
        of = {"sum": mint.sum, "tanh": mint.tanh, "where": lambda x: mint.where(x > 0, x, x * 0.5)}[kind]
        return (lambda v: of(v[i])), (() if kind == "sum" else s)
    if not s:
        return None
    if kind == "reshape":
        n = math.prod(s)
        shape = (*[(n,), (1, n), (n, 1), (*s, 1), (1, *s)], *[(d, n // d) for d in range(2, n) if n % d == 0])
        shape = shape[rng.integers(len(shape))]
        return (lambda v: v[i].reshape(shape)), shape
    if kind == "slice":
        start, stop = sorted(rng.integers(s[-1] + 1, size=2).tolist())
        return ((lambda v: v[i][..., start:stop]), (*s[:-1], stop - start)) if start < stop else None
    if kind == "cat":
        return ((lambda v: mint.cat([v[i], v[j]], dim=-1)), (*s[:-1], s[-1] + t[-1])) if t[:-1] == s[:-1] and t else None
    if kind == "broadcast":
        shape = [(rows, *s), (rows, cols), (*s[:-1], cols)][rng.integers(3)]
        fits = len(shape) >= len(s) and all(a in (1, b) for a, b in zip(s[::-1], shape[::-1], strict=False))
        return ((lambda v: mint.broadcast_to(v[i], shape)), shape) if fits else None
    if kind == "matmul":
        fits = len(s) == len(t) == 2 and s[1] == t[0]
        return ((lambda v: mint.matmul(v[i], v[j])), (s[0], t[1])) if fits else None
    axis, keep = (0 if kind == "sum0" else len(s) - 1), kind == "keep_sum"
    return (lambda v: mint.sum(v[i], dim=axis, keepdim=keep)), s[:axis] + (1,) * keep + s[axis + 1:]


def random_program(rng):
    rows, cols = (int(n) for n in rng.integers(1, 8, size=2))
    sizes = {"r": rows, "c": cols, "1": 1, "2": 2}
    inputs = [(rows, cols)] + [tuple(sizes[d] for d in SHAPES[rng.integers(len(SHAPES))]) for _ in range(rng.integers(3))]
    shapes, steps = list(inputs), []
    while len(steps) < 4:
        step = random_step(rng, shapes, rows, cols)
        if step is not None:
            steps.append(step[0])
            shapes.append(step[1])
    outputs = [len(shapes) - 1, *rng.integers(len(shapes), size=rng.integers(3)).tolist()]

    def f(*args):
        values = list(args)
        for step in steps:
            values.append(step(values))
        return tuple(values[i] for i in outputs)
    return f, inputs


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_random_programs(first):
    checked = 0
    for seed in range(first, first + 20):
        rng = np.random.default_rng(seed)
        f, shapes = random_program(rng)
        rows, cols = (int(n) for n in rng.integers(1, 5, size=2))
        checked += count_right_directions(f, shapes, rows, cols, seed=seed)
    assert checked > 20


# What they broke once, and how rows that are no tokens are told from those that are.

def two_sums(x):
    return mint.sum(x * 3.0), x


def row_sums_as_a_row(x):
    return x * mint.sum(x, dim=-1)


def sums_of_sums(x):
    return mint.sum(mint.sum(x.reshape(1, *x.shape), dim=-1), dim=-1, keepdim=True)


def column_sums(x):
    return mint.sum(x, dim=0)


def scaled_vector(x):
    return x.reshape(-1) * 2.0 + 1.0


VIEWS = (two_sums, row_sums_as_a_row, sums_of_sums, column_sums, scaled_vector)


@pytest.mark.parametrize("tile", [(1, 1), (2, 3), (3, 2), (4, 9)])
@pytest.mark.parametrize("f", VIEWS)
def test_views(f, tile):
    for shape in ((5, 4), (4, 4), (1, 3), (3, 1), (7, 7)):
        if f is not row_sums_as_a_row or shape[0] == shape[1]:
            assert count_right_directions(f, [shape], *tile)


@pytest.mark.parametrize("length", range(6))
@pytest.mark.parametrize("f", [two_sums, column_sums])
def test_views_where_some_rows_are_padding(f, length):
    for tile in ((2, 3), (3, 1)):
        assert count_right_directions(f, [(5, 4)], *tile, num_tokens=[length]) == 2
        assert count_right_directions(f, [(1, 4)], *tile, num_tokens=[min(1, length)]) == 2


def test_verify_counts_tokens_only_where_rows_are_tokens():
    """The row that a sum makes, taken for as many tokens as there are, would be waited for for ever."""
    flow = tile_partition(lambda x: (mint.sum(x, 0) * 3.0, x), rows=2,
                          cols=3).lower(hpmoe.ShapeDtypeStruct((5, 4), "float32"))
    row = next(i for i, op in enumerate(flow.ops) if kind(op) == "tiles" and op.domain.num_rows == 1)
    op = flow.ops[row].replace(domain=dataclasses.replace(flow.ops[row].domain, clipped=True))
    clipped = hpmoe.rewriting.rebuild(flow, (*flow.ops[:row], op, *flow.ops[row + 1:]))
    with pytest.raises(hpmoe.VerifyError, match="mul leaves out padding, but its rows are 1 and a rank has 5 tokens\\.\n"):
        hpmoe.verify(clipped)
