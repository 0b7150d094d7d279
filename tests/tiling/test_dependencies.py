"""Derived and pruned dependencies by the judge: every conflicting pair of accesses of all ranks is ordered."""

import itertools

import numpy as np
import pytest
from helpers import assert_every_access_ordered, lowered, stages
from random_layers import MACHINES, POLICIES, SIGNALS, random_layer, random_options
from variants import VARIANTS, arguments

import hpmoe


@pytest.mark.parametrize("name", VARIANTS)
def test_every_access_is_ordered(name):
    i = list(VARIANTS).index(name)
    rng, (f, _) = np.random.default_rng(i), VARIANTS[name]
    for stage in ("queues", ("tiles", "overlap")[i // 2 % 2])[i % 2:]:
        layer, options = random_layer(rng), random_options(rng)
        args = arguments(f, layer)
        for direction in ("forward", "backward"):
            flow = lowered(stages(**options)[stage](f), args, layer.ep, direction)
            assert_every_access_ordered(flow, args, layer.num_tokens)


def test_every_schedule_of_moe_ffn_is_ordered():
    rng = np.random.default_rng(7)
    for i, (signal, policy) in enumerate(itertools.product(SIGNALS, POLICIES)):
        layer, options = random_layer(rng), random_options(rng)
        args = layer.arguments()
        options.update(signal=signal, policy=policy, machine=MACHINES[(i + i // 3) % 3])
        for direction in ("forward", "backward"):
            flow = lowered(stages(**options)["queues"](hpmoe.moe_ffn), args, layer.ep, direction)
            assert_every_access_ordered(flow, args, layer.num_tokens)
