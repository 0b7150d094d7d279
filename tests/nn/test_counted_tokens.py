"""Each token of a training step counts once for the next update, and tokens of an evaluation do not."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import hpmoe

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")
HIDDEN, EXPERTS, K = 4, 5, 2


def make_layer(**options):
    layer = hpmoe.nn.MoELayer(hidden_size=HIDDEN, moe_ffn_hidden_size=3, num_moe_experts=EXPERTS, moe_router_topk=K,
                              moe_router_enable_expert_bias=True, moe_aux_loss_coeff=0.1, moe_router_bias_update_rate=1.0,
                              **options)
    layer.router.weight.set_data(ms.Tensor(WEIGHT))
    return layer


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


WEIGHT = values(EXPERTS, HIDDEN)


def counts_of(*batches):
    """The tokens of each expert, by the definition."""
    ids = np.argsort(-np.concatenate(batches).astype(np.float64) @ WEIGHT.T, axis=1)[:, :K]
    return np.bincount(ids.ravel(), minlength=EXPERTS).tolist()


def counted(layer, row=0):
    return layer.counted_tokens.asnumpy()[row].tolist()


def out_of(layer):
    def f(x, y):
        return layer(x).sum()
    return f


def loss_of(layer):
    def f(x, y):
        return layer(x, True)[1]
    return f


def both_of(layer):
    def f(x, y):
        out, loss = layer(x, True)
        return out.sum() + loss
    return f


def microbatches_of(layer):
    def f(x, y):
        out, loss = layer(x, True)
        return out.sum() + loss + layer(y).sum()
    return f


def stopped_of(layer):
    """Returns a loss in which no gradient is taken of the second call."""
    def f(x, y):
        return (layer(x) + ops.stop_gradient(layer(y))).sum()
    return f


STEPS = {
    "PyNative": lambda f, weights: ms.value_and_grad(f, None, weights),
    "a graph with its gradient": lambda f, weights: ms.jit(ms.value_and_grad(f, None, weights)),
    "a gradient of a graph": lambda f, weights: ms.value_and_grad(ms.jit(f), None, weights),
}
RECOMPUTES = {"": None, ", recomputed": True, ", recomputed with hooks": False}
ALL = (out_of, loss_of, both_of, microbatches_of, stopped_of)
CASES = {mode + name: (step, recompute) for mode, step in STEPS.items() for name, recompute in RECOMPUTES.items()
         if recompute is not False or mode == "PyNative"}


@pytest.mark.parametrize("name, functions, is_training", [
    # recompute(), as MindSpore has it by default, recomputes the wrong call after one without a gradient.
    ("PyNative", ALL, False), ("PyNative", ALL, True), ("PyNative, recomputed", ALL[2:4], True),
    ("PyNative, recomputed with hooks", ALL[2:], False),
    *(pytest.param(name, ALL if is_training == name.endswith("recomputed") else ALL[3:], is_training, marks=pytest.mark.slow)
      for name in CASES if not name.startswith("PyNative") for is_training in (False, True))])
def test_a_step_counts_each_token_once(name, functions, is_training):
    step, recompute = CASES[name]
    x, y = values(6, HIDDEN, seed=1), values(6, HIDDEN, seed=2)
    layer = make_layer()
    if recompute is not None:
        layer.recompute(use_reentrant=recompute)
    layer.set_train(is_training)
    for make in functions:
        taken = [x, y] if make is microbatches_of or (make is stopped_of and is_training) else [x]
        run = step(make(layer), layer.trainable_params())
        for _ in range(2):
            run(ms.Tensor(x), ms.Tensor(y))
            assert counted(layer) == counts_of(*taken), make.__name__
            layer.update_expert_bias(layer.counted_tokens[0])
            layer.expert_bias.copy_(ops.zeros_like(layer.expert_bias))
        assert layer.tokens_per_expert.asnumpy().tolist() == counts_of(y if make in ALL[3:] else x)


@pytest.mark.parametrize("wrap", [lambda f: f, ms.jit], ids=["PyNative", "jit"])
def test_an_evaluation_changes_nothing(wrap):
    x, y = values(6, HIDDEN, seed=1), values(9, HIDDEN, seed=2)
    layer = make_layer()

    def forward(x):
        return layer(x)
    evaluate = wrap(forward)
    step = ms.value_and_grad(out_of(layer), None, layer.trainable_params())
    step(ms.Tensor(x), ms.Tensor(x))
    evaluate(ms.Tensor(y))
    assert counted(layer) == counts_of(x) and layer.tokens_per_expert.asnumpy().tolist() == counts_of(y)
    layer.update_expert_bias()
    n = np.array(counts_of(x))
    assert layer.expert_bias.asnumpy().tolist() == np.sign(n.mean() - n).tolist() and not any(counted(layer))
    evaluate(ms.Tensor(y))
    with pytest.raises(hpmoe.ArgumentError, match="counted_tokens is 0 for every expert"):
        layer.update_expert_bias()


@pytest.mark.parametrize("mesh", [None, hpmoe.Mesh(5)], ids=["one rank", "five ranks"])
def test_calls_in_training_mode_add_up(mesh):
    batches = [values(5, HIDDEN, seed=s) for s in range(3)]
    layer = make_layer(mesh=mesh).set_train()
    for x in batches:
        layer(ms.Tensor(x))
    layer.set_train(False)(ms.Tensor(batches[0]))
    assert counted(layer) == counts_of(*batches)
    if mesh is not None:
        layer.set_train()(ms.Tensor(batches[0]), num_tokens=(1, 0, 1, 0, 0))
        assert counted(layer) == counts_of(*batches, batches[0][[0, 2]])


class Network(nn.Cell):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def construct(self, x):
        out, loss = self.layer(x, with_losses=True)
        return out.sum() + loss


@pytest.mark.parametrize("mode", [ms.PYNATIVE_MODE, pytest.param(ms.GRAPH_MODE, marks=pytest.mark.slow)])
@pytest.mark.parametrize("recompute", [False, True])
def test_a_train_step_cell_counts_once(mode, recompute):
    ms.set_context(mode=mode)
    x, network = values(6, HIDDEN, seed=1), Network(make_layer())
    if recompute:
        network.layer.recompute()
    step = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 0.0))
    for is_training in (False, True):
        step.set_train(is_training)
        step(ms.Tensor(x))
        network.set_train(False)(ms.Tensor(x))
        assert counted(network.layer) == counts_of(x), is_training
        network.layer.update_expert_bias(network.layer.counted_tokens[0])
        network.layer.expert_bias.copy_(ops.zeros_like(network.layer.expert_bias))


@pytest.mark.parametrize("first", [4.5, np.nan, np.inf, -1.0])
def test_counts_that_are_no_whole_numbers_are_refused(first):
    layer, counts = make_layer(), [first, 3, 3, 3, 3]
    with pytest.raises(hpmoe.ArgumentError, match="update_expert_bias: counts is .* it must be whole numbers"):
        layer.update_expert_bias(ms.Tensor(counts, ms.float32))
    assert not layer.expert_bias.asnumpy().any()
    layer.update_expert_bias(ms.Tensor([9, 4, 4, 4, 4], ms.float32))
    assert layer.expert_bias.asnumpy().tolist() == [-1, 1, 1, 1, 1]


def test_the_bias_and_the_experts_have_counts_of_their_own():
    x, layer = ms.Tensor(values(4, HIDDEN, seed=1)), make_layer(mesh=hpmoe.Mesh(1)).set_train()
    layer(x)
    layer.balance(every=1)
    optimizer = nn.SGD(layer.trainable_params(), 0.0)
    with pytest.raises(hpmoe.ArgumentError, match="MoELayer.rebalance: counted_tokens is 0 for every expert"):
        layer.rebalance(optimizer)
    layer(x)
    layer.update_expert_bias()
    assert not any(counted(layer)) and counted(layer, 1) == counts_of(x.asnumpy())
    layer.rebalance(optimizer)
    assert not any(counted(layer, 1))


def test_a_checkpoint_goes_on_counting():
    x, y = values(6, HIDDEN, seed=1), values(7, HIDDEN, seed=2)
    layer = make_layer().set_train()
    layer(ms.Tensor(x))
    ms.save_checkpoint(layer, "layer.ckpt")
    other = make_layer().set_train()
    ms.load_param_into_net(other, ms.load_checkpoint("layer.ckpt"), strict_load=True)
    other(ms.Tensor(y))
    assert counted(other) == counts_of(x, y)


def test_large_counts_are_exact():
    layer = make_layer().set_train()
    layer.counted_tokens.set_data(ms.Tensor(np.full((2, EXPERTS), 2**40), ms.int64))
    x = values(6, HIDDEN, seed=1)
    layer(ms.Tensor(x))
    assert counted(layer) == [2**40 + n for n in counts_of(x)]
