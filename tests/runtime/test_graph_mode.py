"""Graph mode: the same kernels, and so bitwise the same numbers, where MindSpore compiles the caller's graph."""

import gc
import threading

import mindspore as ms
import numpy as np
import pytest
from helpers import DIFFERENTIABLE, Layer, fused, tensors
from mindspore import mint, nn, ops

import hpmoe
from hpmoe import ArgumentError, LaunchError, Mesh, ProgramError, TraceError, spmd
from hpmoe.kernels.host_launch import POOL
from hpmoe.runtime.graph_operators import GraphCall
from hpmoe.runtime.targets import Executable

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


@pytest.fixture
def operators(monkeypatch):
    """The calls that compilations make forward operators of."""
    made, forward_operator = [], GraphCall.forward_operator

    def noted(self):
        made.append(self)
        return forward_operator(self)

    monkeypatch.setattr(GraphCall, "forward_operator", noted)
    return made


def moe_layer():
    return spmd(fused()(hpmoe.moe_ffn), Mesh(2))


def loss_of(layer):
    def loss(*args):
        return (layer(*args) ** 2).mean()
    return loss


def leaves(x):
    if isinstance(x, (tuple, list)):
        return [a for item in x for a in leaves(item)]
    return [x.float().asnumpy() if x.dtype == ms.bfloat16 else x.asnumpy()]


def assert_bitwise(got, want):
    got, want = leaves(got), leaves(want)
    assert [(a.shape, a.dtype, a.tobytes()) for a in got] == [(a.shape, a.dtype, a.tobytes()) for a in want]


def test_values_and_gradients_equal_pynative_for_any_routing(operators):
    loss = loss_of(moe_layer())
    forward, eager = ms.jit(loss), ms.value_and_grad(loss, DIFFERENTIABLE)
    gradients = [ms.jit(eager), ms.value_and_grad(forward, DIFFERENTIABLE)]
    for seed, routing in enumerate(("random", "one expert", "one rank", "random")):
        args = tensors(Layer(routing=routing).arguments(seed))
        value, grads = eager(*args)
        assert_bitwise(forward(*args), value)
        for f in gradients:
            assert_bitwise(f(*args), (value, grads))
    assert len(operators) == 3, "a new routing compiled another graph"
    assert [call.saves for call in operators] == [False, True, True]


@pytest.mark.parametrize("f", [lambda x: ops.stop_gradient(x) * x, lambda x: ops.TopK()(x, 2)[0],
                               lambda x: hpmoe.router.aux_loss(x, 2).reshape(1)])
def test_operator_objects_are_traced_while_a_graph_compiles(f):
    """It meets the function first, before any other call has traced it."""
    x = ms.Tensor(np.random.default_rng(0).standard_normal((4, 3)).astype(np.float32))
    layer = fused()(f)

    def loss(x):
        return layer(x).sum()
    assert_bitwise(ms.jit(ms.value_and_grad(loss))(x), ms.value_and_grad(loss)(x))


def test_subnormal_numbers_survive_threads_that_flush_them():
    """MindSpore's threads of compiled graphs do, and helpers of a launch that they start inherit it."""
    layer = fused()(lambda x, y: x + y)
    x = ms.Tensor(np.geomspace(1e-45, 1e-37, 4 * 8, dtype=np.float32).reshape(4, 8))

    def doubled(x):
        return layer(x, x)

    for f in (ms.jit(doubled), doubled):
        assert (f(x).asnumpy() == 2 * x.asnumpy()).all()


class Net(nn.Cell):
    """Two calls of one layer and one of another, with Parameters."""

    def __init__(self, layer, other, case):
        super().__init__()
        up, down = tensors(case.arguments()[3:])
        self.layer, self.other = layer, other
        self.up, self.down = ms.Parameter(up, name="up"), ms.Parameter(down, name="down")
        self.head = nn.Dense(4, 3, weight_init="ones", bias_init="zeros")

    def construct(self, x, ids, weights):
        hidden = self.layer(x, ids, weights, self.up, self.down)
        hidden = self.layer(self.other(hidden, scale=0.5) + x, ids, ops.softmax(weights), self.up, self.down)
        return (self.head(hidden) ** 2).mean()


def scaled(x, scale=2.0):
    return mint.nn.functional.silu(x) * scale


def train(batches):
    net = Net(moe_layer(), spmd(fused()(scaled), Mesh(2)), Layer()).set_train()
    step = nn.TrainOneStepCell(net, nn.Adam(net.trainable_params(), 0.01))
    losses = [step(*tensors(b)) for b in batches]
    return [*losses, *net.trainable_params()]


def test_training_a_cell_in_graph_mode_equals_pynative(request):
    batches = [Layer(routing=r).arguments(seed)[:3] for seed, r in enumerate(("random", "one expert", "one rank"))]
    want = [a.asnumpy() for a in train(batches)]
    request.getfixturevalue("graph_mode")
    got = [a.asnumpy() for a in train(batches)]
    assert [a.tobytes() for a in got] == [a.tobytes() for a in want]


def test_arguments_and_results_keep_their_structure():
    def f(tree, y=2.0, *, scale=3.0, name="a"):
        x, z = tree["z"], tree["a"][0]
        return x * y, [z * scale, (x * tree["a"][1], z)]

    layer = fused()(f)
    x, z, y = tensors(np.random.default_rng(0).standard_normal((3, 5, 4)).astype(np.float32))
    factor = ms.Tensor(1.5, ms.float32)

    def positional(x, z, y, factor):
        return layer({"z": x, "a": [z, factor]}, y)

    def keywords(x, z, y, factor):
        return layer(scale=4.0, y=y, tree={"a": (z, 5.0), "z": x})

    def defaults(x, z, y, factor):
        return layer({"z": x, "a": (z, factor)})

    def graded(*args):
        first, (second, (third, fourth)) = positional(*args)
        return (first * second * third * fourth).sum()

    for function in (positional, keywords, defaults, ms.grad(graded, (0, 1, 2, 3))):
        assert_bitwise(ms.jit(function)(x, z, y, factor), function(x, z, y, factor))


def test_results_without_dimensions():
    def total_and_rows(x):
        return mint.sum(x * 3.0), x

    layer, x = fused(rows=8, cols=8)(total_and_rows), ms.Tensor(np.ones((5, 4), np.float32))

    def product(x):
        total, rows = layer(x)
        return total * rows.sum(), total

    f = ms.value_and_grad(product, has_aux=True)
    assert_bitwise(ms.jit(f)(x), f(x))
    assert layer(x)[0].shape == ()


def test_branches_and_loops():
    def double(x):
        return x + x

    layer = fused()(double)

    def f(x, times):
        while times > 0:
            x, times = layer(x), times - 1
        if x.sum() > 0:
            return layer(x) * layer(x)
        return x

    def total(x, times):
        return f(x, times).sum()

    eager, x = ms.value_and_grad(total), ms.Tensor(np.ones((2, 3), np.float32))
    jitted = ms.jit(eager)
    for sign in (1, -1):
        assert_bitwise(jitted(sign * x, ms.Tensor(2)), eager(sign * x, ms.Tensor(2)))


def test_ranks_of_uneven_length():
    layer, args = moe_layer(), tensors(Layer().arguments())

    def loss(*args):
        return (layer(*args, num_tokens=[3, 5]) ** 2).mean()

    f = ms.value_and_grad(loss, DIFFERENTIABLE)
    assert_bitwise(ms.jit(f)(*args), f(*args))


@pytest.mark.slow
@pytest.mark.parametrize("direction, compiled", [("_vjp", "all"), ("_vjp", "forward")])
def test_a_failed_launch_raises_and_the_next_call_works(direction, compiled, monkeypatch):
    layer, broken, run = fused()(scaled), [], Executable.run

    def failing(kernel, *args, **options):
        if broken and kernel.name == "scaled" + direction:
            raise LaunchError(f"{kernel.name}: {broken.pop()}")
        return run(kernel, *args, **options)

    def total(x):
        return (layer(x) ** 2).sum()

    monkeypatch.setattr(Executable, "run", failing)
    eager, x = ms.value_and_grad(total), ms.Tensor(np.ones((2, 3), np.float32))
    f = ms.jit(eager) if compiled == "all" else ms.value_and_grad(ms.jit(total))
    broken.append("a signal is lost")
    with pytest.raises(LaunchError, match=f"scaled{direction}: a signal is lost"):
        leaves(f(x))
    assert_bitwise(f(x), eager(x))


@pytest.mark.slow
def test_bad_ids_change_no_parameter(graph_mode):
    batch = tensors(Layer().arguments()[:3])
    bad = [batch[0], batch[1] + 70, batch[2]]
    net = Net(moe_layer(), spmd(fused()(scaled), Mesh(2)), Layer())
    step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
    step(*batch).asnumpy()
    before = [p.asnumpy().tobytes() for p in net.trainable_params()]
    with pytest.raises(ArgumentError,
                       match=r"hpmoe.dispatch on rank 0: topk_ids\[0, 0\] is 7\d; it must be an expert id in 0..3"):
        step(*bad).asnumpy()
    assert [p.asnumpy().tobytes() for p in net.trainable_params()] == before
    step(*batch).asnumpy()
    assert [p.asnumpy().tobytes() for p in net.trainable_params()] != before


def test_nothing_is_kept_if_the_backward_pass_is_dropped():
    layer, args = moe_layer(), tensors(Layer().arguments())

    def of_head(head, *args):
        return (head * layer(*args)).sum()

    head = ms.Tensor(np.ones((2, 5, 4), np.float32))
    functions = [ms.jit(ms.grad(of_head)), ms.grad(ms.jit(of_head), (0, 1))]
    used = []
    for calls in (3, 9):
        for f in functions:
            for _ in range(calls):
                leaves(f(head, *args))
        gc.collect()
        POOL.empty((1,), np.float32)
        used.append(POOL._used_bytes)
    assert used[0] == used[1]


P = ms.Parameter(ms.Tensor(np.ones((2, 3), np.float32)), name="p")


def uses_parameter(x):
    return x * P


def not_traceable(x):
    return x * float(x.asnumpy()[0, 0])


def returns_dict(x):
    return {"a": x + 1.0}


@pytest.mark.parametrize("function, shape, error, text", [
    (uses_parameter, (2, 3), ArgumentError,
     "uses_parameter: a closed-over tensor is p, whose gradient a compiled graph would lose; it must be an argument of the "
     "function in graph mode."),
    (not_traceable, (2, 3), TraceError, ".asnumpy() of f32[2,3] is not traceable"),
    (returns_dict, (2, 3), ArgumentError,
     "returns_dict: its output in a graph is a dict; it must be a tensor, None, or a tuple of them."),
    (scaled, (0, 3), ArgumentError, "hpmoe: an array in a graph is of shape (0, 3); it must be of at least one element"),
])
def test_unsupported_values_are_errors_when_a_graph_compiles(function, shape, error, text):
    layer = fused()(function)

    def call(x):
        return layer(x)

    with pytest.raises(error) as caught:
        leaves(ms.jit(call)(ms.Tensor(np.zeros(shape, np.float32))))
    assert text in str(caught.value)
    assert ms.jit(doubled)(P).shape == (2, 3)


def doubled(x):
    return x * 2.0


def test_second_derivatives_raise():
    layer = fused()(scaled)

    def total(x):
        return (layer(x) ** 2).sum()

    for f in (ms.jit(ms.grad(ms.grad(total))), ms.grad(ms.grad(ms.jit(total)))):
        with pytest.raises(ProgramError, match="scaled: a gradient is taken of its gradient"):
            leaves(f(ms.Tensor(np.ones((2, 3), np.float32))))


def test_recording_is_refused_and_leaves_mindspore_usable():
    layer, x = fused()(scaled), ms.Tensor(np.ones((2, 3), np.float32))

    def calls(x):
        return layer(x * 2.0)

    def plain(x):
        return x * 3.0

    def record():  # in a thread, as MindSpore reads the source of each caller
        for f in (calls, calls):
            with pytest.raises(ProgramError, match="capture_mode=.trace.. does not see what a kernel computes"):
                ms.jit(f, capture_mode="trace")(x)
        found.append(ms.jit(plain, capture_mode="trace")(x).asnumpy())
        found.append(ms.jit(plain)(x).asnumpy())

    found = []
    thread = threading.Thread(target=record)
    thread.start()
    thread.join()
    assert [np.unique(a).tolist() for a in found] == [[3.0], [3.0]]
