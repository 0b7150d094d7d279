"""Suggestions of errors are written literally here, traced and cut into tiles."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, ops
from untraceable import CATALOGUE, PLAIN, ROWS, F

import hpmoe
from hpmoe import ShapeDtypeStruct
from hpmoe.primitives.dispatch import combine, dispatch
from hpmoe.support.errors import TransformError

X = ShapeDtypeStruct((3, 4), "float32")
GIVEN = Tensor(np.full((3, 4), 0.5, np.float32))  # what is decided or drawn outside
IDS = Tensor([0, 2], ms.int32)
COLUMNS = Tensor([[0, 2], [1, 0], [3, 1]], ms.int32)


def chosen(x):
    return mint.where(x.sum() > 0, x, -x)


def outside(x):
    return x * GIVEN


# For each error of CATALOGUE what its text says to write; some say to leave something out, or to do it outside.
INSTEAD = {
    "if": chosen, "while": chosen, "in": chosen,
    "asnumpy": outside, "item": lambda x: x * x.sum(), "tolist": outside, "int": lambda x: x * x.sum(),
    "float": lambda x: x * x.sum(), "format": lambda x: print(x) or x * x.sum(),
    "range": outside, "asarray": outside, "numpy": lambda x: mint.sum(x),
    "ufunc": lambda x: mint.exp(x), "setitem": lambda x: mint.where(GIVEN > 1, GIVEN, x),
    "iadd": lambda x: x + 1, "add_": lambda x: x + 1,
    "zero_": lambda x: mint.zeros_like(x), "assign": lambda x: x + 0, "set_data": lambda x: x + 0,
    "write_plain": lambda x: x + PLAIN,
    "jit": lambda x: x * x, "grad": outside, "value_and_grad": outside, "ops_grad": outside, "grad_of_closure": outside,
    "vjp": outside,
    "unknown": lambda x: mint.exp(x) + mint.sum(x, -1, True), "nearest": lambda x: mint.sin(x),
    "no_kernel": lambda x: x + Tensor(np.arange(4)), "for_ascend": lambda x: mint.sum(x * x, -1),
    "bincount": lambda x: (F.one_hot(mint.argmax(x, -1), 4).sum(0),
                           hpmoe.router.tokens_per_expert(mint.topk(x, 2)[1], num_experts=4)),
    "scatter_reduce": lambda x: mint.scatter_add(x, 1, COLUMNS[:, :1], mint.ones_like(x[:, :1])),
    "topk": outside, "nonzero": lambda x: mint.where(x > 0, x, 0), "mask": lambda x: mint.where(x > 0, x, 0),
    "dropout": outside, "random": outside, "np_random": outside, "seed": outside, "new_layer": outside,
    "ops_randn": outside, "bernoulli": outside, "mint_rand": outside, "generator": outside, "off_or_on": outside,
    "all_reduce": lambda x: x * 2,
    "batched_matmul": lambda x: [x @ w for w in ops.unstack(WEIGHTS, 0)],
    "gather_shapes": lambda x: mint.gather(x, 1, COLUMNS),
    "scatter_shapes": lambda x: mint.scatter_add(x, 1, COLUMNS, x[:, :2]),
    "classes": lambda x: F.one_hot(x[:, 0].astype(ms.int32), num_classes=4),
    "class_dimension": lambda x: ops.one_hot(x[:, 0].astype(ms.int32), 4, axis=-1),
    "decimals": lambda x: mint.round(x), "repeats": lambda x: x[:, [0, 0, 1]],
    "no_repeats": lambda x: mint.repeat_interleave(x, 2, dim=1),
    "stack": lambda x: mint.stack((x, x), -1),
    "step": lambda x: x[:, list(range(*slice(None, None, -1).indices(x.shape[1])))],
    "two_tensors": lambda x: x[IDS][:, [0, 2]],
    "integer_division": lambda x: x.astype(ms.float32) // 2, "mean_of_integers": lambda x: mint.mean(x.astype(ms.float32)),
    "hard_integers": lambda x: F.hardswish(x.astype(ms.float32)), "no_bounds": lambda x: x.clamp(min=0.0).clamp(max=1.0),
    "t_of_three": lambda x: mint.transpose(x[None], 0, 1),
    "outer_of_matrices": lambda x: mint.outer(x.flatten(), GIVEN.flatten()),
    "truth_values": lambda x: ((x > 0) != (x > 1), (x > 0).astype(ms.float32)),
    "part_of_it": lambda x: mint.split(x, (1, 3), 1), "uneven": lambda x: ops.Split(1, 2)(x),
    "no_chunks": lambda x: mint.chunk(x, 2, 1), "no_size": lambda x: mint.split(x, 2, 1),
    "no_copies": lambda x: mint.tile(x, (1, 2)), "odd_halves": lambda x: F.glu(x, -1),
    "new_dimension": lambda x: mint.unsqueeze(x, 2), "stack_dimension": lambda x: mint.stack((x, x), dim=-1),
    "norm_of_others": lambda x: F.layer_norm(x, (4,)),
    "number": lambda x: (x, mint.full_like(x, 3)), "array": lambda x: mint.ones_like(x), "operand": lambda x: x * GIVEN,
}
WEIGHTS = ms.Parameter(Tensor(np.ones((2, 4, 5), np.float32)), name="weights")
INSTEAD_OF_ROWS = {
    "equal": lambda rows, route: mint.where(GIVEN[0] > 0, rows, -rows), "less": lambda rows, route: -rows,
    "bool": lambda rows, route: -rows, "int": lambda rows, route: rows * 2,
    "times": lambda rows, route: rows.reshape(-1, 2, 2).reshape(-1, 4), "range": lambda rows, route: rows,
    "len": lambda rows, route: rows, "size": lambda rows, route: mint.zeros_like(rows),
    "zeros": lambda rows, route: mint.zeros_like(rows), "full_like": lambda rows, route: mint.zeros_like(rows) + 1.0,
    "function": lambda rows, route: rows.reshape(-1, 2, 2).reshape(-1, 4),
    "reshape": lambda rows, route: rows.reshape(-1, 4), "iterate": lambda rows, route: rows,
    "index": lambda rows, route: rows[:, :1] * rows, "slice": lambda rows, route: rows[:, :3],
    "split": lambda rows, route: mint.split(rows, 2, 1)[0], "mean": lambda rows, route: mint.mean(rows, 1, True) * rows,
    "cat": lambda rows, route: mint.cat((rows, rows), 1), "operand": lambda rows, route: rows * 2,
    "gather": lambda rows, route: rows,
}


def test_every_error_has_its_suggestion_written():
    assert INSTEAD.keys() == CATALOGUE.keys() and INSTEAD_OF_ROWS.keys() == ROWS.keys()


@pytest.mark.parametrize("name", INSTEAD)
def test_a_suggestion_is_traced_and_tiled(name):
    assert hpmoe.tile_partition(INSTEAD[name]).lower(X).num_tasks


@pytest.mark.parametrize("name", INSTEAD_OF_ROWS)
def test_a_suggestion_for_received_rows_is_traced_and_tiled(name):
    def layer(x, ids):
        rows, route = dispatch(x, ids, num_local_experts=4)
        return combine(INSTEAD_OF_ROWS[name](rows, route), route)

    flow = hpmoe.tile_partition(layer).lower(ShapeDtypeStruct((6, 4), "float32"), ShapeDtypeStruct((6, 2), "int32"))
    assert flow.num_tasks and flow.routes


def test_reversed_columns_are_those():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    for f, want in ((INSTEAD["step"], x[:, ::-1]), (lambda x: x[:, [3, 1, -1, 0, 2]], x[:, [3, 1, -1, 0, 2]]),
                    (lambda x: x[:, [0, 2, 1, 3]], x[:, [0, 2, 1, 3]])):
        assert np.array_equal(hpmoe.tile_partition(f)(Tensor(x)).asnumpy(), want)
    with pytest.raises(IndexError, match="out of bounds"):
        hpmoe.trace(lambda x: x[:, [4]], X)


# What tiles refuse, and what that error says to do.

MIXING = {
    "softmax": (lambda x: mint.softmax(x, 0), r"works along axis 0 of f32\[3,4\] and mixes rows"),
    "maximum": (lambda x: mint.amax(x, 0), r"works along axis 0 of f32\[3,4\] and mixes rows"),
    "slice": (lambda x: x[:2] * 2, r"works along axis 0 of f32\[3,4\] and mixes rows: a tile task computes slice"),
    "concat": (lambda x: mint.cat((x, x)), r"works along axis 0 of f32\[3,4\] and mixes rows: a tile task computes concat"),
    "transpose": (lambda x: mint.transpose(x, 0, 1) * 2, r"transposes f32\[3,4\] and mixes rows"),
    "broadcast": (lambda x: x[None] + GIVEN[:, None], r"broadcasts f32\[1,3,4\] to f32\[3,3,4\] and mixes rows"),
}


@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_rows_says_so_and_where(name):
    f, text = MIXING[name]
    where = r"written at .*test_suggestions\.py"
    with pytest.raises(TransformError, match=rf"(?s)equation \d+ \(\w+\).*{text}.*{where}") as caught:
        hpmoe.tile_partition(f).lower(X)
    assert "tile rule" not in str(caught.value)


def test_what_has_no_tile_rule_says_that():
    def scatters(x):
        return x[IDS]

    with pytest.raises(TransformError, match=r"\(scatter\).*has no tile rule") as caught:
        hpmoe.tile_partition(scatters).lower(X, direction="backward")
    assert "mixes rows" not in str(caught.value)


@pytest.mark.parametrize("f, instead", [
    (lambda x: mint.transpose(x, 0, 1) * 2, lambda x: x @ (GIVEN * 1.0).T),
    (lambda x: mint.softmax(x, 0), lambda x: mint.softmax(x, 1)),
    (lambda x: x[:2] * 2, lambda x: x[:, :2] * 2),
])
def test_what_errors_of_tiles_suggest_works(f, instead):
    with pytest.raises(TransformError):
        hpmoe.tile_partition(f).lower(X)
    assert hpmoe.tile_partition(instead).lower(X).num_tasks
