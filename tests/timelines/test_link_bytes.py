"""Bytes by link, counted by launches and by the simulator as rows are copied, beside what the ids say."""

import mindspore as ms
import numpy as np
import pytest
from crossings import bytes_between

import hpmoe
from hpmoe.routing.workload import balanced_ids

EP, TOKENS, HIDDEN, LOCAL, TOP_K, NODE = 4, 24, 8, 3, 4, 2
EXPERTS, ROW = EP * LOCAL, HIDDEN * 4


def drawn(weights=None):
    rng = np.random.default_rng(3)
    draws = [rng.choice(EXPERTS, TOP_K, replace=False, p=weights) for _ in range(EP * TOKENS)]
    return np.array(draws, np.int32).reshape(EP, TOKENS, TOP_K)


def skewed():
    weights = 1.0 / np.arange(1, EXPERTS + 1) ** 2
    return drawn(weights / weights.sum())


def one_expert():
    ids = np.full((EP, TOKENS, TOP_K), -1, np.int32)
    ids[..., 0] = 7
    return ids


def absent():
    ids = drawn()
    ids[np.random.default_rng(4).random(ids.shape) < 0.4] = -1
    ids[2] = -1
    return ids


ROUTINGS = {
    "random": (drawn, None), "balanced": (lambda: balanced_ids(EP, TOKENS, TOP_K, EXPERTS).astype(np.int32), None),
    "one expert": (one_expert, None), "empty ranks": (drawn, [0, TOKENS, 5, 0]), "skewed": (skewed, None),
    "absent ids": (absent, None)}


def by_link(moved):
    """Divides [EP, EP] bytes into those inside a rank, inside a node, and the others, by a loop over pairs."""
    out = [0, 0, 0]
    for a in range(EP):
        for b in range(EP):
            out[0 if a == b else 1 if a // NODE == b // NODE else 2] += int(moved[a, b])
    return tuple(out)


def expected(ids, num_tokens, dedup, backward):
    return bytes_between("deduplicated" if dedup else "direct", ids, LOCAL, NODE, ROW, num_tokens)[backward]


def arguments(ids):
    rng = np.random.default_rng(5)

    def tensor(*shape):
        return ms.Tensor(rng.standard_normal((EP, *shape)), ms.float32)

    return tensor(TOKENS, HIDDEN), ms.Tensor(ids), tensor(TOKENS, TOP_K), tensor(LOCAL, HIDDEN, 12), tensor(LOCAL, 6, HIDDEN)


def layer(dedup, target, machine):
    f = hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated") if dedup else hpmoe.moe_ffn
    f = hpmoe.assign_queues(hpmoe.overlap_comm(hpmoe.tile_partition(f, rows=8)), machine=machine)
    return hpmoe.spmd(hpmoe.fuse_persistent(f) if target else f, hpmoe.Mesh(EP))


@pytest.fixture(scope="module", params=[False, True], ids=["direct", "once to a rank"])
def scheme(request):
    return request.param, layer(request.param, True, hpmoe.cpu(2))


@pytest.mark.parametrize("name", ROUTINGS)
def test_launches_copy_the_bytes_that_the_ids_say(name, scheme):
    make, num_tokens = ROUTINGS[name]
    dedup, f = scheme
    ids, given = make(), {} if num_tokens is None else {"num_tokens": num_tokens}
    _, lines = hpmoe.measure(ms.grad(lambda *a: f(*a, **given).sum(), (0, 2, 3, 4)), *arguments(ids))
    for line, backward in zip(lines, (False, True), strict=True):
        moved = expected(ids, num_tokens, dedup, backward)
        np.testing.assert_array_equal(line.moved, moved)
        assert line.link_bytes(NODE) == by_link(moved)


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("dedup", [False, True])
def test_the_simulator_counts_the_same(name, dedup):
    make, num_tokens = ROUTINGS[name]
    ids, machine = make(), hpmoe.machines.ascend_a3.replace({"link.node_size": NODE})
    avals = [hpmoe.ShapeDtypeStruct((EP, *shape), dtype) for shape, dtype in (
        ((TOKENS, HIDDEN), "float32"), ((TOKENS, TOP_K), "int32"), ((TOKENS, TOP_K), "float32"),
        ((LOCAL, HIDDEN, 12), "float32"), ((LOCAL, 6, HIDDEN), "float32"))]
    line = hpmoe.simulate(layer(dedup, False, machine).lower(*avals), routing=ids, num_tokens=num_tokens)
    assert line.link_bytes() == by_link(expected(ids, num_tokens, dedup, backward=False))


def test_balanced_tokens_cross_nodes_like_an_all_to_all():
    _, (line,) = hpmoe.measure(layer(False, True, hpmoe.cpu(2)), *arguments(ROUTINGS["balanced"][0]()))
    links = line.link_bytes(NODE)
    assert links.in_node + links.across_nodes == 2 * EP * TOKENS * TOP_K * ROW * (EP - 1) // EP
    assert links.across_nodes == 2 * EP * TOKENS * TOP_K * ROW * (EP - NODE) // EP
