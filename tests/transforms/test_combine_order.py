"""overlap_comm(combine_order=): rows come back in their own order, independent of the dispatch order, in every runtime."""

import functools

import numpy as np
import pytest
from ascend_helpers import LayerRun
from helpers import SMALL_NPU, Layer, assert_close, avals_of, bitwise_equal, numpy_moe_ffn, run_spmd, stages

import hpmoe
from hpmoe.tile_ops.params import Leg
from hpmoe.timelines.run import other_ranks


def random_order(rank, ep_size):
    """Returns another order for each rank; no position is the rank itself on all of them."""
    return np.random.default_rng(rank).permutation(ep_size).tolist()


def backwards(rank, ep_size):
    return [(rank - i) % ep_size for i in range(ep_size)]


ORDERS = [("ratr", "sequential"), ("sequential", "ratr"), (random_order, "ratr"), ("ratr", random_order),
          (backwards, random_order), ("sequential", backwards)]
FOUR = Layer(ep=4, T=4, E=8, K=2, num_tokens=(4, 0, 3, 1))


def results(stage, signal, **orders):
    """The output and the gradients of a stage."""
    f = stages(signal=signal, **orders)[stage](hpmoe.moe_ffn)
    outs, grads = run_spmd(f, FOUR.ep, FOUR.arguments(), [FOUR.cotangent()], FOUR.num_tokens)
    return [*outs, *grads]


@pytest.fixture(scope="module")
def in_default_order():
    """The results of each stage and signal, which are near NumPy's."""
    found = {(stage, signal): results(stage, signal) for stage in ("overlap", "fused") for signal in SIGNALS}
    want, want_grads = numpy_moe_ffn(FOUR.arguments(), FOUR.cotangent(), FOUR.num_tokens)
    for arrays in found.values():
        assert_close(arrays, [want, *want_grads])
    return found


SIGNALS = ("tile", "expert", "peer")


@pytest.mark.parametrize("i, order, combine_order", [(i, *orders) for i, orders in enumerate(ORDERS)],
                         ids=lambda o: getattr(o, "__name__", str(o)))
def test_orders_change_no_bit(i, order, combine_order, in_default_order):
    """Forward and backward; a pair of orders takes one of the signals in the interpreter and another one in the kernel."""
    for stage, signal in (("overlap", SIGNALS[i % 3]), ("fused", SIGNALS[(i + 1) % 3])):
        found = results(stage, signal, order=order, combine_order=combine_order)
        assert bitwise_equal(found, in_default_order[stage, signal])


@pytest.mark.parametrize("make", [hpmoe.send_rows(scheme="deduplicated"),
                                  functools.partial(hpmoe.replicate_experts, loads=[9, 1, 1, 1, 1, 1, 1, 1], replicas=1)],
                         ids=["deduplicated", "replicate_experts"])
def test_with_other_routes(make):
    args, cotangent = FOUR.arguments(), FOUR.cotangent()
    want, want_grads = numpy_moe_ffn(args, cotangent, FOUR.num_tokens)
    f = stages(order=backwards, combine_order=random_order, num_peers=3)["fused"](make(hpmoe.moe_ffn))
    outs, grads = run_spmd(f, FOUR.ep, args, [cotangent], FOUR.num_tokens)
    assert_close([*outs, *grads], [want, *want_grads])


@pytest.mark.parametrize("order, combine_order, signal", [("ratr", "sequential", "tile"), (backwards, random_order, "peer"),
                                                          ("sequential", random_order, "expert")],
                         ids=lambda o: getattr(o, "__name__", o))
def test_on_the_emulator(order, combine_order, signal):
    layer = Layer(ep=3, T=9, H=32, I=16, E=6, K=2)
    LayerRun(layer, order=order, combine_order=combine_order, signal=signal, rows=4).assert_close_to_float64()


def lowered(direction="forward", **options):
    return stages(machine=SMALL_NPU, **options)["queues"](hpmoe.moe_ffn).lower(
        *avals_of(FOUR.arguments()), mesh=hpmoe.Mesh(4), direction=direction)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_simulator_sends_to_whom_the_order_of_the_way_names(direction):
    flow = lowered(direction, order="sequential", combine_order=backwards)
    assert flow.peer_orders.tolist() == [[[0, 1, 2, 3]] * 4, [backwards(rank, 4) for rank in range(4)]]
    line = hpmoe.simulate(flow)
    sent, legs = other_ranks(line), np.array([-1 if op.leg is None else op.leg for op in flow.ops])[flow.tasks["op"]]
    for leg, order in zip(Leg, flow.peer_orders, strict=True):
        mine = (legs[line.task] == leg) & (flow.tasks["peer"][line.task] >= 0)
        assert mine.any()
        np.testing.assert_array_equal(sent[mine], order[line.rank[mine], flow.tasks["peer"][line.task[mine]]])
    together = hpmoe.simulate(lowered(direction, order="sequential"))
    assert not np.array_equal(other_ranks(together), sent)


def test_as_before_where_it_is_not_given():
    plain, same = lowered(order="sequential"), lowered(order="sequential", combine_order="sequential")
    assert np.array_equal(same.peer_orders, plain.peer_orders)
    assert "overlap_comm(order=sequential, signal=tile)" in plain.provenance
    assert "overlap_comm(order=sequential, combine_order=sequential, signal=tile)" in same.provenance
    assert "overlap_comm(order=ratr, combine_order=<lambda>, signal=tile)" in lowered(
        combine_order=lambda rank, ep: backwards(rank, ep)).provenance
