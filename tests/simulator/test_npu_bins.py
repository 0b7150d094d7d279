"""Machines of the bins that NPUs are sold in: their cores and clocks, and nothing else of the preset changes."""


import pytest

import hpmoe
from hpmoe.machines.machine import CONSTANTS
from hpmoe.machines.npu_bins import BINS


@pytest.mark.parametrize("name", BINS)
@pytest.mark.parametrize("machine", [hpmoe.machines.ascend_a2, hpmoe.machines.ascend_a3], ids=lambda m: m.name)
def test_a_bin_differs_in_cores_clock_and_l2(machine, name):
    sold = machine.of_bin(name)
    assert sold == machine.of_bin(f"Ascend{name}") and sold.name == f"{machine.name}.{name}"
    differs = {name for name in CONSTANTS if sold[name] != machine[name]}
    assert differs <= {"num_aic", "num_aiv", "cube.flops_per_us", "l2.bytes"}
    assert sold.num_aiv == 2 * sold.num_aic


def test_cores_and_clocks_are_those_of_the_vendor():
    assert {name for name, sold in BINS.items() if sold.num_aic == 20} == {
        "910B3", "910B4", "910B4-1", "9362", "9363", "9372"}
    assert {name for name, sold in BINS.items() if sold.ghz == 1.5} == {"910B4", "910B4-1", "9362", "9363"}
    assert hpmoe.machines.ascend_a3.of_bin("9391").cube.flops_per_us == pytest.approx(2 * 16**3 * 1.85e3)


def test_a_plan_for_twenty_cores_has_twenty_blocks():
    flows = [hpmoe.assign_queues(hpmoe.overlap_comm(hpmoe.tile_partition(hpmoe.moe_ffn)), machine=m).lower(
        *(hpmoe.ShapeDtypeStruct(shape, dtype) for shape, dtype in (
            ((4096, 512), "bfloat16"), ((4096, 2), "int32"), ((4096, 2), "bfloat16"), ((4, 512, 1024), "bfloat16"),
            ((4, 512, 512), "bfloat16")))) for m in (hpmoe.machines.ascend_a2.of_bin("910B3"),
                                                     hpmoe.machines.ascend_a2.of_bin("910B1"))]
    assert [len(flow.queues) for flow in flows] == [60, 72]
