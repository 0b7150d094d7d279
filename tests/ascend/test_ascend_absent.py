"""Ids of -1, which are no expert, in the Ascend kernel on its emulator."""

import mindspore as ms
import numpy as np
import pytest
from absent import without
from ascend_helpers import LayerRun, ProgramRun, bf16, capped, from_seed
from helpers import Layer, kept_by_hand

import hpmoe
from hpmoe import ShapeDtypeStruct, trace
from hpmoe.support.errors import LaunchError


def without_run(layer, pattern, factor=None, policy="error", dtype=ms.bfloat16, wrap=lambda f: f, **options):
    """A layer with ids of -1, beside which the weights are NaN."""
    run = LayerRun(layer, dtype, wrap(capped(factor, policy)), **options)
    args, left = without(layer, pattern)
    run.ids, run.given[1] = ms.Tensor(args[1]), ms.Tensor(np.round(args[2])).astype(dtype)
    run.kept, _ = kept_by_hand(args[1], np.round(args[2]), factor or 1e9, policy, layer.E, layer.num_tokens)
    return run, left


def deduplicating_copies(f):
    return hpmoe.send_rows(scheme="deduplicated")(hpmoe.replicate_experts(f, loads=[9, 9, 1, 1], replicas=2))


PATTERNS = "none", "all", "all of the first rank", "all but one token", "first choices", "one expert", "a part"


@pytest.mark.parametrize("layer, options", [
    (Layer(ep=1, T=20, H=32, I=16, E=4, K=2), {}),
    (Layer(ep=2, T=20, H=48, I=32, E=8, K=3, num_tokens=(20, 7)), {"blocks": 2, "signal": "expert"}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=1), {"signal": "peer"}),
    (Layer(ep=3, T=11, H=16, I=16, E=6, K=2), {"rows": 4, "wrap": hpmoe.send_rows(scheme="deduplicated")}),
    (Layer(ep=2, T=13, H=32, I=24, E=4, K=2), {"rows": 4, "wrap": deduplicating_copies}),
    (Layer(ep=2, T=20, H=32, I=16, E=8, K=3), {"factor": 0.5, "policy": "position", "blocks": 2}),
    (Layer(ep=2, T=20, H=32, I=16, E=8, K=3, num_tokens=(20, 0)), {"factor": 0.5, "policy": "probs", "blocks": 2}),
    (Layer(ep=1, T=9, H=32, I=16, E=4, K=2), {"factor": 0.5, "policy": "probs", "dtype": ms.float16}),
    (Layer(ep=2, T=9, H=32, I=16, E=4, K=2), {"factor": 4.0, "dtype": ms.float32}),
], ids=["one rank", "signals by expert", "signals by peer", "deduplicated", "deduplicated copies", "dropped by position",
        "dropped by weight", "float16", "float32"])
def test_an_id_of_no_expert_goes_nowhere(layer, options):
    for pattern in PATTERNS[(layer.T + layer.E) % 3::3]:
        run, left = without_run(layer, pattern, **options)
        out, dx, d_weights, *_ = run.assert_close_to_float64()
        nowhere = ~left.any(axis=-1)
        assert not d_weights[~left].any() and not out[nowhere].any() and not dx[nowhere].any()


def test_ids_of_no_expert_come_and_go(monkeypatch):
    """Launch after launch of one kernel, in any order: what one has left in the tables misleads no other."""
    layer = Layer(ep=2, T=20, H=32, I=16, E=4, K=2)
    run, _ = without_run(layer, "none", blocks=2)
    all_there, first = run.ids, run()
    for seed, pattern in enumerate(("a part", "none", "all", "none", "most", "first choices", "none")):
        from_seed(monkeypatch, 1000 * seed)
        other, _ = without_run(layer, pattern)
        run.ids, run.given, run.kept = other.ids, other.given, other.kept
        got = run.assert_close_to_float64()
        assert pattern != "none" or all((a == b).all() for a, b in zip(got, first, strict=True))
    assert (run.ids.asnumpy() == all_there.asnumpy()).all()


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_ids_of_no_expert_are_not_counted_as_dropped(policy):
    avals = [bf16(37, 32), ShapeDtypeStruct((37, 3), "int32"), bf16(37, 3)]

    def counted(x, ids, weights):
        rows, route = hpmoe.dispatch(x, ids, num_local_experts=5, capacity_factor=0.5, drop_policy=policy,
                                     topk_weights=weights)
        return hpmoe.combine(rows, route, weights), hpmoe.router.drop_counts(route)

    run = ProgramRun(trace(counted, *avals))
    rng = np.random.default_rng(0)
    ids = np.array([rng.permutation(5)[:3] for _ in range(37)], np.int32)
    for absent in (rng.random(ids.shape) < 0.4, ids == 2, np.ones(ids.shape, bool)):
        run.inputs[1][...] = np.where(absent, -1, ids)
        run.inputs[2][...] = np.where(absent, np.nan, np.round(rng.standard_normal(ids.shape) * 20) / 64)
        _, want = kept_by_hand(run.inputs[1][None], run.inputs[2].astype(np.float32)[None], 0.5, policy, 5)
        np.testing.assert_array_equal(run.assert_close_to_float64()[1], want[0])


@pytest.mark.parametrize("wrong", [-2, -2**31, 4])
def test_other_ids_are_still_named(wrong):
    """By the kernel, which finds them where the host has not looked."""
    avals = [bf16(16, 32), ShapeDtypeStruct((16, 2), "int32"), bf16(16, 2), bf16(4, 32, 64), bf16(4, 32, 32)]
    run = ProgramRun(trace(hpmoe.moe_ffn, *avals))
    run.inputs[1][...] = (-1, 3)
    run.assert_close_to_float64()
    run.inputs[1][11, 1] = wrong
    with pytest.raises(LaunchError, match=f"topk_ids of rank 0 names expert {wrong}; there are 4"):
        run()
