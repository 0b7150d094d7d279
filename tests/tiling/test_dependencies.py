"""Derived and pruned dependencies by the judge: every conflicting pair of accesses of all ranks is ordered."""

import itertools

import numpy as np
import pytest
from absent import ABSENT, TRANSFORMS, without
from capped import capped
from helpers import SMALL_NPU, Layer, assert_every_access_ordered, lowered, stages
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


def small_layer(rng, least_ranks=1, experts=2, choices=(1, 3), **sizes):
    """A layer of up to three ranks and five tokens a rank."""
    ep, tokens = int(rng.integers(least_ranks, 4)), int(rng.integers(0, 6))
    lengths = None if rng.random() < 0.5 else tuple(int(n) for n in rng.integers(0, tokens + 1, ep))
    return Layer(ep=ep, T=tokens, E=experts * ep, K=int(rng.integers(*choices)), num_tokens=lengths, **sizes)


def replicated(rng):
    layer = small_layer(rng, 2)
    loads, replicas = rng.integers(0, 9, layer.E) ** 2, int(rng.integers(1, 3))
    return hpmoe.replicate_experts(hpmoe.moe_ffn, loads=loads, replicas=replicas), layer, layer.arguments()


def over_capacity(rng):
    layer = small_layer(rng)
    f = capped(float(rng.choice([0.1, 0.7, 1.0])), str(rng.choice(["position", "probs"])))
    return f, layer, layer.arguments(int(rng.integers(100)))


def with_masked_entries(rng):
    layer = small_layer(rng)
    made = TRANSFORMS[str(rng.choice(list(TRANSFORMS)))](layer)
    return made(hpmoe.moe_ffn), layer, without(layer, str(rng.choice(list(ABSENT))))[0]


def deduplicated(rng):
    layer = small_layer(rng, 2, experts=3, choices=(2, 4))
    return hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"), layer, layer.arguments(int(rng.integers(100)))


def hierarchical(rng, once=""):
    layer = Layer(ep=4, T=int(rng.integers(0, 5)), E=8, K=int(rng.integers(1, 4)), node_size=2)
    return hpmoe.send_rows(hpmoe.moe_ffn, scheme=f"hierarchical{once}"), layer, layer.arguments(int(rng.integers(100)))


def hierarchical_and_deduplicated(rng):
    return hierarchical(rng, "+deduplicated")


@pytest.mark.parametrize("make, times", [(replicated, 8), (over_capacity, 16), (with_masked_entries, 16), (deduplicated, 8),
                                         (hierarchical, 6), (hierarchical_and_deduplicated, 6)])
def test_rows_that_move_otherwise_are_ordered(make, times):
    """Layers at random levels, with random tiles, signals and machines, in both directions."""
    rng = np.random.default_rng(5)
    for _ in range(times):
        f, layer, args = make(rng)
        options = {"rows": int(rng.integers(1, 4)), "signal": str(rng.choice(SIGNALS)),
                   "machine": (hpmoe.cpu(3), SMALL_NPU)[rng.integers(2)]}
        stage = stages(**options)[str(rng.choice(["tiles", "overlap", "queues"]))]
        for direction in ("forward", "backward"):
            flow = lowered(stage(f), args, layer.mesh, direction)
            assert_every_access_ordered(flow, args, layer.num_tokens)
