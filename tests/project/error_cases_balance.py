"""Errors of hpmoe.balance: name -> callable."""

import mindspore as ms
import numpy as np
from error_cases import array, cases, numbers
from mindspore.mint import optim

import hpmoe
from hpmoe import balance

WEIGHT = ms.Parameter(ms.Tensor(np.ones((4, 2), np.float32)), name="experts")


def balancer(**changed):
    return balance.Balancer(**{"make": lambda copies: None, "num_experts": 4, "ep_size": 2, "every": 1, **changed})


def recorded(*counts):
    monitor = balance.LoadMonitor()
    for each in counts:
        monitor.record("layer", each)
    return monitor


def moved():
    """A layer of two ranks whose experts have moved, and its optimizer."""
    layer = hpmoe.nn.MoELayer(hidden_size=4, moe_ffn_hidden_size=4, num_moe_experts=4, mesh=hpmoe.Mesh(2))
    optimizer = ms.nn.SGD(layer.trainable_params(), 0.1)
    layer.balance(every=1)
    layer.counted_tokens.set_data(ms.Tensor([[3, 3, 1, 1]] * 2, ms.int64))
    layer.rebalance(optimizer)
    return layer


def call_with_another_weight():
    layer = moved()
    layer.experts.weight1.set_data(2 * layer.experts.weight1)
    layer(ms.ops.ones((2, 1, 4)))


class Apart(ms.nn.Optimizer):
    """Keeps a state in no tuple."""

    def __init__(self):
        super().__init__(0.1, [WEIGHT])
        self.average = ms.Parameter(ms.Tensor(np.ones((4, 2), np.float32)), name="average")


SQUARE = ms.Parameter(ms.Tensor(np.ones((4, 4), np.float32)), name="square")

cases("balance", {
    "steps kept": lambda: balance.LoadMonitor(keep=0),
    "counts of other experts": lambda: recorded([1, 2], [1, 2, 3]),
    "counts below zero": lambda: recorded([1, -2]),
    "a layer never recorded": lambda: recorded([1, 2]).row("another"),
    "the last steps": lambda: recorded([1, 2]).counts("layer", last=0),
    "ids of one dimension": lambda: balance.physical_ids(numbers(0, 1), numbers(1, 0)),
    "an expert twice": lambda: balance.move_experts([WEIGHT], range(4), [0, 1, 1, 3]),
    "a tensor of other experts": lambda: balance.move_experts([array(3, 2)], range(4), [1, 0, 2, 3]),
    "no optimizer": lambda: balance.states_of([WEIGHT], [WEIGHT]),
    "a parameter of another optimizer": lambda: balance.states_of(
        optim.SGD([ms.Parameter(ms.Tensor([1.0]), name="other")], lr=0.1), [WEIGHT]),
    "a state of no parameter": lambda: balance.states_of(Apart(), [WEIGHT]),
    "a state of rows or columns": lambda: balance.states_of(
        ms.nn.AdaFactor([SQUARE], learning_rate=0.1, scale_parameter=False, relative_step=False), [SQUARE]),
    "places of other experts": lambda: balancer(places=WEIGHT),
    "two experts at a place": lambda: moved().experts.places.set_data(numbers(0, 1, 1, 3)),
    "a weight without places": call_with_another_weight,
    "no layer made": lambda: balancer(make=None),
    "no ranks": lambda: balancer(ep_size=0),
    "experts that do not divide": lambda: balancer(num_experts=5),
    "every no step": lambda: balancer(every=0),
    "replicas below zero": lambda: balancer(replicas=-1),
    "a gain of nothing": lambda: balancer(min_gain=None),
    "a step of other experts": lambda: balancer().step([1, 2, 3]),
    "a layer on one rank": lambda: hpmoe.nn.MoELayer(
        hidden_size=4, moe_ffn_hidden_size=4, num_moe_experts=4).balance(every=1),
    "a layer not balanced": lambda: hpmoe.nn.MoELayer(
        hidden_size=4, moe_ffn_hidden_size=4, num_moe_experts=4).rebalance(None),
    "workers of no run": lambda: balance.workers_per_expert(None, []),
    "workers of a function without experts": lambda: balance.workers_per_expert(hpmoe.simulate(
        hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.swiglu)).lower(hpmoe.ShapeDtypeStruct((4, 6), "float32"))), []),
})
