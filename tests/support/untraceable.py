"""Functions that cannot be traced, by a name, with what their error calls it and what it says to write instead."""

import random

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, ops

from hpmoe.ir.avals import Aval
from hpmoe.primitives.dispatch import dispatch
from hpmoe.primitives.elementwise import add
from hpmoe.tracing import trace

F = mint.nn.functional
X = Aval((3, 4), "float32")
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
    "if": (branch, "a Python branch on bool", "mint.where"),
    "while": (loop, "a Python branch on bool", "mint.where"),
    "in": (lambda x: x if 3 in x else -x, "a Python branch", "mint.where"),
    "asnumpy": (lambda x: x.asnumpy(), r"\.asnumpy\(\) of f32\[3,4\]", "tensor operations"),
    "item": (lambda x: x.sum().item(), r"\.item\(\) of f32\[\]", "tensor operations"),
    "tolist": (lambda x: x.tolist(), r"\.tolist\(\)", "tensor operations"),
    "int": (lambda x: int(x.sum()), r"turning f32\[\] into a number", "tensor operations"),
    "float": (lambda x: float(x.sum()), "into a number", "tensor operations"),
    "format": (lambda x: f"{x.sum():.3f}", r"formatting f32\[\] as a number, '\.3f'", r"print\(x\)"),
    "range": (lambda x: [x for _ in range(x.sum())], "into a number", "tensor operations"),
    "asarray": (lambda x: np.asarray(x), r"reading the values of f32\[3,4\]", "tensor operations"),
    "numpy": (lambda x: np.sum(x), r"numpy\.sum of", "the mint function"),
    "ufunc": (lambda x: np.exp(x), "a function of NumPy on a tracer", "the mint function"),
    "setitem": (write, r"in-place write to f32\[3,4\]", "mint.where"),
    "iadd": (add_in_place, "in-place write", "a new value"),
    "add_": (lambda x: x.add_(1), "in-place write InplaceAdd", "a new value"),
    "zero_": (lambda x: x.zero_(), "in-place write InplaceZero", "a new value"),
    "assign": (lambda x: ops.assign(WEIGHT, x), "in-place write Assign", "a new value"),
    "set_data": (lambda x: WEIGHT.set_data(x), "set_data on Parameter weight", "a new value"),
    "write_plain": (write_plain, "PLAIN", "new values"),
    "jit": (lambda x: compiled(x), "compiled with ms.jit", "without ms.jit"),
    "grad": (lambda x: ms.grad(square_sum)(x), "ms.grad", r"hpmoe\.vjp"),
    "value_and_grad": (lambda x: ms.value_and_grad(square_sum)(x), "ms.value_and_grad", r"hpmoe\.vjp"),
    "ops_grad": (lambda x: ops.grad(square_sum)(x), "ms.grad", r"hpmoe\.vjp"),
    "grad_of_closure": (lambda x: ms.grad(lambda w: (w * x).sum())(PLAIN), "ms.grad", r"hpmoe\.vjp"),
    "vjp": (lambda x: ops.vjp(square_sum, x), "ms.grad", r"hpmoe\.vjp"),
    "unknown": (lambda x: ops.cumprod(x, 0), "operation CumProd", "elementwise mint functions"),
    "nearest": (lambda x: mint.sinc(x), "operation Sinc", "Sin, Sinh"),
    "topk": (lambda x: mint.topk(x, 5), r"the largest 5 along dimension -1 of f32\[3,4\]", r"a number in 1\.\.4"),
    "no_kernel": (lambda x: x + mint.arange(4), "plain tensors or numbers alone .* The kernel Arange", r"np\.arange"),
    "for_ascend": (lambda x: mint.einsum("te,te->t", x, x), "einsum only supports Ascend", "sums and x @ w"),
    "bincount": (lambda x: mint.bincount(mint.argmax(x, -1)), "operation Bincount", "tokens_per_expert"),
    "scatter_reduce": (lambda x: x.scatter(1, x[:, :1].int(), 1.0, reduce="add"), "scatter with reduce='add'",
                       "scatter_add"),
    "nonzero": (lambda x: mint.nonzero(x), "operation NonZero", "keeps the shape"),
    "mask": (lambda x: x[x > 0], r"indexing with bool\[3,4\]", "mint.where"),
    "dropout": (lambda x: ops.dropout(x), "random operation Dropout", r"set_train\(False\)"),
    "random": (lambda x: x * random.choice([1.0, 2.0]), "a draw from Python's random", "random numbers as an argument"),
    "np_random": (lambda x: x * np.random.randn(), r"a draw from numpy\.random", "random numbers as an argument"),
    "seed": (lambda x: np.random.seed(random.randrange(99)) or x, "a draw from Python's random", "random numbers"),
    "new_layer": (lambda x: mint.nn.Linear(4, 2)(x), r"a draw from numpy\.random", "random numbers as an argument"),
    "ops_randn": (lambda x: x + ops.randn(3, 4), "random operation StandardNormal", "random numbers as an argument"),
    "bernoulli": (lambda x: x * ops.bernoulli(PLAIN, 0.5), "random operation Bernoulli", "random numbers as an argument"),
    "mint_rand": (lambda x: x + mint.rand((3, 4)), "a draw from a generator of MindSpore", "random numbers as an argument"),
    "generator": (lambda x: x + mint.rand((3, 4), generator=OWN), "a draw from a generator of MindSpore", "random numbers"),
    "off_or_on": (lambda x: ops.auto_generate.func_dropout_ext_op(x, 0.5, True, False, PLAIN, PLAIN),
                  "random operation FuncDropoutExt", r"set_train\(False\)"),
    "all_reduce": (lambda x: ops.AllReduce()(x), "collective AllReduce", "hpmoe.dispatch"),
    "batched_matmul": (lambda x: mint.bmm(x[None], x.T[None]), "batched matmul of", "grouped_matmul"),
    "gather_shapes": (lambda x: mint.gather(x, 1, Tensor(np.zeros((2, 2), np.int32))),
                      r"a gather at dimension 1 of f32\[3,4\] by i32\[2,2\]", "equal but for the one"),
    "scatter_shapes": (lambda x: x.scatter_add(1, Tensor(np.zeros((3, 2), np.int32)), x),
                       r"a scatter of f32\[3,4\] by i32\[3,2\]", "a source of the index's shape"),
    "classes": (lambda x: F.one_hot(x.astype(ms.int32)), "one_hot of -1 classes", "num_classes="),
    "class_dimension": (lambda x: ops.one_hot(x.astype(ms.int32), 4, axis=0), "its classes in dimension 0", "axis=-1"),
    "repeats": (lambda x: mint.repeat_interleave(x, Tensor([2, 0, 1, 1]), dim=1), "repeat_interleave by a tensor",
                r"\[0, 0, 1\]"),
    "no_repeats": (lambda x: mint.repeat_interleave(x, 0, dim=1), "repeat_interleave by 0", "a positive int"),
    "decimals": (lambda x: mint.round(x, decimals=1), "rounding to 1 decimals", r"mint\.round"),
    "stack": (lambda x: ops.stack((x, x)), "ops.stack", "mint.stack"),
    "step": (lambda x: x[:, ::-1], "slice of step -1", r"x\[:, list\(range"),
    "two_tensors": (lambda x: x[Tensor([0]), Tensor([1])], "several tensors", "mint.where"),
    "integer_division": (lambda x: mint.div(x.astype(ms.int32), 2, rounding_mode="trunc"), "rounding_mode='trunc'", "floor"),
    "mean_of_integers": (lambda x: mint.mean(x.astype(ms.int32)), r"a mean of i32\[3,4\]", "astype"),
    "hard_integers": (lambda x: F.hardswish(x.astype(ms.int32)), r"a hard swish of i32\[3,4\]", "astype"),
    "no_bounds": (lambda x: x.clamp(None, None), "a clamp without bounds", "min="),
    "t_of_three": (lambda x: mint.t(x[None]), r"t of f32\[1,3,4\]", "mint.transpose"),
    "outer_of_matrices": (lambda x: mint.outer(x[0], x), r"an outer product with f32\[3,4\]", "x.flatten"),
    "truth_values": (lambda x: (x > 0) - (x > 1), "a difference of truth values", "a != b"),
    "part_of_it": (lambda x: mint.split(x, (1, 2), 1), r"cutting 4 of f32\[3,4\] into \[1, 2\]", "add up to 4"),
    "uneven": (lambda x: ops.Split(1, 3)(x), r"cutting 4 of f32\[3,4\] into \[1, 1, 1\]", "add up to 4"),
    "no_chunks": (lambda x: mint.chunk(x, 0), "0 chunks", "a positive number"),
    "no_size": (lambda x: mint.split(x, 0), "parts of 0", "a positive number"),
    "no_copies": (lambda x: mint.tile(x, (0, 1)), r"0 copies of f32\[3,4\]", "positive counts"),
    "odd_halves": (lambda x: F.glu(x, 0), r"a glu over 3 of f32\[3,4\]", "an even size"),
    "new_dimension": (lambda x: mint.unsqueeze(x, 3), r"dimension 3 of f32\[3,4\]", r"one in -3\.\.2"),
    "stack_dimension": (lambda x: mint.stack((x, x), dim=-4), r"dimension -4 of f32\[3,4\]", r"one in -3\.\.2"),
    "norm_of_others": (lambda x: F.layer_norm(x, (5,)), r"layer_norm of f32\[3,4\] over \(5,\)", r"normalized_shape=\(4,\)"),
    "number": (lambda x: (x, 3), "returning a value of type int", "mint.full_like"),
    "array": (lambda x: np.ones(3), "returning a value of type ndarray", "a tensor"),
    "operand": (lambda x: trace_of_object(x), "a value of type object as operand 1 of add", "mindspore.Tensor"),
}


def trace_of_object(x):
    return x.hpmoe_recorder(add, x, object())


def routed(f):
    x, ids = Aval((6, 4), "float32"), Aval((6, 2), "int32")
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
