"""simulate: conservation, bounds, determinism, and the same waits and signals as a launch."""

import sys

import numpy as np
import pytest
from helpers import Layer, tensors
from simulated_layers import NPU, plan

import hpmoe
from hpmoe import ArgumentError, LaunchError, Mesh, ShapeDtypeStruct
from hpmoe.kernels.simulate import outline
from hpmoe.routing.workload import imbalanced_ids
from hpmoe.timelines.run import RATES


def test_links_carry_exactly_the_rows_that_leave():
    flow, ids = plan(ep=2, H=256), imbalanced_ids(2, 256, 2, 8, imbalance=1.5, seed=1)
    line = hpmoe.simulate(flow, routing=ids)
    bytes_of = dict(zip(RATES, np.moveaxis(line.traffic[:, :, 0], 1, 0), strict=True))
    leaving = np.array([(ids[r] // 4 != r).sum() for r in range(2)]) * 256 * 2.0
    np.testing.assert_allclose(bytes_of["egress"], leaving + leaving[::-1])  # there, and the results back
    np.testing.assert_allclose(bytes_of["ingress"], leaving + leaving[::-1])
    assert not bytes_of["node_egress"].any()
    apart = hpmoe.simulate(flow, NPU.replace({"link.node_size": 1}), routing=ids)
    np.testing.assert_allclose(apart.traffic[:, 4, 0], leaving + leaving[::-1])
    assert apart.span > line.span


def test_no_task_begins_before_what_it_reads_is_there():
    """The order of a simulated run is one in which the launch could have run: all producers of an awaited event have
    ended."""
    tiled = hpmoe.tile_partition(lambda x, up, down: hpmoe.swiglu(x @ up) @ down, rows=128, cols=256)
    staged = hpmoe.assign_queues(tiled, machine=NPU)
    flow = staged.lower(ShapeDtypeStruct((1000, 300), "float16"), ShapeDtypeStruct((300, 600), "float16"),
                        ShapeDtypeStruct((300, 300), "float16"))
    line = hpmoe.simulate(flow)
    begin, end = np.empty(flow.num_tasks), np.empty(flow.num_tasks)
    begin[line.task], end[line.task] = line.begin, line.end
    producers = {}
    for s in flow.deps.signals[flow.deps.signals["kind"] == 0]:
        producers.setdefault(int(s["event"]), []).append(int(s["task"]))
    checked = 0
    for w in flow.deps.waits[flow.deps.waits["kind"] == 0]:
        for p in producers.get(int(w["event"]), ()):
            assert end[p] <= begin[w["task"]] + 0.002
            checked += 1
    assert checked > 10


def test_a_number_is_an_imbalance():
    flow = plan()
    drawn = hpmoe.simulate(flow, routing=1.6, seed=3)
    given = imbalanced_ids(2, 256, 2, 8, imbalance=1.6, seed=3)
    np.testing.assert_array_equal(drawn.end, hpmoe.simulate(flow, routing=given).end)
    assert drawn.span > hpmoe.simulate(flow).span


@pytest.mark.parametrize("ep, local, top_k", [(3, 1, 3), (5, 1, 4), (2, 3, 5), (4, 2, 3), (8, 8, 8)])
def test_an_imbalanced_routing_has_distinct_experts(ep, local, top_k):
    most = min(ep, ep * local / top_k)
    for imbalance in sorted({1.0, (1 + most) / 2, most}):
        ids = imbalanced_ids(ep, 301, top_k, ep * local, imbalance, seed=4)
        assert (np.diff(np.sort(ids, axis=-1), axis=-1) > 0).all() and ids.min() >= 0 and ids.max() < ep * local
        received = np.bincount(ids.reshape(-1) // local, minlength=ep)
        hot = int(np.random.default_rng(4).integers(ep))
        assert received[hot] / received.mean() == pytest.approx(imbalance, abs=0.01)


def test_what_is_dropped_by_weight_is_what_a_launch_drops():
    """Over a capacity of one entry the choice of one token stays; the tile of tokens it is in ends later than the others."""
    def layer(x, ids, w, up, down):
        return hpmoe.moe_ffn(x, ids, w, up, down, capacity_factor=1 / 256, drop_policy="probs")

    avals = [ShapeDtypeStruct(s, d) for s, d in (((256, 512), "float32"), ((256, 1), "int32"), ((256, 1), "float32"),
                                     ((1, 512, 256), "float32"), ((1, 128, 512), "float32"))]
    staged = hpmoe.assign_queues(hpmoe.overlap_comm(hpmoe.tile_partition(layer, rows=128)), machine=NPU)
    flow, ids = staged.lower(*avals), [np.zeros((256, 1), np.int32)]
    ops = [op.opcode for op in flow.ops]
    fast = NPU.replace({"memory.write_cost": 1.0, "memory.bytes_per_us": 1e9})
    for token in (3, 200):
        weights = np.zeros((256, 1), np.float32)
        weights[token] = 1
        line = hpmoe.simulate(flow, fast, routing=ids, topk_weights=[weights])
        mine = flow.tasks["op"][line.task] == ops.index("REDUCE")
        assert flow.tasks["row"][line.task[mine]][np.argmax(line.end[mine])] == token // 128
    hpmoe.simulate(flow)
    with pytest.raises(LaunchError, match=r"hpmoe.simulate: layer: topk_weights\[2, 0\] of rank 0 is NaN"):
        hpmoe.simulate(flow, routing=ids, topk_weights=[np.where(np.arange(256)[:, None] == 2, np.nan, 0.0)])


def test_the_flow_of_a_call_simulates_too():
    args = tensors(Layer(ep=2, T=9).arguments())
    staged = hpmoe.assign_queues(hpmoe.tile_partition(hpmoe.moe_ffn, rows=2, cols=3), machine=NPU)
    line = hpmoe.simulate(hpmoe.spmd(staged, Mesh(2)).lower(*args), routing=args[1].asnumpy(), num_tokens=(9, 4))
    assert line.span > 0 and len(line.text().splitlines()) > 10


@pytest.mark.parametrize("machine", (NPU, hpmoe.cpu(3, ep_size=2)), ids=("npu", "host"))
@pytest.mark.parametrize("direction", ("forward", "backward"))
def test_an_outline_is_that_of_the_whole_run(machine, direction):
    flow = plan(direction=direction, machine=machine)
    for routing in (None, 1.5):
        line, found = hpmoe.simulate(flow, routing=routing), outline(flow, routing=routing)
        assert found.span == line.span
        np.testing.assert_allclose(found.utilisation, line.utilisation(), rtol=1e-9)
        np.testing.assert_array_equal(found.traffic, line.traffic)


def test_more_tasks_than_memory_is_meant_for_are_refused(monkeypatch):
    flow = plan()
    monkeypatch.setattr(sys.modules["hpmoe.kernels.simulate"], "MOST_TASKS", 2 * flow.num_tasks)
    hpmoe.simulate(flow)
    monkeypatch.setattr(sys.modules["hpmoe.kernels.simulate"], "MOST_TASKS", 2 * flow.num_tasks - 1)
    with pytest.raises(ArgumentError, match=rf"hpmoe.simulate: flow is of {2 * flow.num_tasks} tasks on 2 ranks, which take "
                                            rf"0.0 GiB; it must be of at most {2 * flow.num_tasks - 1} on all ranks"):
        hpmoe.simulate(flow)
    with pytest.raises(ArgumentError, match="hpmoe.simulate: flow is of "):
        outline(flow)
