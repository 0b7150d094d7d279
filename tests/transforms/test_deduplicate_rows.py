"""A token sent once to each rank: the same numbers at every stage, rows that really stay away, every order by brute
force."""

import numpy as np
import pytest
from brute_force import Unordered
from helpers import (
    SMALL_NPU,
    Layer,
    assert_accumulates,
    assert_close,
    assert_equals_numpy,
    assert_every_access_ordered,
    assert_stays_moe_ffn,
    fused,
    jax_vjp,
    lowered,
    numpy_moe_ffn,
    run_half,
    run_spmd,
    stages,
)
from mutants import assert_accepted_mutants_are_harmless
from mutation_subjects import every_case
from variants import VARIANTS, arguments

import hpmoe
from hpmoe import chain, deduplicate_rows, moe_ffn, replicate_experts
from hpmoe.autodiff.vjp import linearize
from hpmoe.routing.routing import make_routing, routing_to_ranks

LAYERS = {
    "two ranks": Layer(ep=2, T=9, E=6, K=4),
    "all on one rank": Layer(ep=4, T=7, E=12, K=3, routing="one rank"),
    "uneven": Layer(ep=3, T=5, E=9, K=3, num_tokens=(5, 0, 3)),
    "every expert": Layer(ep=2, T=4, E=4, K=4),
    "no tokens": Layer(ep=2, T=0, E=4, K=2),
}


@pytest.mark.parametrize("stage", stages())
@pytest.mark.parametrize("name", LAYERS)
def test_every_stage(name, stage):
    assert_equals_numpy(stages()[stage](deduplicate_rows(moe_ffn)), LAYERS[name])


@pytest.mark.parametrize("policy, signal", [("critical_path", "expert"), ("round_robin", "peer"), ("stage_order", "tile"),
                                            ("expert_barrier", "expert")])
def test_every_schedule(policy, signal):
    for machine, cols in ((hpmoe.cpu(3), None), (SMALL_NPU, 2)):
        whole = fused(policy=policy, signal=signal, machine=machine, rows=3, cols=2, put_cols=cols)
        assert_stays_moe_ffn(chain(deduplicate_rows, whole), Layer(ep=3, T=6, E=9, K=4), routings=["uniform", "one_expert"])


@pytest.mark.parametrize("name", ["expert_biases", "two_layers", "without_weights"])
def test_other_layers_against_jax(name):
    f, in_jax = VARIANTS[name]
    layer = Layer(ep=2, T=5, E=6, K=3)
    args = arguments(f, layer)
    positions = tuple(i for i, a in enumerate(args) if a.dtype == np.float32)
    cotangent = np.random.default_rng(3).standard_normal(args[0].shape).astype(np.float32)
    outs, grads = run_spmd(fused()(deduplicate_rows(f)), layer.ep, args, [cotangent], positions=positions)
    want, want_grads = jax_vjp(in_jax, args, cotangent, positions)
    assert_close([*outs, *grads], [want, *want_grads])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision(dtype):
    """A sum that goes back is rounded once; topk_weights may be float32 beside it. Runs repeat bit by bit."""
    layer = Layer(ep=4, T=16, E=8, K=4, H=8, I=4)
    once = chain(deduplicate_rows, fused())
    for a, b, c in zip(*(run_half(stage(moe_ffn), layer, dtype) for stage in (fused(), once, once)), strict=True):
        np.testing.assert_allclose(b, a, rtol=0, atol=2.0 ** -6 * np.abs(a).max())
        assert (b == c).all()


@pytest.mark.parametrize("policy", ["position", "probs"])
@pytest.mark.parametrize("stage", ["plain", "overlap", "fused"])
def test_dropped_entries_and_their_counts(stage, policy):
    """A token goes to a rank that kept one of its entries, and does not where all were dropped."""
    layer = Layer(ep=2, T=8, E=6, K=3, num_tokens=(8, 5))
    args, cotangent = layer.arguments(), layer.cotangent()

    def f(*a):
        return moe_ffn(*a, capacity_factor=0.5, drop_policy=policy, return_drop_counts=True)

    counts = np.zeros((2, 6), np.float32)
    plain, once = (run_spmd(stages()[stage](g), 2, args, [cotangent, counts], layer.num_tokens)
                   for g in (f, deduplicate_rows(f)))
    assert plain[0][1].sum() > 0 and (plain[0][1] == once[0][1]).all()
    assert_close([once[0][0], *once[1]], [plain[0][0], *plain[1]])


def test_with_copies_main_gradients_and_save_policies():
    layer = Layer(ep=4, T=7, E=12, K=3, routing="one rank")
    loads = np.bincount(layer.arguments()[1].reshape(-1), minlength=layer.E)
    assert_accumulates(replicate_experts(loads=loads, replicas=2), layer, deduplicate_rows)


@pytest.mark.parametrize("layer", [Layer(ep=1, T=5, E=4, K=2), Layer(ep=4, T=5, E=4, K=2), Layer(ep=2, T=5, E=8, K=1)])
def test_where_nothing_repeats_nothing_changes(layer):
    plain, once = (lowered(f, layer.arguments(), layer.ep)
                   for f in map(hpmoe.tile_partition, (moe_ffn, deduplicate_rows(moe_ffn))))
    assert plain.ops == once.ops and plain.routes == once.routes and (plain.waits == once.waits).all()


def test_a_token_goes_to_a_rank_once():
    rng = np.random.default_rng(2)
    ids = [np.stack([rng.permutation(12)[:5] for _ in range(20)]) for _ in range(4)]
    ranks = routing_to_ranks(make_routing(ids, 12))
    for source, mine in enumerate(ids):
        assert ranks.counts[source].tolist() == [sum(d in row // 3 for row in mine) for d in range(4)]
    for d in range(4):
        there = set(zip(ranks.source_of_row[d].tolist(), (ranks.entry_of_row[d] // 5).tolist(), strict=True))
        assert len(there) == ranks.num_rows(d)


def test_the_vjp_of_what_is_deduplicated():
    """Gradients may also be taken of the rewritten program."""
    layer = Layer(ep=2, T=5, E=6, K=3)
    args, cotangent = layer.arguments(), layer.cotangent()
    both = linearize(lowered(deduplicate_rows(moe_ffn), args, 2))
    outs = hpmoe.evaluate(both.forward, [[a[r] for a in args] for r in range(2)])
    grads = hpmoe.evaluate(both.backward, [[*(args[i][r] for i in both.kept_inputs), *outs[r][1:], cotangent[r]]
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
        options = {"rows": int(rng.integers(1, 4)), "signal": str(rng.choice(["tile", "expert", "peer"])),
                   "machine": (hpmoe.cpu(3), SMALL_NPU)[rng.integers(2)]}
        stage = stages(**options)[str(rng.choice(["tiles", "overlap", "queues"]))]
        for direction in ("forward", "backward"):
            assert_every_access_ordered(lowered(stage(deduplicate_rows(moe_ffn)), args, ep, direction), args)


@pytest.mark.parametrize("stage, direction", [("overlap", "forward"), ("queues", "backward")])
def test_no_harmful_mutant_is_accepted(stage, direction):
    """Mutants of schedules that verify accepts are harmless in every routing of a layer small enough to list them all."""
    layer, rng = Layer(ep=2, T=1, H=2, I=1, E=4, K=2), np.random.default_rng(7)
    flow = lowered(stages(rows=1, cols=2, machine=SMALL_NPU)[stage](deduplicate_rows(moe_ffn)), layer.arguments(), 2,
                   direction)
    assert len(flow.routes) == 2
    assert_accepted_mutants_are_harmless(flow, every_case(layer, flow), rng, 100)


@pytest.mark.parametrize("opcode", ["FAN_OUT", "FAN_IN"])
def test_a_lost_wait_is_found(opcode):
    layer = Layer(ep=2, T=6, E=4, K=2)
    args = layer.arguments()
    flow = lowered(stages()["overlap"](deduplicate_rows(moe_ffn)), args, 2)
    of = np.array([op.opcode == opcode for op in flow.ops])[flow.tasks["op"][flow.waits["task"]]]
    assert of.any()
    broken = flow.replace(waits=flow.waits[~of])
    with pytest.raises(hpmoe.VerifyError, match="neither it nor what runs before it waits for it"):
        hpmoe.verify(broken)
    with pytest.raises(Unordered):
        assert_every_access_ordered(broken, args)
