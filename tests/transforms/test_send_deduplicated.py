"""A token sent once to each rank: the same numbers at every stage, rows that really stay away, every order by brute
force."""

import numpy as np
import pytest
from helpers import (
    Layer,
    assert_close,
    assert_equals_numpy,
    assert_random_schedules_ordered,
    at_stages,
    lowered,
    numpy_moe_ffn,
    stages,
)
from rewrites import (
    assert_agrees_with_jax,
    assert_drops_the_same,
    assert_rounds_once_more,
)

import hpmoe
from hpmoe import moe_ffn, send_rows
from hpmoe.autodiff.vjp import linearize
from hpmoe.routing.kinds.direct import Direct
from hpmoe.routing.kinds.stops import Deduplicated
from hpmoe.routing.routing import make_routing, routing_of_tokens

LAYERS = {
    "two ranks": Layer(ep=2, T=9, E=6, K=4),
    "all on one rank": Layer(ep=4, T=7, E=12, K=3, routing="one rank"),
    "uneven": Layer(ep=3, T=5, E=9, K=3, num_tokens=(5, 0, 3)),
    "every expert": Layer(ep=2, T=4, E=4, K=4),
    "no tokens": Layer(ep=2, T=0, E=4, K=2),
}


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_stage(name, stage):
    assert_equals_numpy(stages()[stage](send_rows(moe_ffn, scheme="deduplicated")), LAYERS[name])


@pytest.mark.parametrize("name", ["expert_biases", "two_layers", "without_weights"])
def test_other_layers_against_jax(name):
    assert_agrees_with_jax(send_rows(scheme="deduplicated"), Layer(ep=2, T=5, E=6, K=3), name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    assert_rounds_once_more(send_rows(scheme="deduplicated"), Layer(ep=4, T=16, E=8, K=4, H=8, I=4), dtype)


@pytest.mark.parametrize("policy", ["position", "probs"])
@pytest.mark.parametrize("stage", ["plain", "overlap", "fused"])
def test_dropped_entries_and_their_counts(stage, policy):
    """A token goes to a rank that kept one of its entries, and does not where all were dropped."""
    assert_drops_the_same(send_rows(scheme="deduplicated"), Layer(ep=2, T=8, E=6, K=3, num_tokens=(8, 5)), stages()[stage],
                          policy)


@pytest.mark.parametrize("layer", [Layer(ep=1, T=5, E=4, K=2), Layer(ep=4, T=5, E=4, K=2), Layer(ep=2, T=5, E=8, K=1)])
def test_where_nothing_repeats_nothing_changes(layer):
    plain, once = (lowered(f, layer.arguments(), layer.ep)
                   for f in map(hpmoe.tile_partition, (moe_ffn, send_rows(moe_ffn, scheme="deduplicated"))))
    assert plain.ops == once.ops and plain.routes == once.routes and (plain.deps.waits == once.deps.waits).all()


def test_a_token_goes_to_a_rank_once():
    rng = np.random.default_rng(2)
    ids = [np.stack([rng.permutation(12)[:5] for _ in range(20)]) for _ in range(4)]
    kind = Direct(ep_size=4, num_tokens=20, num_choices=5, num_model_experts=12)
    ranks = routing_of_tokens(Deduplicated(kind), make_routing(kind, ids))
    for source, mine in enumerate(ids):
        assert ranks.counts[source].tolist() == [sum(d in row // 3 for row in mine) for d in range(4)]
    for d in range(4):
        there = set(zip(ranks.source_of_row[d].tolist(), (ranks.entry_of_row[d] // 5).tolist(), strict=True))
        assert len(there) == ranks.num_rows(d)


def test_the_vjp_of_what_is_deduplicated():
    """Gradients may also be taken of the rewritten program."""
    layer = Layer(ep=2, T=5, E=6, K=3)
    args, cotangent = layer.arguments(), layer.cotangent()
    both = linearize(lowered(send_rows(moe_ffn, scheme="deduplicated"), args, 2))
    outs = hpmoe.interpret(both.forward, [[a[r] for a in args] for r in range(2)])
    grads = hpmoe.interpret(both.backward, [[*(args[i][r] for i in both.kept_inputs), *outs[r][1:], cotangent[r]]
                                           for r in range(2)])
    want, want_grads = numpy_moe_ffn(args, cotangent)
    assert_close([np.stack([out[0] for out in outs]), *map(np.stack, zip(*grads, strict=True))], [want, *want_grads])


def test_every_access_is_ordered():
    """Brute force over small flows of both directions: rows are there before they are copied, and sums before they go."""
    rng = np.random.default_rng(5)
    for _ in range(8):
        ep = int(rng.integers(2, 4))
        layer = Layer(ep=ep, T=int(rng.integers(0, 6)), E=3 * ep, K=int(rng.integers(2, 4)))
        args = layer.arguments(int(rng.integers(100)))
        assert_random_schedules_ordered(rng, send_rows(moe_ffn, scheme="deduplicated"), layer, args)
