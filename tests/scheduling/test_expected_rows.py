"""expected_rows and expected_shares: how full slots are expected to be, and whose rows they hold, as schedules are
planned."""

import numpy as np
import pytest

import hpmoe
from hpmoe import ArgumentError, Mesh, ShapeDtypeStruct
from hpmoe.rewriting import expected_rows, expected_shares


def lowered(ep, tokens, experts, top_k, rows, chain=(), **options):
    local = experts // ep
    avals = [ShapeDtypeStruct((ep, *shape), dtype) for shape, dtype in (
        ((tokens, 8), "float32"), ((tokens, top_k), "int32"), ((tokens, top_k), "float32"), ((local, 8, 16), "float32"),
        ((local, 8, 8), "float32"))]
    f = hpmoe.chain(*chain, lambda f: hpmoe.tile_partition(f, rows=rows, **options))(hpmoe.moe_ffn)
    return hpmoe.spmd(f, Mesh(ep)).lower(*avals)


@pytest.mark.parametrize("ep, tokens, experts, top_k, rows", [
    (1, 64, 4, 1, 16), (2, 512, 16, 2, 128), (4, 500, 8, 2, 16), (4, 64, 64, 4, 128), (8, 4096, 64, 8, 1024),
    (2, 0, 4, 1, 8)])
def test_they_add_up_to_the_likely_rows_of_the_route(ep, tokens, experts, top_k, rows):
    flow = lowered(ep, tokens, experts, top_k, rows)
    (of_slot,), (shares,), (plan,) = expected_rows(flow), expected_shares(flow), flow.routes
    assert of_slot.shape == (plan.num_slots,) and shares.shape == (plan.num_slots, ep)
    assert of_slot.sum() == pytest.approx(plan.expected_rows) and ((of_slot >= 0) & (of_slot <= rows)).all()
    np.testing.assert_allclose(shares.sum(axis=1), of_slot > 0)
    sent = (of_slot[:, None] * shares).sum(axis=0)
    if plan.expected_rows:
        assert sent.max() <= 1.35 * sent.mean()  # each rank sends about as many


def test_balanced_rows_fill_them():
    """4 ranks of 64 tokens with 2 of 8 experts each: 128 rows a rank, 64 for each of its experts, 16 from each rank."""
    flow = lowered(4, 64, 8, 2, 16)
    (rows,), (shares,) = expected_rows(flow), expected_shares(flow)
    plan = flow.routes[0]
    assert plan.expected_rows == rows.sum()
    full = rows == 16
    assert full.sum() >= 6 and (shares[0] == [1, 0, 0, 0]).sum() >= 2


def test_a_route_to_ranks_has_its_own():
    flow = lowered(4, 64, 16, 4, 16, chain=[hpmoe.send_rows(scheme="deduplicated")])
    assert len(flow.routes) == len(expected_rows(flow)) == len(expected_shares(flow)) == 2
    for plan, rows in zip(flow.routes, expected_rows(flow), strict=True):
        assert len(rows) == plan.num_slots and rows.sum() == pytest.approx(plan.expected_rows)


def test_slots_of_rare_routings_are_likely_to_be_empty():
    plan = hpmoe.spmd(hpmoe.tile_partition(hpmoe.moe_ffn, rows=64, machine=hpmoe.machines.ascend_a3), Mesh(8))
    avals = [ShapeDtypeStruct((8, *shape), dtype) for shape, dtype in (
        ((512, 8), "float32"), ((512, 2), "int32"), ((512, 2), "float32"), ((4, 8, 16), "float32"), ((4, 8, 8), "float32"))]
    flow = plan.lower(*avals)
    (rows,) = expected_rows(flow)
    assert rows.sum() == pytest.approx(flow.routes[0].expected_rows)
    assert not flow.routes[0].is_mostly_empty or (rows == 0).mean() > 0.5


@pytest.mark.parametrize("ask", [expected_rows, expected_shares])
def test_of_a_taskflow_alone(ask):
    with pytest.raises(ArgumentError, match=f"hpmoe.rewriting.{ask.__name__}: flow is a str; it must be a Taskflow"):
        ask("flow")
    no_route = hpmoe.tile_partition(lambda x: x * 2.0).lower(ShapeDtypeStruct((4, 2), "float32"))
    assert ask(no_route) == ()
