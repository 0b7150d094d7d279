"""States of an optimizer are found by their Parameter, under any name."""

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn
from mindspore.experimental import optim
from mindspore.mint import optim as mint_optim

import hpmoe
from hpmoe.balance import states_of

SIZES = {"hidden_size": 4, "moe_ffn_hidden_size": 3, "num_moe_experts": 8, "moe_router_topk": 2, "init_method_std": 1.0}


def weight_of(name, shape=(4, 3, 2)):
    return ms.Parameter(ms.Tensor(np.ones(shape, np.float32)), name=name)


def in_groups(params):
    return [{"params": [params[1]], "lr": 0.1}, {"params": [params[0], params[2]], "lr": 0.2}]


def adafactor(params):
    return nn.AdaFactor(params, learning_rate=0.1, scale_parameter=False, relative_step=False)


# By name: how it is made, and what its states' names begin with.
OPTIMIZERS = {
    "mint AdamW": (mint_optim.AdamW, "exp_avg. exp_avg_sq."),
    "AdamW": (lambda ps: optim.AdamW(ps, lr=0.1), "exp_avg. exp_avg_sq. max_exp_avg_sq."),
    "AdamW amsgrad": (lambda ps: optim.AdamW(in_groups(ps), lr=0.1, amsgrad=True),
                      "exp_avg. exp_avg_sq. max_exp_avg_sq."),
    "SGD": (lambda ps: optim.SGD(ps, lr=0.1, momentum=0.9), "accum. stat."),
    "nn.SGD": (lambda ps: nn.SGD(ps, 0.1, 0.9), "accum. stat."),
    "NAdam": (lambda ps: optim.NAdam(ps, lr=0.1), "exp_avg. exp_avg_sq."),
    "AdamWeightDecay": (nn.AdamWeightDecay, "adam_m. adam_v."),
    "Adam in groups": (lambda ps: nn.Adam(in_groups(ps), 0.1), "moment1. moment2."),
    "Momentum": (lambda ps: nn.Momentum(ps, 0.1, 0.9), "moments."),
    "Momentum, a rate for each step": (lambda ps: nn.Momentum(ps, [0.1] * 4, 0.9), "moments."),
    "Lamb": (lambda ps: nn.Lamb(ps, 0.1), "lamb_m. lamb_v."),
    "RMSProp": (lambda ps: nn.RMSProp(ps, 0.1), "mean_square. moment."),
    "AdaFactor": (adafactor, "exp_avg. exp_avg_sq_row_ exp_avg_sq_col_"),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_states_are_those_of_the_parameter(name):
    make, prefixes = OPTIMIZERS[name]
    params = [weight_of(name) for name in ("mtp.layers.0.w", "layers.0.w", "w")]
    optimizer = make(params)
    for weight in params:
        found = [state.name for state in states_of(optimizer, [weight])]
        assert sorted(found) == sorted(prefix + weight.name for prefix in prefixes.split())


def test_a_mean_over_experts_is_left_out():
    """AdaFactor keeps means of a bias [E, N] over its columns, [E], and over experts, [N]."""
    bias = weight_of("bias", (4, 3))
    assert [state.name for state in states_of(adafactor([bias]), [bias])] == ["exp_avg.bias", "exp_avg_sq_row_bias"]
    with pytest.raises(hpmoe.ArgumentError, match=r"exp_avg_sq_row_square is \(4,\) for square \(4, 4\)"):
        square = weight_of("square", (4, 4))
        states_of(adafactor([square]), [square])


class Apart(nn.Optimizer):
    """Keeps a state in no tuple."""

    def __init__(self, params):
        super().__init__(0.1, params)
        self.kept = weight_of("average.w", (4, 3, 2))


def test_a_state_of_no_parameter_is_refused():
    weight = weight_of("w")
    with pytest.raises(hpmoe.ArgumentError, match=r"average.w \(4, 3, 2\) is kept for no parameter"):
        states_of(Apart([weight]), [weight])
    other = weight_of("other", (5, 3, 2))
    assert states_of(Apart([other]), [other]) == []


class Block(nn.Cell):
    def __init__(self):
        super().__init__()
        self.mlp = hpmoe.nn.MoELayer(**SIZES, mesh=hpmoe.Mesh(2))


class Stack(nn.Cell):
    def __init__(self):
        super().__init__()
        self.layers = nn.CellList([Block()])


class Model(Stack):
    """Two layers whose names have the same end."""

    def __init__(self):
        super().__init__()
        self.mtp = Stack()

    def construct(self, x):
        return self.mtp.layers[0].mlp(self.layers[0].mlp(x))


@pytest.mark.parametrize("make", [lambda ps: optim.AdamW(ps, lr=0.1), lambda ps: nn.Momentum(ps, 0.1, 0.9), adafactor],
                         ids=["AdamW", "Momentum", "AdaFactor"])
def test_one_of_two_layers_moves(make):
    ms.set_seed(0)
    model = Model()
    first, second = model.layers[0].mlp, model.mtp.layers[0].mlp
    names = [p.name for p in first.experts.trainable_params()]
    assert all(p.name == f"mtp.{name}" for p, name in zip(second.experts.trainable_params(), names, strict=True))
    optimizer = make(model.trainable_params())
    x = ms.Tensor(np.random.default_rng(0).standard_normal((16, 4)), ms.float32)
    optimizer(ms.grad(lambda x: (model(x) ** 2).sum(), None, model.trainable_params())(x))
    before = {p.name: p.asnumpy().copy() for net in (model, optimizer) for p in net.get_parameters()}
    main = ms.Tensor(np.arange(8.0), ms.float32)
    first.balance(every=1)
    first.counted_tokens.copy_(ms.Tensor([[9, 8, 7, 6, 1, 1, 1, 1]] * 2, ms.int64))
    assert first.rebalance(optimizer, [main]).moved
    at = np.argsort(first.experts.places.asnumpy())
    assert main.asnumpy().tolist() == at.tolist() != list(range(8))
    moved = set()
    for p in {p.name: p for net in (model, optimizer) for p in net.get_parameters()}.values():
        if p is first.counted_tokens or p is first.experts.places:
            continue
        is_moved = "layers.0.mlp.experts" in p.name and "mtp" not in p.name and p.size > 1
        assert np.array_equal(p.asnumpy(), before[p.name][at] if is_moved else before[p.name]), p.name
        moved |= {p.name} if is_moved else set()
    assert len(moved) > len(names)
