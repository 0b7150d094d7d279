"""A kind of route and a transform that the library does not know: the same numbers at every stage, on ranks as threads and
as processes, on the emulator, and in simulations; every order by brute force; signals left out are refused."""

import dataclasses
import re
from pathlib import Path

import mindspore as ms
import numpy as np
import pytest
from ascend_helpers import LayerRun
from extension.ring.ring_rows import Ring, ring_rows
from helpers import (
    SMALL_NPU,
    Layer,
    assert_equals_numpy,
    assert_every_access_ordered,
    at_stages,
    lowered,
    run_spmd,
    stages,
)
from mutants import with_deps
from ranks.forked import start_forked

import hpmoe
from hpmoe import VerifyError, moe_ffn
from hpmoe.verification.well_formed import check_sizes

LAYERS = {
    "two ranks": Layer(ep=2, T=5, E=4, K=2),
    "uneven": Layer(ep=3, T=5, E=6, K=3, num_tokens=(5, 0, 3)),
    "all on one rank": Layer(ep=4, T=5, E=12, K=3, routing="one rank"),
    "five ranks": Layer(ep=5, T=4, E=10, K=4),
    "no tokens": Layer(ep=3, T=0, E=6, K=2),
}


@pytest.mark.parametrize("name, stage", at_stages(LAYERS))
def test_every_stage(name, stage):
    """Outputs and gradients."""
    assert_equals_numpy(stages()[stage](ring_rows(moe_ffn)), LAYERS[name])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_access_is_ordered(direction):
    for seed, name in enumerate(("two ranks", "uneven")):
        args = LAYERS[name].arguments(seed)
        flow = lowered(stages(rows=2, machine=SMALL_NPU)["queues"](ring_rows(moe_ffn)), args, LAYERS[name].mesh, direction)
        assert_every_access_ordered(flow, args)


def test_received_rows_are_those_of_direct_dispatch():
    layer = Layer(ep=4, T=9, E=8, K=3, num_tokens=(9, 4, 0, 7))
    args, cotangent = layer.arguments(), layer.cotangent()
    (_, direct), (_, round_the_ring) = (run_spmd(stages()["fused"](f), layer.mesh, args, [cotangent], layer.num_tokens)
                                        for f in (moe_ffn, ring_rows(moe_ffn)))
    for a, b in zip(direct[1:], round_the_ring[1:], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_signals_left_out_are_refused(direction):
    layer = Layer(ep=3, T=2, H=2, I=1, E=3, K=2)
    flow = lowered(stages(rows=2, cols=4)["queues"](ring_rows(moe_ffn)), layer.arguments(), layer.mesh, direction)
    hpmoe.verify(flow)
    for i in range(len(flow.deps.signals)):
        with pytest.raises(VerifyError):
            hpmoe.verify(with_deps(flow, signals=np.delete(flow.deps.signals, i)))


def test_ways_that_are_no_tree_are_refused():
    layer = LAYERS["five ranks"]
    flow = lowered(stages()["tiles"](ring_rows(moe_ffn)), layer.arguments(), layer.mesh)
    routes = list(flow.routes)
    over = routes[2].over
    assert routes[over].kind == Ring(routes[0].kind, hops=1)
    routes[over] = dataclasses.replace(routes[over], kind=Ring(routes[0].kind, hops=3), max_rows=16)
    with pytest.raises(VerifyError, match=r"routes\[2\] passes over routes\[1\]; rows of rank 0 for ranks 2 and 3 stop at"):
        check_sizes(flow.replace(routes=tuple(routes)))


def test_rows_go_to_the_next_rank_only():
    layer = Layer(ep=4, T=64, H=16, I=16, E=8, K=2)
    flow = lowered(stages(machine=hpmoe.machines.ascend_a3)["queues"](ring_rows(moe_ffn)), layer.arguments(), layer.mesh)
    timeline = hpmoe.simulate(flow, routing=layer.arguments()[1])
    moved = np.asarray(timeline.moved)
    assert moved.any()
    ranks = np.arange(4)
    is_near = np.isin((ranks - ranks[:, None]) % 4, (0, 1, 3))  # rows go on, and back
    assert not moved[~is_near].any(), moved


def test_emulator():
    layer = Layer(ep=3, T=9, H=32, I=16, E=6, K=3, num_tokens=(9, 0, 5))
    LayerRun(layer, ms.float32, ring_rows(moe_ffn), rows=4, blocks=2).assert_close_to_float64()


@pytest.mark.slow
def test_processes_compute_the_bits_of_virtual_ranks(monkeypatch):
    folder = Path(__file__).parent
    monkeypatch.setenv("PYTHONPATH", f"{folder.parents[1] / 'support'}:{folder}")
    status, out, err = start_forked([folder / "ring_script.py"], 4)
    assert status == 0 and len(re.findall(r"rank \d has the bits of virtual ranks", out)) == 4, err
