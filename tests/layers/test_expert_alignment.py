"""dispatch(expert_alignment=): zeros fill each expert's rows up to a multiple, in the plain function, tiles and kernels, and
change nothing else."""

import mindspore as ms
import numpy as np
import pytest
from aligned_rows import aligned
from helpers import Layer, stages, tensors
from mindspore import mint

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct
from hpmoe.interpreters.interpret import interpret
from hpmoe.ir.layout import Layout
from hpmoe.tiling.tile_program import tile_program

BOTH = hpmoe.send_rows(scheme="hierarchical+deduplicated")
LAYERS = {"balanced": Layer(), "one rank": Layer(ep=1, T=7, E=5), "four ranks": Layer(ep=4, E=8, K=3),
          "one expert": Layer(routing="one expert"), "fewer tokens": Layer(num_tokens=(5, 0))}


def run(f, layer, stage="fused", options=None, mesh=None, **calling):
    """Outputs and gradients of all ranks."""
    given = tensors(layer.arguments(**calling))
    staged = hpmoe.spmd(stages(**(options or {}))[stage](f), mesh or Mesh(layer.ep))
    lengths = {"num_tokens": layer.num_tokens} if layer.num_tokens else {}
    grads = ms.grad(lambda *a: (staged(*a, **lengths) ** 2).sum(), (0, 2, 3, 4))(*given)
    return [t.asnumpy() for t in (staged(*given, **lengths), *grads)]


@pytest.mark.parametrize("name, alignment", [
    ("balanced", 2), ("balanced", 3), ("one rank", 16), ("four ranks", 3), ("one expert", 16), ("fewer tokens", 2)])
def test_a_kernel_computes_the_same_bits(name, alignment):
    for mine, theirs in zip(run(aligned(alignment), LAYERS[name]), run(aligned(1), LAYERS[name]), strict=True):
        np.testing.assert_array_equal(mine, theirs)


OPTIONS = {
    "by peer": ({"signal": "peer"}, {}), "by expert": ({"signal": "expert"}, {}), "puts for several": ({"num_peers": 1}, {}),
    "an order": ({"order": "sequential"}, {}), "a way back": ({"combine_order": "sequential"}, {}),
    "position": ({}, {"capacity_factor": 0.8, "drop_policy": "position"}),
    "probs": ({}, {"capacity_factor": 0.8, "drop_policy": "probs"}), "error": ({}, {"capacity_factor": 4.0}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_beside_other_options(name):
    comm, options = OPTIONS[name]
    layer = Layer(ep=2, T=9, E=4, K=2)
    for mine, theirs in zip(run(aligned(4, **options), layer, options=comm), run(aligned(1, **options), layer), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stage", ["plain", "tiles", "overlap", "queues", "blocking"])
def test_every_stage(stage):
    layer = Layer(T=7)
    for mine, theirs in zip(run(aligned(4), layer, stage), run(aligned(1), layer), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def groups(ids, local, alignment):
    """For each rank its received rows as (local expert, source, entry), and None for those of zeros, by counting."""
    out = []
    for rank in range(len(ids)):
        rows = []
        for e in range(local):
            mine = [(e, s, i) for s, of in enumerate(ids) for i, x in enumerate(of.reshape(-1)) if x == rank * local + e]
            rows += mine + [None] * (-len(mine) % alignment)
        out.append(rows)
    return out


def ids_of(rng, ep, tokens, experts, top_k):
    ids = rng.random((ep, tokens, experts)).argsort(-1)[..., :top_k].astype(np.int32)
    ids[rng.random(ids.shape) < 0.2] = -1
    ids[ids == experts - 1] = -1  # of which nobody has any
    return ids


def program_of(ids, local, alignment):
    """A function that dispatches rows of 4 and returns what arrives."""
    def sent(x, ids):
        return hpmoe.dispatch(x, ids, num_local_experts=local, expert_alignment=alignment)[0]
    ranks, tokens, top_k = ids.shape
    return hpmoe.trace(sent, ShapeDtypeStruct((tokens, 4), "float32"), ShapeDtypeStruct((tokens, top_k), "int32"),
                       mesh=Mesh(ranks))


@pytest.mark.parametrize("seed", range(4))
def test_rows_lie_in_groups_of_a_multiple(seed):
    rng = np.random.default_rng(seed)
    ep, local, alignment, tile = int(rng.integers(1, 4)), 3, int(rng.integers(2, 7)), int(rng.integers(1, 5))
    ids, x = ids_of(rng, ep, 6, ep * local, 2), rng.standard_normal((ep, 6, 4)).astype(np.float32)
    program = program_of(ids, local, alignment)
    given = [[x[r], ids[r]] for r in range(ep)]
    overlapped = hpmoe.overlap_comm.apply_to(tile_program(program, tile, 3))
    results = [interpret(program, given), interpret(overlapped, given, seed=seed)]
    if ep == 1:
        rows, route = hpmoe.dispatch(ms.Tensor(x[0]), ms.Tensor(ids[0]), num_local_experts=local, expert_alignment=alignment)
        results.append([[rows.asnumpy()]])
        assert not (route.tokens_per_expert % alignment).any() and route.tokens_per_expert[-1] == 0
    for rank, rows in enumerate(groups(ids, local, alignment)):
        want = np.array([x[row[1], row[2] // 2] if row else np.zeros(4) for row in rows], np.float32).reshape(-1, 4)
        for outs in results:
            np.testing.assert_array_equal(outs[rank][0], want)


def counted(x, ids):
    """A sum to which a row of zeros adds 1, and the gradients of it."""
    rows, _ = hpmoe.dispatch(x, ids, num_local_experts=2, expert_alignment=4)
    return mint.exp(rows).sum(0)


@pytest.mark.parametrize("stage", ["plain", "fused"])
def test_rows_of_zeros_are_computed_as_others(stage):
    rng = np.random.default_rng(0)
    ids, x = ids_of(rng, 2, 6, 4, 2), rng.standard_normal((2, 6, 4)).astype(np.float32)
    layer = hpmoe.spmd(stages()[stage](counted), Mesh(2))
    given = ms.Tensor(x), ms.Tensor(ids)
    want, d_x = np.zeros((2, 4)), np.zeros(x.shape)
    for rank, rows in enumerate(groups(ids, 2, 4)):
        for row in rows:
            value = np.exp(x[row[1], row[2] // 2].astype(np.float64)) if row else np.ones(4)
            want[rank] += value
            if row:
                d_x[row[1], row[2] // 2] += value
    np.testing.assert_allclose(layer(*given).asnumpy(), want, rtol=1e-5)
    np.testing.assert_allclose(ms.grad(lambda x: layer(x, given[1]).sum())(given[0]).asnumpy(), d_x, rtol=1e-5)


def test_beside_copies_of_experts():
    layer = Layer(ep=2, T=9, E=4, K=2)
    loads = np.array([[9, 1, 1, 1]] * 2)
    mine, theirs = (run(hpmoe.replicate_experts(aligned(a), loads=loads.sum(0), replicas=1), layer) for a in (4, 1))
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_rows_of_tokens_sent_once_lie_in_the_same_groups(seed):
    rng = np.random.default_rng(seed)
    ep, local, alignment, tile = int(rng.integers(2, 4)), 3, int(rng.integers(2, 7)), int(rng.integers(1, 5))
    ids, x = ids_of(rng, ep, 6, ep * local, 3), rng.standard_normal((ep, 6, 4)).astype(np.float32)
    program = program_of(ids, local, alignment)
    once = hpmoe.send_rows.apply_to(program, scheme="deduplicated")
    given = [[x[r], ids[r]] for r in range(ep)]
    want, overlapped = interpret(program, given), hpmoe.overlap_comm.apply_to(tile_program(once, tile, 3))
    for outs in (interpret(once, given), interpret(overlapped, given, seed=seed)):
        for mine, theirs in zip(outs, want, strict=True):
            np.testing.assert_array_equal(mine[0], theirs[0])


def test_empty_experts_and_ranges_cost_nothing():
    """No more rows cross between ranks, an expert without rows has no slot, and slots hold the padded groups."""
    layer = Layer(ep=2, T=8, E=4, K=1)
    args = layer.arguments()
    args[1] = np.zeros_like(args[1])  # all tokens to the first expert
    avals = [ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in args]
    moved, slots = [], []
    for alignment in (1, 8):
        flow = stages(rows=8)["queues"](aligned(alignment)).lower(*avals, mesh=Mesh(2))
        timeline = hpmoe.simulate(flow, routing=args[1])
        moved.append(timeline.moved.tolist())
        slots.append([int((s.rows > 0).sum()) for s in Layout(flow, [args[1]], None).slots[0]])
    assert moved[0] == moved[1] and slots == [[2, 0], [2, 0]]


def test_padding_is_not_looked_for_at_a_relay():
    """Relays pass on the rows of a route to ranks. Its experts' route has rows of zeros, which no relay has received."""
    layer = Layer(ep=4, T=1, E=8, K=2, node_size=2)
    given = layer.arguments()
    given[1] = np.array([[[5, 2]], [[-1, 4]], [[1, 3]], [[6, 0]]], np.int32)
    f, plain = hpmoe.send_rows(aligned(4), scheme="hierarchical+deduplicated"), stages()["plain"](aligned(1))
    want = hpmoe.spmd(plain, layer.mesh)(*tensors(given)).asnumpy()
    for stage in ("tiles", "overlap", "fused"):
        got = hpmoe.spmd(stages()[stage](f), layer.mesh)(*tensors(given)).asnumpy()
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_it_is_in_the_texts():
    avals = [ShapeDtypeStruct(a.shape[1:], str(a.dtype)) for a in Layer().arguments()]
    assert "route[num_local_experts=2 ep_size=2 expert_alignment=4" in str(hpmoe.trace(aligned(4), *avals, mesh=Mesh(2)))
    flow = hpmoe.tile_partition(aligned(4), rows=2).lower(*avals, mesh=Mesh(2))
    assert "top_k=2, groups of a multiple of 4, at most" in str(flow)


@pytest.mark.parametrize("send", [hpmoe.send_rows(scheme="deduplicated"), BOTH], ids=["deduplicated", "both"])
def test_rows_that_fill_an_expert_are_zeros(send):
    """Buffers are reused: after a call of NaN a row that the kernel does not zero makes gradients of weights NaN."""
    layer, others = Layer(ep=2, T=9, E=4, K=2), Layer(ep=2, T=9, E=4, K=2, routing="one expert")
    f, plain = (hpmoe.spmd(stages()["fused"](send(aligned(a))), Mesh(2, nodes=2)) for a in (8, 1))
    grads, of_plain = (ms.grad(lambda *a, f=g: (f(*a) ** 2).sum(), (0, 2, 3, 4)) for g in (f, plain))
    grads(*(t * np.nan if t.dtype == ms.float32 else t for t in tensors(others.arguments())))
    for mine, theirs in zip(grads(*tensors(layer.arguments())), of_plain(*tensors(layer.arguments())), strict=True):
        np.testing.assert_array_equal(mine.asnumpy(), theirs.asnumpy())
