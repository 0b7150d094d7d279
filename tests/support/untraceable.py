"""Functions that cannot be traced, by a name; the golden file has what their errors say."""

import random

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, ops

from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.primitives.dispatch import dispatch
from hpmoe.primitives.elementwise import add
from hpmoe.tracing import trace

F = mint.nn.functional
X = ShapeDtypeStruct((3, 4), "float32")
PLAIN = Tensor(np.ones((3, 4), np.float32))
OWN = ms.Generator()
WEIGHT = Parameter(PLAIN.copy(), name="weight")


def branch(x):
    return x if x.sum() > 0 else -x


def loop(x):
    while (x > 0).all():
        x = x - 1
    return x


def write(x):
    x[0] = 1.0
    return x


def add_in_place(x):
    x += 1
    return x


def write_plain(x):
    PLAIN[0] = x[0]
    return x


@ms.jit
def compiled(x):
    return x * x


def square_sum(x):
    return (x * x).sum()


CATALOGUE = {
    "if": branch,
    "while": loop,
    "in": lambda x: x if 3 in x else -x,
    "asnumpy": lambda x: x.asnumpy(),
    "item": lambda x: x.sum().item(),
    "tolist": lambda x: x.tolist(),
    "int": lambda x: int(x.sum()),
    "float": lambda x: float(x.sum()),
    "format": lambda x: f"{x.sum():.3f}",
    "range": lambda x: [x for _ in range(x.sum())],
    "asarray": lambda x: np.asarray(x),
    "numpy": lambda x: np.sum(x),
    "ufunc": lambda x: np.exp(x),
    "setitem": write,
    "iadd": add_in_place,
    "add_": lambda x: x.add_(1),
    "zero_": lambda x: x.zero_(),
    "assign": lambda x: ops.assign(WEIGHT, x),
    "set_data": lambda x: WEIGHT.set_data(x),
    "write_plain": write_plain,
    "jit": lambda x: compiled(x),
    "grad": lambda x: ms.grad(square_sum)(x),
    "value_and_grad": lambda x: ms.value_and_grad(square_sum)(x),
    "ops_grad": lambda x: ops.grad(square_sum)(x),
    "grad_of_closure": lambda x: ms.grad(lambda w: (w * x).sum())(PLAIN),
    "vjp": lambda x: ops.vjp(square_sum, x),
    "unknown": lambda x: ops.cumprod(x, 0),
    "nearest": lambda x: mint.sinc(x),
    "topk": lambda x: mint.topk(x, 5),
    "no_kernel": lambda x: x + mint.arange(4),
    "for_ascend": lambda x: mint.einsum("te,te->t", x, x),
    "bincount": lambda x: mint.bincount(mint.argmax(x, -1)),
    "scatter_reduce": lambda x: x.scatter(1, x[:, :1].int(), 1.0, reduce="add"),
    "nonzero": lambda x: mint.nonzero(x),
    "mask": lambda x: x[x > 0],
    "dropout": lambda x: ops.dropout(x),
    "random": lambda x: x * random.choice([1.0, 2.0]),
    "np_random": lambda x: x * np.random.randn(),
    "seed": lambda x: np.random.seed(random.randrange(99)) or x,
    "new_layer": lambda x: mint.nn.Linear(4, 2)(x),
    "ops_randn": lambda x: x + ops.randn(3, 4),
    "bernoulli": lambda x: x * ops.bernoulli(PLAIN, 0.5),
    "mint_rand": lambda x: x + mint.rand((3, 4)),
    "generator": lambda x: x + mint.rand((3, 4), generator=OWN),
    "off_or_on": lambda x: ops.auto_generate.func_dropout_ext_op(x, 0.5, True, False, PLAIN, PLAIN),
    "all_reduce": lambda x: ops.AllReduce()(x),
    "batched_matmul": lambda x: mint.bmm(x[None], x.T[None]),
    "gather_shapes": lambda x: mint.gather(x, 1, Tensor(np.zeros((2, 2), np.int32))),
    "scatter_shapes": lambda x: x.scatter_add(1, Tensor(np.zeros((3, 2), np.int32)), x),
    "classes": lambda x: F.one_hot(x.astype(ms.int32)),
    "class_dimension": lambda x: ops.one_hot(x.astype(ms.int32), 4, axis=0),
    "repeats": lambda x: mint.repeat_interleave(x, Tensor([2, 0, 1, 1]), dim=1),
    "no_repeats": lambda x: mint.repeat_interleave(x, 0, dim=1),
    "decimals": lambda x: mint.round(x, decimals=1),
    "stack": lambda x: ops.stack((x, x)),
    "step": lambda x: x[:, ::-1],
    "two_tensors": lambda x: x[Tensor([0]), Tensor([1])],
    "integer_division": lambda x: mint.div(x.astype(ms.int32), 2, rounding_mode="trunc"),
    "mean_of_integers": lambda x: mint.mean(x.astype(ms.int32)),
    "hard_integers": lambda x: F.hardswish(x.astype(ms.int32)),
    "no_bounds": lambda x: x.clamp(None, None),
    "t_of_three": lambda x: mint.t(x[None]),
    "outer_of_matrices": lambda x: mint.outer(x[0], x),
    "truth_values": lambda x: (x > 0) - (x > 1),
    "part_of_it": lambda x: mint.split(x, (1, 2), 1),
    "uneven": lambda x: ops.Split(1, 3)(x),
    "no_chunks": lambda x: mint.chunk(x, 0),
    "no_size": lambda x: mint.split(x, 0),
    "no_copies": lambda x: mint.tile(x, (0, 1)),
    "odd_halves": lambda x: F.glu(x, 0),
    "new_dimension": lambda x: mint.unsqueeze(x, 3),
    "stack_dimension": lambda x: mint.stack((x, x), dim=-4),
    "norm_of_others": lambda x: F.layer_norm(x, (5,)),
    "number": lambda x: (x, 3),
    "array": lambda x: np.ones(3),
    "operand": lambda x: trace_of_object(x),
}


def trace_of_object(x):
    return x.hpmoe_recorder(add, x, object())


def routed(f):
    x, ids = ShapeDtypeStruct((6, 4), "float32"), ShapeDtypeStruct((6, 2), "int32")
    return trace(lambda x, ids: f(*dispatch(x, ids, num_local_experts=4)), x, ids)


ROWS = {
    "equal": lambda rows, route: rows if rows.shape[0] == 5 else -rows,
    "less": lambda rows, route: rows if rows.shape[0] < 5 else -rows,
    "bool": lambda rows, route: rows if rows.shape[0] else -rows,
    "int": lambda rows, route: rows * int(rows.shape[0]),
    "times": lambda rows, route: rows.reshape(rows.shape[0] * 4),
    "range": lambda rows, route: [rows for _ in range(rows.shape[0])],
    "len": lambda rows, route: len(rows),
    "size": lambda rows, route: rows.size,
    "zeros": lambda rows, route: mint.zeros(rows.shape),
    "full_like": lambda rows, route: ops.full_like(rows, 1.0),
    "function": lambda rows, route: mint.reshape(rows, (rows.shape[0], 2, 2)),
    "reshape": lambda rows, route: rows.reshape(-1, 2),
    "iterate": lambda rows, route: [row for row in rows],
    "index": lambda rows, route: rows[0],
    "slice": lambda rows, route: rows[:3],
    "split": lambda rows, route: mint.split(rows, 2),
    "mean": lambda rows, route: rows.mean(0),
    "cat": lambda rows, route: mint.cat((rows, rows)),
    "operand": lambda rows, route: rows * rows.shape[0],
    "gather": lambda rows, route: rows[Tensor([0, 1])],
}
