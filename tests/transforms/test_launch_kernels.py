"""launch_kernels: the unfused program as a taskflow computes the same, one operation at a time."""

import numpy as np
import pytest
from helpers import Layer, tensors
from simulated_layers import NPU, plan

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct
from hpmoe.routing.workload import balanced_ids, imbalanced_ids
from hpmoe.timelines.run import RATES
from hpmoe.transforms.launch_kernels import launch_kernels


def launched(direction="forward", ep=2, machine=NPU, policy="round_robin", **sizes):
    flow = plan(ep=ep, direction=direction, machine=machine, make=launch_kernels, **sizes)
    return hpmoe.assign_queues.apply_to(flow, machine=machine, policy=policy)


def test_it_computes_what_the_function_does():
    args = tensors(Layer(ep=2, T=9).arguments())
    tiled = hpmoe.tile_partition(hpmoe.moe_ffn, rows=4, cols=8)
    wanted = hpmoe.spmd(tiled, Mesh(2)).interpret(*args).asnumpy()
    staged = launch_kernels(tiled)
    np.testing.assert_array_equal(hpmoe.spmd(staged, Mesh(2)).interpret(*args, seed=3).asnumpy(), wanted)
    fused = hpmoe.fuse_persistent(hpmoe.assign_queues(staged, machine=hpmoe.cpu(1)))
    np.testing.assert_allclose(hpmoe.spmd(fused, Mesh(2))(*args).asnumpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("direction", ("forward", "backward"))
@pytest.mark.parametrize("policy", ("round_robin", "critical_path", "stage_order"))
def test_operations_of_a_rank_run_one_after_another(direction, policy):
    flow = launched(direction, policy=policy)
    line = hpmoe.simulate(flow, routing=imbalanced_ids(2, 256, 2, 8, imbalance=1.6, seed=1))
    op = flow.tasks["op"][line.task]
    for rank in range(2):
        spans = [(line.begin[m].min(), line.end[m].max()) for i in range(len(flow.ops))
                 if (m := (op == i) & (line.rank == rank)).any()]
        assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))


def test_a_kernel_waits_for_rows_of_every_rank():
    """The sort after a collective begins when the slowest rank has sent its rows."""
    flow = launched()
    ids = balanced_ids(2, 256, 2, 8)
    line = hpmoe.simulate(flow, routing=ids, num_tokens=(256, 0))
    labels = [op.label if op.opcode == "LAUNCH" else op.opcode for op in flow.ops]
    op = flow.tasks["op"][line.task]
    sent = line.end[(op == labels.index("ALL_TO_ALL")) & (line.rank == 0)].max()
    assert (line.begin[(op == labels.index("sort"))] >= sent).all()


def test_what_launches_and_collectives_cost():
    flow = launched(T=2048, H=1024)
    span = hpmoe.simulate(flow).span
    launches = sum(op.opcode == "LAUNCH" for op in flow.ops)
    slow = hpmoe.simulate(flow, NPU.replace({"host.launch_us": NPU.host.launch_us + 10})).span
    assert slow - span == pytest.approx(10 * launches, rel=0.02)
    slow = hpmoe.simulate(flow, NPU.replace({"host.collective_us": NPU.host.collective_us + 10})).span
    assert slow - span == pytest.approx(20, rel=0.1)
    slow = hpmoe.simulate(flow, NPU.replace({"host.sync_us": NPU.host.sync_us + 10})).span
    assert slow - span == pytest.approx(10, rel=0.1)


def test_a_collective_uses_the_whole_link():
    flow = launched(T=2048, H=1024)
    narrow, wide = (hpmoe.simulate(flow, NPU.replace({"link.worker_bytes_per_us": cap})) for cap in (10.0, 1e9))
    assert narrow.span == pytest.approx(wide.span)
    half = hpmoe.simulate(flow, NPU.replace({"link.bytes_per_us": NPU.link.bytes_per_us / 100})).span
    rows = 2048 * 2 / 2 * 1024 * 2.0  # half of the entries leave, there and back
    assert half - narrow.span == pytest.approx(2 * rows * 99 / NPU.link.bytes_per_us, rel=0.2)


def test_rows_sent_once_need_no_layout_by_expert():
    """Copying them to their experts, and adding them up, are kernels of their own; fewer rows cross the links."""
    layer = Layer(ep=2, T=9, E=6, K=3)
    args = tensors(layer.arguments())
    staged = launch_kernels(hpmoe.tile_partition(hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated"), rows=4, cols=8))
    wanted = hpmoe.spmd(hpmoe.moe_ffn, Mesh(2))(*args).asnumpy()
    np.testing.assert_allclose(hpmoe.spmd(staged, Mesh(2)).interpret(*args).asnumpy(), wanted, rtol=1e-5, atol=1e-5)
    ids, sent = args[1].asnumpy(), {}
    for f in (hpmoe.moe_ffn, hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated")):
        tiled = launch_kernels(hpmoe.tile_partition(f, rows=4, cols=8))
        flow = hpmoe.assign_queues(tiled,
                                   machine=NPU).lower(*(ShapeDtypeStruct(a.shape[1:], str(a.dtype).lower()) for a in args),
                                                             mesh=Mesh(2))
        labels = [op.label for op in flow.ops if op.opcode == "LAUNCH"]
        line = hpmoe.simulate(flow, routing=ids)
        sent["fan_out" in labels] = line.traffic[:, RATES.index("egress"), 0].sum()
        assert labels.count("fan_out") == labels.count("fan_in") == 1 - ("unsort" in labels)
    rows = [sum(len({e // 3 for e in token} - {rank}) for rank in range(2) for token in ids[rank]),
            sum((ids[rank] // 3 != rank).sum() for rank in range(2))]
    row = 2 * layer.H * 4.0  # there and back
    assert sent[False] == rows[1] * row and sent[True] == rows[0] * row + rows[1] * 4.0  # weights go to each expert


@pytest.mark.parametrize("signal", ("expert", "tile"))
def test_expert_barrier_is_legal_and_uses_half_of_the_aivs(signal):
    for direction in ("forward", "backward"):
        flow = plan(direction=direction, make=lambda tiled: hpmoe.overlap_comm(tiled, signal=signal))
        machine = NPU.replace(num_aiv=8)
        again = hpmoe.assign_queues.apply_to(flow, machine=machine, policy="expert_barrier")
        assert [len(q) for q in again.queues[machine.num_aic + 5:]] == [0] * 3
        assert all(len(q) for q in again.queues[:machine.num_aic + 4])
        for ids in (balanced_ids(2, 256, 2, 8), imbalanced_ids(2, 256, 2, 8, imbalance=2.0, seed=3)):
            assert hpmoe.simulate(again, routing=ids).span > 0
