"""A token that crosses to a node once: the same numbers at every stage, received rows bit for bit, bytes of each link by the
formula, every order by brute force."""

import dataclasses

import numpy as np
import pytest
from helpers import (
    SMALL_NPU,
    Layer,
    assert_equals_numpy,
    assert_random_schedules_ordered,
    at_stages,
    fused,
    lowered,
    run_spmd,
    stages,
)
from judge import Judge
from mutants import fault_of_verifier, mutant
from mutation_subjects import every_case
from rewrites import (
    assert_agrees_with_jax,
    assert_drops_the_same,
    assert_rounds_once_more,
)

import hpmoe
from hpmoe import moe_ffn, send_rows

LAYERS = {
    "all on one rank": Layer(ep=4, T=5, E=12, K=3, routing="one rank", node_size=2),
    "uneven": Layer(ep=6, T=5, E=12, K=3, num_tokens=(5, 0, 3, 0, 0, 4), node_size=2),
    "nodes of three": Layer(ep=6, T=4, E=6, K=4, node_size=3),
    "no tokens": Layer(ep=4, T=0, E=4, K=2, node_size=2),
}
SCHEMES = {"relays": send_rows(scheme="hierarchical"),
           "relays, once to a rank": send_rows(scheme="hierarchical+deduplicated")}


def absent(rng, ep_size, num_tokens, top_k, num_experts):
    """Ids of which a third are no expert, and all of the first rank."""
    ids = np.argsort(rng.random((ep_size, num_tokens, num_experts)))[..., :top_k]
    ids[rng.random(ids.shape) < 1 / 3] = -1
    ids[0] = -1
    return ids


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_stage(name, stage):
    assert_equals_numpy(stages()[stage](send_rows(moe_ffn, scheme="hierarchical")), LAYERS[name])


@pytest.mark.parametrize("stage", ["plain", "queues", "fused"])
def test_every_stage_with_more_nodes_than_choices(stage):
    assert_equals_numpy(stages()[stage](send_rows(moe_ffn, scheme="hierarchical")),
                        dataclasses.replace(LAYERS["uneven"], K=1))


@pytest.mark.parametrize("name", ["expert_biases", "two_layers", "without_weights"])
def test_other_layers_against_jax(name):
    assert_agrees_with_jax(send_rows(scheme="hierarchical"), Layer(ep=4, T=5, E=8, K=3, node_size=2), name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    assert_rounds_once_more(send_rows(scheme="hierarchical"), Layer(ep=4, T=16, E=8, K=4, H=8, I=4, node_size=2), dtype)


@pytest.mark.parametrize("stage", ["plain", "overlap", "fused"])
def test_received_rows_and_weight_gradients_are_bitwise_equal(stage):
    layer = Layer(ep=4, T=9, E=8, K=3, num_tokens=(9, 4, 0, 7), node_size=2)
    args, cotangent = layer.arguments(), layer.cotangent()
    (_, direct), (_, relayed) = (run_spmd(stages()[stage](f), layer.mesh, args, [cotangent], layer.num_tokens)
                                 for f in (moe_ffn, send_rows(moe_ffn, scheme="hierarchical")))
    assert [(a == b).all() for a, b in zip(direct[1:], relayed[1:], strict=True)] == [True] * 3


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_dropped_entries_and_their_counts(policy):
    """A token crosses to a node that kept one of its entries, and does not where all were dropped."""
    assert_drops_the_same(send_rows(scheme="hierarchical"), Layer(ep=4, T=8, E=8, K=3, num_tokens=(8, 5, 0, 2), node_size=2),
                          fused(), policy)


@pytest.mark.parametrize("layer", [Layer(ep=4, T=5, E=4, K=2), Layer(ep=4, T=5, E=4, K=2, node_size=4),
                                   Layer(ep=2, T=5, E=8, K=1, node_size=1)])
def test_on_one_node_or_nodes_of_one_rank_nothing_changes(layer):
    plain, relayed = (lowered(f, layer.arguments(), layer.mesh)
                      for f in map(hpmoe.tile_partition, (moe_ffn, send_rows(moe_ffn, scheme="hierarchical"))))
    assert plain.ops == relayed.ops and plain.routes == relayed.routes and (plain.deps.waits == relayed.deps.waits).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_access_is_ordered(scheme):
    """Brute force over small flows of both directions: rows are there before they are passed on, and sums before they go."""
    rng = np.random.default_rng(5)
    for _ in range(6):
        layer = Layer(ep=4, T=int(rng.integers(0, 5)), E=8, K=int(rng.integers(1, 4)), node_size=2)
        args = layer.arguments(int(rng.integers(100)))
        assert_random_schedules_ordered(rng, SCHEMES[scheme](moe_ffn), layer, args)


@pytest.mark.slow
@pytest.mark.parametrize("stage, direction", [("overlap", "forward"), ("queues", "backward")])
def test_no_harmful_mutant_is_accepted(stage, direction):
    """Mutants of schedules that verify accepts are harmless in every routing of a layer small enough to list them all."""
    layer, rng = Layer(ep=4, T=1, H=2, I=1, E=4, K=2, node_size=2), np.random.default_rng(7)
    flow = lowered(stages(rows=1, cols=2, machine=SMALL_NPU)[stage](send_rows(moe_ffn, scheme="hierarchical")),
                   layer.arguments(), layer.mesh,
                   direction)
    assert len(flow.routes) == 2
    judge = Judge(flow, every_case(layer, flow)[::97])
    assert judge.harm(flow) is None
    for _ in range(60):
        kind, other = mutant(rng, flow)
        assert fault_of_verifier(judge, flow, other, may_hang=lambda whole: True) is None, kind
