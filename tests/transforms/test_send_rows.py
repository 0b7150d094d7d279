"""Schemes of communication: each is the transforms that it stands for, and the machine model chooses one that no other is
simulated to be a tenth faster than."""

import pytest
from helpers import Layer, assert_equals_numpy, assert_stays_moe_ffn, avals_of, fused, lowered

import hpmoe
from hpmoe import chain, moe_ffn, send_rows
from hpmoe.transforms.send_deduplicated import deduplicated
from hpmoe.transforms.send_hierarchical import hierarchical

REWRITES = {"direct": (), "deduplicated": (deduplicated,), "hierarchical": (hierarchical,),
            "hierarchical+deduplicated": (deduplicated, hierarchical)}
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
