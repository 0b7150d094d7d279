"""Traces of arguments, captures, cells, routes and known spellings."""

import resource
import threading

import mindspore as ms
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops

from hpmoe.autodiff.vjp import linearize
from hpmoe.interpreters.interpret import interpret
from hpmoe.ir.avals import ShapeDtypeStruct
from hpmoe.machines.machine import Mesh
from hpmoe.moe import moe_ffn
from hpmoe.primitives.dispatch import combine, dispatch
from hpmoe.support.errors import ArgumentError
from hpmoe.tracing import trace, trace_with_tree

F = mint.nn.functional
RNG = np.random.default_rng(0)


def abstract(*shape, dtype="float32"):
    return ShapeDtypeStruct(shape, dtype)


def array(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def names(program):
    return [e.primitive.name for e in program.equations]


def deepseek(tokens, ep_size):
    return (abstract(tokens, 7168), abstract(tokens, 8, dtype="int32"), abstract(tokens, 8),
            abstract(256 // ep_size, 7168, 4096), abstract(256 // ep_size, 2048, 7168))


def test_moe_ffn_is_six_equations_and_takes_no_memory_for_data():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    program = trace(moe_ffn, *deepseek(4096, 8), mesh=Mesh(ep=8))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # KiB; one weight alone has 3.5 GiB
    assert names(program) == ["route", "dispatch", "grouped_matmul", "swiglu", "grouped_matmul", "combine"]
    assert program.ep_size == 8 and program.equations[0].params["ep_size"] == 8
    assert program.input_names == ("hidden_states", "topk_ids", "topk_weights", "gate_up_weight", "down_weight")


def test_traced_moe_ffn_computes_what_the_eager_one_does():
    x, weights, up, down = array(6, 4), array(6, 2), array(4, 4, 6), array(4, 3, 4)
    ids = np.stack([RNG.permutation(4)[:2] for _ in range(6)]).astype(np.int32)
    args = (x, ids, weights, up, down)
    got = interpret(trace(moe_ffn, *args), [args])[0][0]
    np.testing.assert_allclose(got, moe_ffn(*map(Tensor, args)).asnumpy(), rtol=1e-5, atol=1e-5)


def test_text_is_the_same_every_time():
    assert str(trace(moe_ffn, *deepseek(64, 1))) == str(trace(moe_ffn, *deepseek(64, 1)))


# Arguments and results.

def test_inputs_are_named_after_parameters_and_keys():
    def f(x, options, *rest):
        return options["w"] * x + rest[0] * rest[1][0]

    program = trace(f, abstract(3), {"w": abstract(3), "name": "static", "none": None}, 2.0, (abstract(3),))
    assert program.input_names == ("x", "options_w", "rest_1_0")
    assert "mul rest_1_0 2.0" in str(program)


def test_the_tree_of_the_result_is_given_back():
    program, tree = trace_with_tree(lambda x: {"a": x, "b": (x * 2, None)}, [Tensor([1.0, 2.0])])
    assert tree.unflatten(run_one(program, np.float32([1, 2])))["b"][0].tolist() == [2, 4]


def run_one(program, *arrays):
    return interpret(program, [[*arrays, *(c.asnumpy() for c in program.captures)]])[0]


def test_tensors_independent_of_inputs_are_captures():
    constant = Tensor([5.0, 6.0])
    program = trace(lambda x: (x, constant, Tensor(7.0)), abstract(2))
    assert program.captures[0] is constant and len(program.captures) == 1
    assert [v.tolist() for v in run_one(program, np.zeros(2))] == [[0, 0], [5, 6], 7]


# Captures.

class Layer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.down = mint.nn.Linear(4, 6, bias=False), nn.Dense(3, 4)
        self.norm, self.last = nn.LayerNorm((4,)), nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
        self.scale = Parameter(Tensor(np.full((2, 4), 1.5, np.float32)), name="scale")
        self.drop = nn.Dropout(p=0.5)

    def construct(self, x):
        gate, up = mint.split(self.up(self.norm(x)), 3, dim=-1)
        y = self.down(F.silu(gate) * up) * self.scale[0]
        return self.last(y) + self.drop(x) @ (2 * self.last[0].weight).T


def test_weights_of_cells_are_inputs_and_get_gradients():
    layer, x = Layer(), array(5, 4)
    layer.set_train(False)
    program = trace(layer, x)
    assert sorted(c.name for c in program.captures) == sorted(p.name for p in layer.trainable_params())
    assert "last_0_weight" in program.input_names
    assert "swiglu" in names(program) and "transpose" not in names(program)
    np.testing.assert_allclose(run_one(program, x)[0], layer(Tensor(x)).asnumpy(), rtol=1e-4, atol=1e-5)
    parts = linearize(trace(lambda x: ops.square(layer(x)).sum(), x))
    inputs = [x, *(c.asnumpy() for c in parts.forward.captures)]
    saved = interpret(parts.forward, [inputs])[0][1:]
    got = interpret(parts.backward, [[*(inputs[i] for i in parts.kept_inputs), *saved, np.float32(1)]])[0][1:]
    want = ms.grad(lambda x: ops.square(layer(x)).sum(), None, list(parts.forward.captures))(Tensor(x))
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w.asnumpy(), rtol=1e-3, atol=1e-4)


def test_operations_on_a_parameter_alone_are_recorded():
    weight = Parameter(Tensor(array(4, 4)), name="block.0/w")

    def f(x):
        return x @ weight.T + weight[0] + mint.exp(weight)[1] + weight.view(-1)[:4] + sum(weight)

    program, x = trace(f, abstract(3, 4)), array(3, 4)
    assert program.input_names == ("x", "block_0_w") and program.captures == (weight,)
    np.testing.assert_allclose(run_one(program, x)[0], f(Tensor(x)).asnumpy(), rtol=1e-5)


def test_a_plain_tensor_left_of_a_tracer():
    left = Tensor(array(3, 4))

    def f(x):
        return left * x + left - (left / x) @ mint.ones((4, 4)) + (left > x).astype(ms.float32)

    program, x = trace(f, abstract(3, 4)), array(3, 4)
    assert program.captures[0] is left and program.input_names[1] == "captured_0"
    np.testing.assert_allclose(run_one(program, x)[0], f(Tensor(x)).asnumpy(), rtol=1e-4, atol=1e-5)


def test_mindspore_is_left_as_it_was():
    def in_another_thread(x):
        seen = []
        worker = threading.Thread(target=lambda: seen.append((weight * 2).asnumpy().tolist()))
        worker.start()
        worker.join()
        assert seen == [[2.0, 4.0]]
        return x

    weight = Parameter(Tensor([1.0, 2.0]), name="w")
    trace(in_another_thread, abstract(2))
    assert not hasattr(Tensor, "__fallback__") and not hasattr(Tensor, "hpmoe_record")
    assert "__getitem__" not in vars(Parameter) and isinstance((weight * 2)[0], Tensor)
    assert ms.grad(lambda x: (x * weight).sum())(Tensor([1.0, 1.0])).asnumpy().tolist() == [1, 2]


def test_tracing_inside_a_gradient_leaves_the_gradient_alone():
    def loss(x):
        y = x * x
        trace(lambda a: a * a, abstract(2))
        return (y * x).sum()

    assert ms.grad(loss)(Tensor([1.0, 2.0])).asnumpy().tolist() == [3, 12]


# Received rows.

def routed(f):
    ids = abstract(6, 2, dtype="int32")
    return trace(lambda x, ids: f(*dispatch(x, ids, num_local_experts=4)), abstract(6, 4), ids)


@pytest.mark.parametrize("f, text", [
    (lambda rows, route: rows.reshape(-1, 2, 2), "f32[R,2,2] = reshape[shape=(R, 2, 2)]"),
    (lambda rows, route: rows.reshape(rows.shape[0], 2, 2), "f32[R,2,2] = reshape[shape=(R, 2, 2)]"),
    (lambda rows, route: rows[:, :2] + mint.zeros_like(rows)[..., 2:], "f32[R,2] = add"),
    (lambda rows, route: rows[:rows.shape[0]].sum(-1), "f32[R]   = reduce_sum[axis=1]"),
    (lambda rows, route: rows * 2 if rows.shape == (rows * 2).shape else rows, "mul b 2"),
    (lambda rows, route: F.layer_norm(rows, (4,)), "rsqrt"),
    (lambda rows, route: combine(rows, route) * route.num_local_experts, "4"),
])
def test_received_rows_keep_their_symbolic_dimension(f, text):
    assert text in str(routed(f))


def test_ids_closed_over_are_captured():
    ids = Tensor(np.array([[0, 1]] * 6, np.int32))
    program = trace(lambda x: combine(*dispatch(x, ids, num_local_experts=2)), abstract(6, 4))
    assert program.captures == (ids,) and names(program) == ["route", "dispatch", "combine"]


# Spellings.

def halves(x):
    return mint.split(x, 3, dim=-1)


@pytest.mark.parametrize("f", [
    lambda x: F.silu(halves(x)[0]) * halves(x)[1],
    lambda x: x[..., 3:] * ops.silu(x[..., :3]),
    lambda x: ops.swiglu(x, -1),
])
def test_swiglu_is_recognized(f):
    assert names(trace(f, abstract(2, 5, 6))) == ["swiglu"]


def test_silu_written_out_is_recognized():
    def f(x):
        gate, up = mint.chunk(x, 2, -1)
        return gate * mint.sigmoid(gate) * up

    assert names(trace(f, abstract(5, 6))) == ["swiglu"]


def test_swiglu_with_the_gate_second_is_left_alone():
    assert "swiglu" not in names(trace(lambda x: F.silu(x[:, 3:]) * x[:, :3], abstract(5, 6)))
    assert "swiglu" not in names(trace(lambda x: F.silu(x[:, :2]) * x[:, 2:4], abstract(5, 6)))


def test_transposed_weights_need_no_transpose():
    for f in (lambda x, w: x @ w.T, F.linear, lambda x, w: mint.matmul(x, mint.transpose(w, 0, 1))):
        program = trace(f, abstract(5, 4), abstract(3, 4))
        assert names(program) == ["matmul"] and program.equations[0].params["transpose"]


def test_unused_work_is_dropped():
    unread = Tensor([1.0, 2.0])

    def f(x):
        mint.exp(x) * unread
        return x * 2

    program = trace(f, abstract(2))
    assert names(program) == ["mul"] and not program.captures


@pytest.mark.parametrize("f", [
    lambda x: mint.cat([x[:, 1:], x[:, :1]], dim=-1), lambda x: mint.cat([x[:, :0], x, x[:, 1:]], dim=-1)])
def test_parts_without_columns_are_left_out_of_a_concat(f):
    program = trace(lambda x: f(x) * 2.0, abstract(3, 1))
    assert names(program) == ["mul"]
    with pytest.raises(ArgumentError, match="concat: operands are "):
        trace(lambda x, y: mint.cat([x, y[:, :0]], dim=-1), abstract(3, 1), abstract(2, 4))


def test_received_rows_are_flattened_to_rows():
    def f(x, ids):
        rows, route = dispatch(x, ids, num_local_experts=2)
        return combine(mint.flatten(rows.reshape(-1, 2, 3), 1), route)
    x, ids = array(4, 6), np.int32([[0], [1], [1], [0]])
    out = interpret(trace(f, x, ids), [[x, ids]])
    np.testing.assert_array_equal(out[0][0], x)
