"""Experts whose columns lie on several ranks: values and gradients of the whole experts, in float64, by every scheme."""

import mindspore as ms
import numpy as np
import pytest
from helpers import fused, some_stages, stages
from rounded_rows import rounded_rows
from sharded_layers import assert_close, on_ranks, oracle, run, whole

import hpmoe


@pytest.mark.parametrize("ep, tp", [(1, 2), (2, 2), (1, 4), (2, 1)])
def test_values_and_gradients_are_those_of_whole_experts(ep, tp):
    args, cotangent = whole(ep, tp)
    expected = oracle(args, cotangent)
    for f in (hpmoe.moe_ffn, fused()(hpmoe.moe_ffn)):
        assert_close(run(f, hpmoe.Mesh(ep, tp=tp), args, cotangent), expected)


SCHEMES = {
    "direct": hpmoe.chain(), "once": hpmoe.send_rows(scheme="deduplicated"),
    "relays": hpmoe.send_rows(scheme="hierarchical"),
    "relays, once": hpmoe.send_rows(scheme="hierarchical+deduplicated"),
    "replicas": hpmoe.replicate_experts(loads=[9, 1, 1, 5]), "recomputed": hpmoe.save_for_backward(policy="dispatched_rows"),
    "copies, once": hpmoe.chain(hpmoe.replicate_experts(loads=[9, 1, 1, 5]), hpmoe.send_rows(scheme="deduplicated")),
}


ROUTINGS = ("random", (5, 0, 3, 1)), ("one expert", None), ("one rank", (0, 5, 0, 0))


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("i", range(2))
def test_every_scheme_is_exact(name, i):
    """Tests two routings for each scheme: one at every level, the other in a kernel."""
    place = list(SCHEMES).index(name)
    routing, num_tokens = ROUTINGS[(i + place) % 3]
    args, cotangent = whole(routing=routing)
    mesh, f = hpmoe.Mesh(2, tp=2, nodes=2 if "relays" in name else None), SCHEMES[name](hpmoe.moe_ffn)
    if num_tokens is not None:
        for rank, n in enumerate(num_tokens):
            args[2][rank, n:] = 0.0  # padding counts for nothing
    expected = oracle(args, cotangent)
    for rank, n in enumerate(num_tokens or ()):
        expected[2][rank, n:] = 0.0
    for stage in some_stages(place)[1 + i:]:
        assert_close(run(stages()[stage](f), mesh, args, cotangent, num_tokens), expected)


def test_absent_entries_go_to_no_shard():
    args, cotangent = whole()
    there = np.random.default_rng(3).random(args[1].shape) < 0.6
    expected = oracle([*args[:2], args[2] * there, *args[3:]], cotangent)
    expected[2] = expected[2] * there
    args[1] = np.where(there, args[1], -1).astype(np.int32)
    args[2] = np.where(there, args[2], np.nan).astype(np.float32)
    found = run(fused()(hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated")), hpmoe.Mesh(2, tp=2), args, cotangent)
    assert_close(found, expected)


@pytest.mark.parametrize("policy", ["position", "probs"])
def test_an_experts_shards_drop_the_same_entries(policy):
    """Capacity is that of the whole expert: drops, their counts and what is left are those of one rank a group."""
    args, cotangent = whole(1, 2, routing="one expert")

    def capped(*args):
        return hpmoe.moe_ffn(*args, capacity_factor=0.5, drop_policy=policy, return_drop_counts=True)

    def dropped_of(mesh, tokens, weights):
        return hpmoe.spmd(fused()(capped), mesh)(*map(ms.Tensor, (*tokens, *weights)))
    split = on_ranks(args, hpmoe.Mesh(1, tp=2))
    out, counts = dropped_of(hpmoe.Mesh(1, tp=2), args[:3], split[3:])
    for rank in range(2):
        alone, of_one = dropped_of(hpmoe.Mesh(1), [a[rank:rank + 1] for a in args[:3]], args[3:])
        np.testing.assert_allclose(out.asnumpy()[rank], alone.asnumpy()[0], rtol=1e-5, atol=1e-5)
        assert counts.asnumpy()[rank].tolist() == of_one.asnumpy()[0].tolist() and counts.asnumpy().sum() > 0
    plain = hpmoe.spmd(capped, hpmoe.Mesh(1, tp=2))(*map(ms.Tensor, split))
    np.testing.assert_allclose(out.asnumpy(), plain[0].asnumpy(), rtol=1e-5, atol=1e-5)
    assert (counts == plain[1]).all()

    def loss(mesh, tokens, weights):
        layer = hpmoe.spmd(fused()(capped), mesh)
        return ms.grad(lambda *a: (layer(*a)[0] * ms.Tensor(cotangent[:len(tokens[0])])).sum(), (0, 2))(
            *map(ms.Tensor, (*tokens, *weights)))
    for a, b in zip(loss(hpmoe.Mesh(1, tp=2), [a[:1].repeat(2, axis=0) for a in args[:3]], split[3:]),
                    loss(hpmoe.Mesh(1), [a[:1] for a in args[:3]], args[3:]), strict=True):
        np.testing.assert_allclose(a.asnumpy()[0], b.asnumpy()[0], rtol=1e-4, atol=1e-5)


def test_an_expert_over_its_capacity_is_named_as_in_the_model():
    args, _ = whole(2, 2, routing="one expert")
    layer = hpmoe.spmd(fused()(lambda *args: hpmoe.moe_ffn(*args, capacity_factor=1.0)), hpmoe.Mesh(2, tp=2))
    with pytest.raises(hpmoe.ArgumentError, match="tokens that chose expert 3 is 5; it must be at most 3, its capacity: "
                                                  r"ceil\(5 tokens \* 2 / 4 experts \* 1\)"):
        layer(*map(ms.Tensor, on_ranks(args, hpmoe.Mesh(2, tp=2))))


@pytest.mark.parametrize("ep, tp", [(2, 2), (1, 4)])
def test_bytes_are_those_of_the_formula(ep, tp):
    """A row goes to every rank of its expert's group, but to its own: direct once for each expert, deduplicated once."""
    args, _ = whole(ep, tp, T=40, K=3)
    mesh, ids = hpmoe.Mesh(ep, tp=tp), args[1]
    group_of = ids // (4 // ep)
    for scheme, per_token in (("direct", lambda groups: groups), ("deduplicated", set)):
        layer = hpmoe.spmd(fused()(hpmoe.send_rows(hpmoe.moe_ffn, scheme=scheme)), mesh)
        _, (timeline,) = hpmoe.measure(layer, *map(ms.Tensor, on_ranks(args, mesh)))
        rows = np.zeros((ep * tp, ep * tp), int)
        for source, tokens in enumerate(group_of):
            for groups in tokens.tolist():
                for group in per_token(groups):
                    rows[source, group * tp:(group + 1) * tp] += 1
        there_and_back = (rows + rows.T) * args[0].shape[-1] * 4
        if scheme == "deduplicated":  # and the weights of entries, to all of them
            for source, tokens in enumerate(group_of):
                for group in tokens.reshape(-1):
                    there_and_back[source, group * tp:(group + 1) * tp] += 4
        assert (timeline.moved == there_and_back).all()


def test_simulator_and_memory_report_know_shards():
    mesh = hpmoe.Mesh(2, tp=2)
    avals = [hpmoe.ShapeDtypeStruct((4, *shape), dtype) for shape, dtype in (
        ((256, 128), "bfloat16"), ((256, 2), "int32"), ((256, 2), "float32"), ((4, 128, 128), "bfloat16"),
        ((4, 64, 128), "bfloat16"))]
    chain = hpmoe.chain(hpmoe.tile_partition, hpmoe.overlap_comm, hpmoe.assign_queues(machine=hpmoe.machines.ascend_a3))
    flow = hpmoe.spmd(chain(hpmoe.moe_ffn), mesh).lower(*avals)
    timeline = hpmoe.simulate(flow)
    assert timeline.span > 0 and timeline.moved.sum() == 2 * 4 * 256 * 2 * 2 * 128 * 2  # every entry, to 2 shards and back
    assert "MiB of 4 ranks" in str(hpmoe.spmd(chain(hpmoe.moe_ffn), mesh).memory(*avals))


W8A8 = hpmoe.quantize_weights(row_dtype="int8")
QUANTISED = {
    "int8": (hpmoe.quantize_rows,
             True), "mxfp8, once": (hpmoe.chain(hpmoe.send_rows(scheme="deduplicated"), hpmoe.quantize_rows(
        dtype="mxfp8")), True),
    "int8, relays": (hpmoe.chain(hpmoe.quantize_rows, hpmoe.send_rows(scheme="hierarchical")), True),
    "both ways": (hpmoe.quantize_rows(combine=True, backward="quantized"), False),
    "W8A8": (hpmoe.chain(hpmoe.quantize_rows, W8A8), False),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_rows_and_weights_of_shards(name):
    """A row is rounded as for a whole expert, and each shard's columns of down as they are there: as call by call."""
    transform, is_whole = QUANTISED[name]
    args, cotangent = whole()
    mesh = hpmoe.Mesh(2, tp=2, nodes=2 if "relays" in name else None)
    found = run(fused()(transform(hpmoe.moe_ffn)), mesh, args, cotangent)
    if is_whole:
        assert_close(found, oracle([rounded_rows(args[0], {"dtype": name.split(",")[0]}), *args[1:]], cotangent))
    assert_close(found, run(transform(hpmoe.moe_ffn), mesh, args, cotangent))
