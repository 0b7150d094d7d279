"""A token that crosses to a node once: the same numbers at every stage, received rows bit for bit, bytes of each link by the
formula, every order by brute force."""

import dataclasses

import mindspore as ms
import numpy as np
import pytest
from crossings import bytes_between, crossings
from helpers import (
    SMALL_NPU,
    Layer,
    assert_accumulates,
    assert_close,
    assert_equals_numpy,
    assert_every_access_ordered,
    assert_stays_moe_ffn,
    fused,
    lowered,
    run_spmd,
    stages,
    tensors,
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
from hpmoe import chain, deduplicate_rows, moe_ffn, relay_rows, replicate_experts

LAYERS = {
    "all on one rank": Layer(ep=4, T=5, E=12, K=3, routing="one rank", node_size=2),
    "uneven": Layer(ep=6, T=5, E=12, K=3, num_tokens=(5, 0, 3, 0, 0, 4), node_size=2),
    "nodes of three": Layer(ep=6, T=4, E=6, K=4, node_size=3),
    "no tokens": Layer(ep=4, T=0, E=4, K=2, node_size=2),
}
SCHEMES = {"relays": relay_rows, "relays, once to a rank": chain(deduplicate_rows, relay_rows)}


def absent(rng, ep_size, num_tokens, top_k, num_experts):
    """Ids of which a third are no expert, and all of the first rank."""
    ids = np.argsort(rng.random((ep_size, num_tokens, num_experts)))[..., :top_k]
    ids[rng.random(ids.shape) < 1 / 3] = -1
    ids[0] = -1
    return ids


@pytest.mark.parametrize("stage", stages())
@pytest.mark.parametrize("name", LAYERS)
def test_every_stage(name, stage):
    assert_equals_numpy(stages()[stage](relay_rows(moe_ffn)), LAYERS[name])


@pytest.mark.parametrize("stage", stages())
def test_every_stage_with_more_nodes_than_choices(stage):
    assert_equals_numpy(stages()[stage](relay_rows(moe_ffn)), dataclasses.replace(LAYERS["uneven"], K=1))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("policy, signal", [("critical_path", "expert"), ("round_robin", "peer"), ("stage_order", "tile")])
def test_every_schedule(policy, signal, scheme):
    machine, cols = {"critical_path": (hpmoe.cpu(3), None)}.get(policy, (SMALL_NPU, 2))
    whole = fused(policy=policy, signal=signal, machine=machine, rows=3, cols=2, put_cols=cols)
    assert_stays_moe_ffn(chain(SCHEMES[scheme], whole), Layer(ep=4, T=6, E=8, K=4, node_size=2),
                         routings=["one_expert", absent, "uneven"])


@pytest.mark.parametrize("name", ["expert_biases", "two_layers", "without_weights"])
def test_other_layers_against_jax(name):
    assert_agrees_with_jax(relay_rows, Layer(ep=4, T=5, E=8, K=3, node_size=2), name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    assert_rounds_once_more(relay_rows, Layer(ep=4, T=16, E=8, K=4, H=8, I=4, node_size=2), dtype)


@pytest.mark.parametrize("stage", ["plain", "overlap", "fused"])
def test_received_rows_and_weight_gradients_are_the_same_bit_for_bit(stage):
    layer = Layer(ep=4, T=9, E=8, K=3, num_tokens=(9, 4, 0, 7), node_size=2)
    args, cotangent = layer.arguments(), layer.cotangent()
    (_, direct), (_, relayed) = (run_spmd(stages()[stage](f), layer.mesh, args, [cotangent], layer.num_tokens)
                                 for f in (moe_ffn, relay_rows(moe_ffn)))
    assert [(a == b).all() for a, b in zip(direct[1:], relayed[1:], strict=True)] == [True] * 3


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_dropped_entries_and_their_counts(policy):
    """A token crosses to a node that kept one of its entries, and does not where all were dropped."""
    assert_drops_the_same(relay_rows, Layer(ep=4, T=8, E=8, K=3, num_tokens=(8, 5, 0, 2), node_size=2), fused(), policy)


def test_with_copies_main_gradients_and_save_policies():
    layer = Layer(ep=4, T=7, E=12, K=3, routing="one rank", node_size=2)
    loads = np.bincount(layer.arguments()[1].reshape(-1), minlength=layer.E)
    assert_accumulates(replicate_experts(loads=loads, replicas=2), layer, relay_rows)


def test_quantised_rows_are_relayed_as_bytes():
    layer = Layer(ep=4, T=7, E=8, K=3, H=32, node_size=2)
    args, cotangent = layer.arguments(), layer.cotangent()
    (plain, grads), (relayed, their) = (run_spmd(chain(hpmoe.quantize_rows, scheme, fused())(moe_ffn), layer.mesh, args,
                                                 [cotangent]) for scheme in (chain(), relay_rows))
    assert_close([*relayed, *their], [*plain, *grads])


def test_a_compiled_graph_launches_it():
    layer = Layer(ep=4, T=6, E=8, K=3, node_size=2)
    args = tensors(layer.arguments())
    f = hpmoe.spmd(fused()(relay_rows(moe_ffn)), layer.mesh)

    def loss(*a):
        return (f(*a) ** 2).sum()

    grad = ms.grad(loss, (0, 2, 3, 4))
    for a, b in zip(grad(*args), ms.jit(grad)(*args), strict=True):
        assert (a.asnumpy() == b.asnumpy()).all()


@pytest.mark.parametrize("layer", [Layer(ep=4, T=5, E=4, K=2), Layer(ep=4, T=5, E=4, K=2, node_size=4),
                                   Layer(ep=2, T=5, E=8, K=1, node_size=1)])
def test_on_one_node_or_nodes_of_one_rank_nothing_changes(layer):
    plain, relayed = (lowered(f, layer.arguments(), layer.mesh)
                      for f in map(hpmoe.tile_partition, (moe_ffn, relay_rows(moe_ffn))))
    assert plain.ops == relayed.ops and plain.routes == relayed.routes and (plain.waits == relayed.waits).all()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_access_is_ordered(scheme):
    """Brute force over small flows of both directions: rows are there before they are passed on, and sums before they go."""
    rng = np.random.default_rng(5)
    for _ in range(6):
        layer = Layer(ep=4, T=int(rng.integers(0, 5)), E=8, K=int(rng.integers(1, 4)), node_size=2)
        args = layer.arguments(int(rng.integers(100)))
        options = {"rows": int(rng.integers(1, 4)), "signal": str(rng.choice(["tile", "expert", "peer"])),
                   "machine": (hpmoe.cpu(3), SMALL_NPU)[rng.integers(2)]}
        stage = stages(**options)[str(rng.choice(["tiles", "overlap", "queues"]))]
        for direction in ("forward", "backward"):
            flow = lowered(stage(SCHEMES[scheme](moe_ffn)), args, layer.mesh, direction)
            assert_every_access_ordered(flow, args)


@pytest.mark.parametrize("scheme, seed", [("node", 0), ("node", 1), ("node", 2), ("rank and node", 0)])
def test_bytes_of_each_link_are_those_of_the_formula(scheme, seed):
    """A row each way for each (token, node) and for each (token, expert) inside; routing weights go with the former, and in
    the backward pass from the tokens' ranks, whose gradients come back."""
    rng, row = np.random.default_rng(seed), 4 * 4
    layer = Layer(ep=6, T=8, E=12, K=3, node_size=int(rng.choice([2, 3])), num_tokens=tuple(rng.integers(0, 9, 6)))
    args, cotangent = layer.arguments(seed), layer.cotangent()
    args[1][rng.random(args[1].shape) < 0.2] = -1
    f = hpmoe.send_rows(moe_ffn, scheme=scheme)
    _, lines = hpmoe.measure(run_spmd, fused()(f), layer.mesh, args, [cotangent], layer.num_tokens)
    crossed, _ = crossings(args[1], 2, layer.node_size, layer.num_tokens)
    for line, wanted in zip(lines, bytes_between(scheme, args[1], 2, layer.node_size, row, layer.num_tokens), strict=True):
        np.testing.assert_array_equal(line.moved, wanted)
    across = sum(crossed[s, d] for s in range(6) for d in range(6) if s // layer.node_size != d // layer.node_size)
    if scheme != "rank and node":  # whose weights go from rank to rank, one for each entry
        assert lines[0].link_bytes(layer.node_size).across_nodes == across * (2 * row + 3 * 4)


def test_the_simulator_counts_the_same_bytes():
    layer = Layer(ep=4, T=24, H=8, E=12, K=4, node_size=2)
    args, machine = layer.arguments(), hpmoe.ascend_a3.replace(node_size=2)
    staged = stages(rows=8, cols=8, machine=machine)["queues"](relay_rows(moe_ffn))
    line = hpmoe.simulate(lowered(staged, args, layer.mesh), routing=args[1])
    np.testing.assert_array_equal(line.moved, bytes_between("node", args[1], 3, 2, 32)[0])


def test_tokens_cross_as_often_as_the_formula_expects():
    """N (1 - (1 - 1 / N)^K) of N nodes for K experts drawn with replacement; without, a little more."""
    rng, nodes, top_k = np.random.default_rng(0), 4, 4
    ids = np.array([rng.choice(64, top_k, replace=False) for _ in range(8 * 500)]).reshape(8, 500, top_k)
    crossed, _ = crossings(ids, 8, 2)
    assert crossed.sum() / 4000 == pytest.approx(nodes * (1 - (1 - 1 / nodes) ** top_k), rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("stage, direction", [("overlap", "forward"), ("queues", "backward")])
def test_no_harmful_mutant_is_accepted(stage, direction):
    """Mutants of schedules that verify accepts are harmless in every routing of a layer small enough to list them all."""
    layer, rng = Layer(ep=4, T=1, H=2, I=1, E=4, K=2, node_size=2), np.random.default_rng(7)
    flow = lowered(stages(rows=1, cols=2, machine=SMALL_NPU)[stage](relay_rows(moe_ffn)), layer.arguments(), layer.mesh,
                   direction)
    assert len(flow.routes) == 2
    judge = Judge(flow, every_case(layer, flow)[::97])
    assert judge.harm(flow) is None
    for _ in range(60):
        kind, other = mutant(rng, flow)
        assert fault_of_verifier(judge, flow, other, may_hang=lambda whole: True) is None, kind
