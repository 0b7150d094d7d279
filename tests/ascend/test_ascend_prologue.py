"""Time of the Ascend kernel's prologue, by an emulator clock that counts the instructions of an AIV."""

import dataclasses

import numpy as np
import pytest
from ascend_helpers import from_seed

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct, assign_queues, overlap_comm, tile_partition, trace
from hpmoe.ir.taskflow import Dependencies
from hpmoe.kernels.ascendc.emulator.target import EMULATOR
from hpmoe.support.dtypes import numpy_dtype
from hpmoe.support.errors import LaunchError

TOKENS, TOP_K, CYCLES_PER_US = 4096, 8, 1815.0


def drops(*args):
    """About half the experts are over their capacity."""
    return hpmoe.moe_ffn(*args, capacity_factor=1.0, drop_policy="position")


def layer(num_experts, ep_size, f):
    """A layer for all of an ascend_a3's cores: narrow, for rows and events are as many as in a wide one."""
    own = num_experts // ep_size
    shapes = (TOKENS, 64), (TOKENS, TOP_K), (TOKENS, TOP_K), (own, 64, 64), (own, 32, 64)
    avals = [ShapeDtypeStruct(s, "int32" if i == 1 else "bfloat16") for i, s in enumerate(shapes)]
    tiles = overlap_comm(tile_partition(f, rows=128, cols=256))
    flow = assign_queues(tiles, machine=hpmoe.machines.ascend_a3)
    return flow.lower(*avals, mesh=Mesh(ep_size)) if ep_size > 1 else flow.lower(*avals)


def without_tasks(flow):
    queues = tuple(np.zeros(0, np.int64) for _ in flow.queues)
    return flow.replace(ops=(), queues=queues, deps=Dependencies(flow.deps.events))


def effort(*flows):
    """Returns the effort of the slowest AIV without tasks; several plans add the choice of one."""
    flow = flows[0]
    kernel = EMULATOR.compile([without_tasks(plan) for plan in flows], 100.0)
    rng, inputs = np.random.default_rng(0), []
    for _ in range(flow.ep_size):
        ids = None
        if flow.routes:
            ids = np.argsort(rng.random((TOKENS, flow.routes[0].num_experts)), 1)[:, :TOP_K].astype(np.int32)
        inputs.append([np.zeros(flow.buffers[b].shape, numpy_dtype(flow.buffers[b].dtype))
                       if flow.buffers[b].dtype != "int32" else ids for b in flow.inputs])
    try:
        kernel.run(inputs)
    except LaunchError as error:  # no task signals the events, whose targets are set all the same
        assert "No task signals it" in str(error)
    return kernel.state.counts.busiest


def show(name, busiest, capsys):
    parts = {"words of the scalar unit": 9 * busiest.scalar_words, "lines of its cache": 360 * busiest.cached_lines,
             "vector instructions": 20 * busiest.vector_instructions + busiest.vector_steps}
    with capsys.disabled():
        print(f"\n{name}: {busiest.cycles / CYCLES_PER_US:.1f} us, simulated;", ", ".join(
            f"{part} {cycles / CYCLES_PER_US:.1f}" for part, cycles in parts.items()),
              f"us; the rest is {busiest.waits_for_copies} waits for copies, and meetings")


@pytest.mark.parametrize("num_experts, ep_size, f, most_us", [
    (64, 1, hpmoe.moe_ffn, 10), pytest.param(64, 1, drops, 25, marks=pytest.mark.slow),
    pytest.param(256, 8, hpmoe.moe_ffn, 15, marks=pytest.mark.slow),
    pytest.param(256, 8, drops, 25, marks=pytest.mark.slow)])
def test_a_route_takes_less_than_its_goal(num_experts, ep_size, f, most_us, capsys, monkeypatch):
    """Beyond what cores take without a route, which meet and read their arguments all the same."""
    from_seed(monkeypatch, 0)  # whoever looks late in the order sees what has arrived since
    flow = layer(num_experts, ep_size, f)
    with_route = effort(flow)
    program = trace(lambda x: [x * 2.0], ShapeDtypeStruct((TOKENS, 64), "bfloat16"))
    tiles = overlap_comm.apply_to(tile_partition.apply_to(program, rows=128, cols=256))
    without = effort(assign_queues.apply_to(tiles, machine=hpmoe.machines.ascend_a3))
    show(f"{num_experts} experts on {ep_size} ranks, {f.__name__}", with_route, capsys)
    show("without a route", without, capsys)
    assert 0 < (with_route.cycles - without.cycles) / CYCLES_PER_US < most_us


@pytest.mark.slow
def test_a_choice_among_plans_takes_a_few_microseconds(capsys, monkeypatch):
    """The kernel chooses the middle plan of three, by the rows of the fullest rank."""
    from_seed(monkeypatch, 0)
    flow = layer(256, 8, hpmoe.moe_ffn)
    received = TOKENS * TOP_K
    plans = [flow.replace(routes=(dataclasses.replace(flow.routes[0], expected_rows=rows),))
             for rows in (received // 2, received, 2 * received)]
    alone, chosen = effort(flow), effort(*plans)
    show("256 experts on 8 ranks, one of three plans", chosen, capsys)
    assert 0 < (chosen.cycles - alone.cycles) / CYCLES_PER_US < 5
