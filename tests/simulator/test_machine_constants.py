"""Every constant of a Machine moves simulated times as physics says: the right way, by no more than its share, or not at
all."""

import dataclasses
import functools

import pytest
from simulated_layers import plan

import hpmoe
from hpmoe.costs.bound import rank_bounds
from hpmoe.machines import hardware
from hpmoe.machines.machine import CONSTANTS, Body
from hpmoe.routing.workload import balanced_ids, imbalanced_ids

NPU = hpmoe.machines.ascend_a3.replace({"sync.repoll_us": 0.5, "l2.bytes": 1e6, "l2.bytes_per_us": 8e5,
                                        "memory.bytes_per_us": 1.5e5},
                              num_aic=3, num_aiv=5)
HOST = hpmoe.cpu(ep_size=2).replace({
    "host.cores": 2.0, "l2.bytes": 2e6, "cube.fill_us": 0.3, "link.bytes_per_us": 1e5, "link.worker_bytes_per_us": 2e4},
    num_aic=4, bodies=(
    Body("GMM", "float32", 1.0, 6, 10, 20), Body("SWIGLU", "float32", 0.5, 1, 20)))
RUNS = {  # direction, dtype, machine
    "node": ("forward", "bfloat16", NPU), "nodes": ("backward", "float32", NPU.replace({"link.node_size": 1})),
    "far": ("forward", "bfloat16", NPU.replace({"link.near_size": 1, "link.far_bytes_per_us": 1.6e4})),
    "unfused": ("forward", "bfloat16", NPU), "host": ("forward", "float32", HOST)}
IDS = imbalanced_ids(2, 96, 2, 8, imbalance=1.3, seed=0)
NPUS, FUSED = {"node", "nodes", "far", "unfused"}, {"node", "nodes", "far", "host"}
# In which runs each constant counts. In the others it must not move anything: no float32 products, none of another node, no
# launches; collectives are wide, measured bodies have a rate of their own, threads of a host wait for nothing themselves.
COUNTS = {
    **dict.fromkeys(("cube.flops_per_us", "vector.bytes_per_us", "vector.copy_bytes_per_us", "memory.bytes_per_us",
                     "memory.worker_bytes_per_us", "l2.bytes_per_us", "l2.worker_bytes_per_us", "cube.granule",
                     "cube.fill_us", "l2.bytes", "memory.write_cost",
                     "sync.task_us", "sync.wait_us", "sync.poll_us", "sync.signal_us"),
                    set(RUNS)),
    **dict.fromkeys(("cube.efficiency", "cube.accumulator_bytes", "sync.repoll_us"), NPUS),
    "cube.float32_ratio": {"nodes"}, "link.node_size": NPUS,
    "link.bytes_per_us": {"node", "unfused", "host"}, "link.near_size": {"far"}, "link.far_bytes_per_us": {"far"},
    "link.worker_bytes_per_us": FUSED, "link.node_bytes_per_us": {"nodes"},
    "sync.remote_us": {"node", "far", "unfused", "host"}, "sync.node_remote_us": {"nodes"}, "host.cores": {"host"},
    **dict.fromkeys(("host.launch_us", "host.sync_us", "host.collective_us"), {"unfused"}),
    "sync.pass_us": {"node", "nodes", "far"},
    **dict.fromkeys(("host.prologue_us", "host.expert_us", "host.sort_us", "host.entry_us"), set()),  # before the first task
    # of test_operator_formulas.py
    **dict.fromkeys((f"operators.{f.name}" for f in dataclasses.fields(hardware.Operators)), set()),
    "cube.int8_ratio": set(),  # test_quantize_weights.py
}
PLANNED = {"num_aic", "num_aiv", "tile_rows", "tile_cols"}  # of transforms; a flow has what they were
RATES = {n for n in COUNTS if n.endswith("_per_us")} | {"cube.efficiency", "cube.float32_ratio"}
NOISE = 0.04  # being quicker elsewhere may let two meet
WORSE = 1e3


def is_cost(name):
    return name in ("cube.granule", "memory.write_cost") or hardware.is_cost(name)


def changed(machine, name, better):
    """With a constant that much better; node_size as near to that as there is."""
    value = machine[name]
    new = value / better if is_cost(name) else value * better
    new = max(1, round(new)) if isinstance(value, int) else min(new, 1.0) if name == "cube.efficiency" else new
    new = max(new, 1.0) if name == "memory.write_cost" else new
    return machine.replace({name: new})


@pytest.fixture(scope="module")
def flows():
    def make(tiled, machine, kind):
        staged = hpmoe.launch_kernels(tiled) if kind == "unfused" else hpmoe.overlap_comm(tiled)
        return hpmoe.assign_queues(staged, machine=machine, policy="round_robin" if kind == "unfused" else "critical_path")
    return {kind: plan(T=96, direction=direction, dtype=dtype, machine=machine,
                       make=functools.partial(make, machine=machine, kind=kind))
            for kind, (direction, dtype, machine) in RUNS.items()}


@pytest.fixture(scope="module")
def times(flows):
    def run(kind, machine):
        span, bound = hpmoe.simulate(flows[kind], machine, routing=IDS).span, 0.0
        if kind in FUSED:
            bound = max(b.total for b in rank_bounds(flows[kind], machine, IDS))
        assert span * (1 + 1e-9) + 0.002 >= bound
        return span, bound
    return functools.cache(run)


def test_every_constant_is_looked_at():
    assert set(COUNTS) | PLANNED == set(CONSTANTS) and not set(COUNTS) & PLANNED


@pytest.mark.parametrize("name", COUNTS)
def test_a_constant_moves_what_it_is_of(times, name):
    for kind in RUNS:
        assert_moves(times, kind, name)


def assert_moves(times, kind, name):
    """Twice as good is at most twice as fast, half as good at most half; a thousandth is felt exactly where the constant
    counts."""
    machine = RUNS[kind][2]
    span, bound = times(kind, machine)
    (fast, low), (slow, high), (least, highest) = (times(kind, changed(machine, name, x)) for x in (2, 1 / 2, 1 / WORSE))
    if kind not in COUNTS[name]:
        assert fast == slow == least == span and low == high == highest == bound, kind
        return
    assert 1 / 2 - NOISE <= fast / span <= 1 + NOISE, kind
    assert 1 - NOISE <= slow / span <= 2 + NOISE, kind
    assert least > span or (name.endswith("_size") and fast < span), kind
    if name in RATES and kind in FUSED:  # it is what limits then, and the bound says so
        assert least <= 4 * highest, kind
    assert low <= bound * (1 + 1e-9) and bound <= high * (1 + 1e-9) and high <= highest * (1 + 1e-9), kind


def test_a_plan_for_a_machine_without_l2():
    """Rows that come back in parts of columns, where L2 holds not even those of one slot."""
    flow = plan(ep=4, T=512, H=2048, machine=hpmoe.machines.ascend_a3.replace({"l2.bytes": 0}), max_rows=1024,
                put_cols="auto")
    ids = balanced_ids(4, 512, 2, 8)
    assert hpmoe.simulate(flow, routing=ids).span >= max(b.total for b in rank_bounds(flow, flow.machine, ids))
