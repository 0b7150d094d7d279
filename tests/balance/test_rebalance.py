"""hpmoe.nn.MoELayer whose experts move between ranks: trained, it is the layer whose experts stay."""

import mindspore as ms
import numpy as np
from mindspore.experimental import optim

import hpmoe
from hpmoe.balance import move_experts, states_of

EXPERTS, HIDDEN = 8, 16


def train(is_balanced, num_steps=6):
    """(losses, weights and moments in the experts' own order, moves) of a layer that prefers the experts of rank 0."""
    layer = hpmoe.nn.MoELayer(hidden_size=HIDDEN, moe_ffn_hidden_size=8, num_moe_experts=EXPERTS, moe_router_topk=2,
                              moe_router_enable_expert_bias=True, moe_router_score_function="sigmoid",
                              moe_aux_loss_coeff=0.01, add_bias_linear=True, mesh=hpmoe.Mesh(2))
    rng = np.random.default_rng(0)
    for parameter in layer.trainable_params():
        parameter.set_data(ms.Tensor(rng.standard_normal(parameter.shape, np.float32) / 4))
    layer.expert_bias.set_data(ms.Tensor([1.0, 1, 1, 0, 0, 0, 0, 0]))
    optimizer = optim.AdamW(layer.trainable_params(), lr=1e-2)
    if is_balanced:
        layer.balance(every=2)
    losses = []
    for _ in range(num_steps):
        x, target = (ms.Tensor(rng.standard_normal((2, 24, HIDDEN), np.float32)) for _ in range(2))

        def loss(x, target):
            out, balance_loss = layer(x, with_losses=True)
            return ((out - target) ** 2).mean() + balance_loss

        value, grads = ms.value_and_grad(loss, None, layer.trainable_params())(x, target)
        optimizer(grads)
        layer.update_expert_bias()
        if is_balanced:
            layer.rebalance(optimizer)
        losses.append(float(value))
    experts = layer.experts.trainable_params()
    if is_balanced:
        move_experts([*experts, *states_of(optimizer, experts)], layer.balancer.experts, range(EXPERTS))
    own = ("counted_tokens", "experts.places")  # what a balanced layer has of its own
    parameters = [p for p in layer.get_parameters() if p.name not in own]
    state = [p.asnumpy() for p in (*parameters, *states_of(optimizer, layer.trainable_params()))]
    return losses, state, layer.balancer and layer.balancer.moves


def test_training_goes_on_as_if_nothing_had_moved():
    losses, state, moves = train(is_balanced=True)
    stayed, expected, _ = train(is_balanced=False)
    assert moves and moves[0].moved and moves[0].before > 1.2 > moves[0].after
    assert losses == stayed and len(state) == len(expected) > 10
    assert all(np.array_equal(a, b) for a, b in zip(state, expected, strict=True))
