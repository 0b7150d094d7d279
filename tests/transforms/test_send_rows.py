"""Schemes of communication: each is the transforms that it stands for, and the machine model chooses one that no other is
simulated to be a tenth faster than."""

import pytest
from helpers import Layer, assert_equals_numpy, assert_stays_moe_ffn, avals_of, fused, lowered

import hpmoe
from hpmoe import chain, deduplicate_rows, moe_ffn, relay_rows, send_rows

BY_HAND = {"direct": chain(), "rank": deduplicate_rows, "node": relay_rows,
           "rank and node": chain(deduplicate_rows, relay_rows)}
LAYER = Layer(ep=4, T=6, E=8, K=4, node_size=2)
LARGE = [((4096, 7168), "bfloat16"), ((4096, 8), "int32"), ((4096, 8), "float32"), ((8, 7168, 4096), "bfloat16"),
         ((8, 2048, 7168), "bfloat16")]


@pytest.mark.parametrize("scheme", BY_HAND)
def test_a_scheme_is_its_transforms(scheme):
    staged = send_rows(scheme=scheme), BY_HAND[scheme]
    mine, by_hand = (str(lowered(hpmoe.tile_partition(t(moe_ffn)), LAYER.arguments(), LAYER.mesh)).splitlines()[1:]
                     for t in staged)
    assert mine == by_hand
    assert_equals_numpy(fused()(send_rows(moe_ffn, scheme=scheme)), LAYER)


def test_what_the_machine_model_chooses_computes_the_same():
    slow_between = hpmoe.cpu(2).replace({"link.node_size": 2, "link.node_bytes_per_us": 1e-3})
    auto = send_rows(machine=slow_between)
    assert "relay_rows" in lowered(auto(moe_ffn), LAYER.arguments(), LAYER.mesh).provenance
    assert_stays_moe_ffn(chain(auto, fused()), LAYER, routings=["uniform"])
    assert_equals_numpy(fused()(send_rows(moe_ffn)), LAYER)


def taken(nodes, direction="forward", rate=hpmoe.ascend_a2.link.node_bytes_per_us):
    avals = [hpmoe.ShapeDtypeStruct(*a) for a in LARGE]
    sent = send_rows(moe_ffn, machine=hpmoe.ascend_a2.replace({"link.node_bytes_per_us": rate}))
    return sent.lower(*avals, mesh=hpmoe.Mesh(8 * nodes, node_size=8), direction=direction).provenance[-1]


def test_it_follows_the_links():
    """Forward over nodes the links are what is waited for; inside a node, and backward, the matmuls."""
    assert [taken(n).split("(")[0] for n in (1, 2, 4, 8)] == ["send_rows", *["relay_rows"] * 3]
    assert all(taken(n, "backward").startswith("send_rows") for n in (2, 4, 8))
    assert taken(2, rate=hpmoe.ascend_a2.link.rate(16)).startswith("send_rows")
    assert taken(2, "backward", 10_000.0).startswith("relay_rows")


def test_no_relay_passes_padding_on():
    def padded(x, ids):
        return hpmoe.combine(*hpmoe.dispatch(x, ids, num_local_experts=2, expert_alignment=4))

    avals = avals_of(LAYER.arguments()[:2])
    taken = send_rows(padded, machine=hpmoe.ascend_a2).lower(*avals, mesh=LAYER.mesh).provenance
    assert len(taken) == 1 and "relay_rows" not in taken[0]
