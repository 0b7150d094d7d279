"""Schemes of sending rows: each is the rewrites that it stands for, equal numbers at every level, rows that stay away, every
order by brute force; and the scheme that the machine model chooses."""

import dataclasses

import numpy as np
import pytest
from helpers import (
    SMALL_NPU,
    Layer,
    assert_close,
    assert_equals_numpy,
    assert_stays_moe_ffn,
    at_stages,
    avals_of,
    fused,
    jax_vjp,
    lowered,
    numpy_moe_ffn,
    run_half,
    run_spmd,
    stages,
)
from judge import Judge
from mutants import fault_of_verifier, mutant
from mutation_subjects import every_case
from variants import VARIANTS, arguments

import hpmoe
from hpmoe import chain, moe_ffn, send_rows
from hpmoe.autodiff.vjp import linearize
from hpmoe.routing.kinds.direct import Direct
from hpmoe.routing.kinds.stops import Deduplicated
from hpmoe.routing.routing import make_routing, routing_of_tokens
from hpmoe.transforms.send_deduplicated import deduplicated
from hpmoe.transforms.send_hierarchical import hierarchical

REWRITES = {"direct": (), "deduplicated": (deduplicated,), "hierarchical": (hierarchical,),
            "hierarchical+deduplicated": (deduplicated, hierarchical)}
UNEVEN_NODES = Layer(ep=6, T=5, E=12, K=3, num_tokens=(5, 0, 3, 0, 0, 4), node_size=2)
LAYERS = {
    "deduplicated": (
        Layer(ep=2, T=9, E=6, K=4),
        Layer(ep=4, T=7, E=12, K=3, routing="one rank"),
        Layer(ep=3, T=5, E=9, K=3, num_tokens=(5, 0, 3)),
        Layer(ep=2, T=4, E=4, K=4),
        Layer(ep=2, T=0, E=4, K=2)),
    "hierarchical": (
        Layer(ep=4, T=5, E=12, K=3, routing="one rank", node_size=2),
        UNEVEN_NODES,
        Layer(ep=6, T=4, E=6, K=4, node_size=3),
        Layer(ep=4, T=0, E=4, K=2, node_size=2),
        dataclasses.replace(UNEVEN_NODES, K=1)),  # more nodes than choices
}
LAYER = Layer(ep=4, T=6, E=8, K=4, node_size=2)
LARGE = [((4096, 7168), "bfloat16"), ((4096, 8), "int32"), ((4096, 8), "float32"), ((8, 7168, 4096), "bfloat16"),
         ((8, 2048, 7168), "bfloat16")]


@pytest.mark.parametrize("scheme", REWRITES)
def test_a_scheme_is_its_rewrites(scheme):
    program = hpmoe.trace(moe_ffn, *avals_of(LAYER.arguments()), mesh=LAYER.mesh)
    sent = send_rows.apply_to(program, scheme=scheme)
    for rewrite in REWRITES[scheme]:
        program = rewrite(program)
    assert str(sent).splitlines()[1:] == str(program).splitlines()[1:]
    assert_equals_numpy(fused()(send_rows(moe_ffn, scheme=scheme)), LAYER)


@pytest.mark.parametrize("scheme, layer, stage", [
    (scheme, layer, stage) for scheme, layers in LAYERS.items() for layer, stage in at_stages(layers)], ids=str)
def test_every_stage(scheme, layer, stage):
    assert_equals_numpy(stages()[stage](send_rows(moe_ffn, scheme=scheme)), layer)


@pytest.mark.parametrize("scheme, layer", [("deduplicated", Layer(ep=2, T=5, E=6, K=3)),
                                           ("hierarchical", Layer(ep=4, T=5, E=8, K=3, node_size=2))])
@pytest.mark.parametrize("name", ["expert_biases", "two_layers", "without_weights"])
def test_other_layers_against_jax(name, scheme, layer):
    f, in_jax = VARIANTS[name]
    args = arguments(f, layer)
    positions = tuple(i for i, a in enumerate(args) if a.dtype == np.float32)
    cotangent = np.random.default_rng(3).standard_normal(args[0].shape).astype(np.float32)
    outs, grads = run_spmd(fused()(send_rows(f, scheme=scheme)), layer.mesh, args, [cotangent], positions=positions)
    want, want_grads = jax_vjp(in_jax, args, cotangent, positions)
    assert_close([*outs, *grads], [want, *want_grads])


@pytest.mark.parametrize("scheme", LAYERS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(scheme, dtype):
    """A returned sum is rounded once more than without the scheme, and runs repeat bit by bit."""
    layer, sent = Layer(ep=4, T=16, E=8, K=4, H=8, I=4, node_size=2), chain(send_rows(scheme=scheme), fused())
    for a, b, c in zip(*(run_half(stage(moe_ffn), layer, dtype) for stage in (fused(), sent, sent)), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=2.0 ** -6 * np.abs(a).max())
        assert (b == c).all()


@pytest.mark.parametrize("policy", ["position", "probs"])
@pytest.mark.parametrize("scheme, stage, layer", [
    *(("deduplicated", stage, Layer(ep=2, T=8, E=6, K=3, num_tokens=(8, 5))) for stage in ("plain", "overlap", "fused")),
    ("hierarchical", "fused", Layer(ep=4, T=8, E=8, K=3, num_tokens=(8, 5, 0, 2), node_size=2))], ids=str)
def test_dropped_entries_and_their_counts(scheme, stage, layer, policy):
    """A token goes to a rank or node that kept one of its entries, and does not where all were dropped."""
    args, cotangent, made = layer.arguments(), layer.cotangent(), stages()[stage]

    def f(*a):
        return moe_ffn(*a, capacity_factor=0.5, drop_policy=policy, return_drop_counts=True)

    counts = np.zeros((layer.ep, layer.E), np.float32)
    plain, sent = (run_spmd(made(g), layer.mesh, args, [cotangent, counts], layer.num_tokens)
                   for g in (f, send_rows(f, scheme=scheme)))
    assert plain[0][1].sum() > 0 and (plain[0][1] == sent[0][1]).all()
    assert_close([sent[0][0], *sent[1]], [plain[0][0], *plain[1]])


@pytest.mark.parametrize("scheme, layer", [
    ("deduplicated", Layer(ep=1, T=5, E=4, K=2)), ("deduplicated", Layer(ep=4, T=5, E=4, K=2)),
    ("deduplicated", Layer(ep=2, T=5, E=8, K=1)), ("hierarchical", Layer(ep=4, T=5, E=4, K=2)),
    ("hierarchical", Layer(ep=4, T=5, E=4, K=2, node_size=4)), ("hierarchical", Layer(ep=2, T=5, E=8, K=1, node_size=1))],
    ids=str)
def test_where_nothing_can_be_saved_nothing_changes(scheme, layer):
    plain, sent = (lowered(f, layer.arguments(), layer.mesh)
                   for f in map(hpmoe.tile_partition, (moe_ffn, send_rows(moe_ffn, scheme=scheme))))
    assert plain.ops == sent.ops and plain.routes == sent.routes and (plain.deps.waits == sent.deps.waits).all()


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


@pytest.mark.parametrize("stage", ["plain", "overlap", "fused"])
def test_received_rows_and_weight_gradients_are_bitwise_equal(stage):
    layer = Layer(ep=4, T=9, E=8, K=3, num_tokens=(9, 4, 0, 7), node_size=2)
    args, cotangent = layer.arguments(), layer.cotangent()
    (_, direct), (_, relayed) = (run_spmd(stages()[stage](f), layer.mesh, args, [cotangent], layer.num_tokens)
                                 for f in (moe_ffn, send_rows(moe_ffn, scheme="hierarchical")))
    assert [(a == b).all() for a, b in zip(direct[1:], relayed[1:], strict=True)] == [True] * 3


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


def test_what_the_machine_model_chooses_computes_the_same():
    slow_between = hpmoe.cpu(2).replace({"link.node_size": 2, "link.node_bytes_per_us": 1e-3})
    auto = send_rows(machine=slow_between)
    assert "hierarchical" in lowered(auto(moe_ffn), LAYER.arguments(), LAYER.mesh).provenance[-1]
    assert_stays_moe_ffn(chain(auto, fused()), LAYER, routings=["uniform"])
    assert_equals_numpy(fused()(send_rows(moe_ffn)), LAYER)


def taken(nodes, direction="forward", rate=hpmoe.machines.ascend_a2.link.node_bytes_per_us):
    avals = [hpmoe.ShapeDtypeStruct(*a) for a in LARGE]
    sent = send_rows(moe_ffn, machine=hpmoe.machines.ascend_a2.replace({"link.node_bytes_per_us": rate}))
    return sent.lower(*avals, mesh=hpmoe.Mesh(8 * nodes, nodes=nodes), direction=direction).provenance[-1]


def test_it_follows_the_links():
    """Forward over nodes the links are what is waited for; inside a node, and backward, the matmuls."""
    direct, hierarchical = (f"send_rows(scheme={scheme})" for scheme in ("direct", "hierarchical"))
    assert [taken(n) for n in (1, 2, 4, 8)] == [direct, *[hierarchical] * 3]
    assert {taken(n, "backward") for n in (2, 4, 8)} == {direct}
    assert taken(2, rate=hpmoe.machines.ascend_a2.link.rate(16)) == direct
    assert taken(2, "backward", 10_000.0) == hierarchical


def test_no_relay_passes_padding_on():
    def padded(x, ids):
        return hpmoe.combine(*hpmoe.dispatch(x, ids, num_local_experts=2, expert_alignment=4))

    avals = avals_of(LAYER.arguments()[:2])
    taken = send_rows(padded, machine=hpmoe.machines.ascend_a2).lower(*avals, mesh=LAYER.mesh).provenance
    assert len(taken) == 1 and "hierarchical" not in taken[0]
