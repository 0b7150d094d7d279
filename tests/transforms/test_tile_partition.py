"""tile_partition: the tile shape that it chooses by the machine, and what of it is given."""

import numpy as np
import pytest
from simulated_layers import NPU, layer

import hpmoe
from hpmoe.costs.tile_choice import tile_times


@pytest.mark.parametrize("direction", ("forward", "backward"))
def test_the_tile_is_chosen_by_the_machine_and_the_sizes(direction):
    big, small = (layer(direction, tokens=t).tiles for t in (4096, 64))
    assert big.provenance[-1] == layer(direction).tiles.provenance[-1]  # the same again
    assert big.machine is hpmoe.machines.ascend_a3 and hpmoe.assign_queues.apply_to(big).machine is hpmoe.machines.ascend_a3
    assert big.provenance[-1] != small.provenance[-1]


def test_rows_of_an_expert_are_not_split():
    """With 96 rows each, of which half a tile of 64 rows would wait for the weight that the others have asked for."""
    sizes = {"ep": 16, "tokens": 64, "hidden": 5120, "intermediate": 1536, "experts": 64, "top_k": 6}
    whole, split = layer(**sizes), layer(**sizes, tile_rows=64, tile_cols=128)
    assert whole.tiles.provenance[-1] == "tile_partition(rows=128, cols=256)"
    assert whole.fused().span < split.fused().span


def test_what_is_given_is_kept():
    program = hpmoe.trace(hpmoe.swiglu, hpmoe.ShapeDtypeStruct((300, 64), "float32"))
    assert {rows for rows, _ in tile_times(program, hpmoe.machines.ascend_a3, 24, None)} == {24}
    assert {cols for _, cols in tile_times(program, NPU, None, 40)} == {40}
    flow = hpmoe.tile_partition(hpmoe.swiglu, rows="auto", cols=40).lower(hpmoe.ShapeDtypeStruct((300, 64), "float32"))
    assert "cols=40" in flow.provenance[-1] and flow.machine is None


def test_a_choice_changes_no_number():
    x = np.random.default_rng(0).standard_normal((37, 24)).astype(np.float32)
    from helpers import tensors
    for machine in (None, hpmoe.machines.ascend_a3.replace(tile_rows=8, tile_cols=4)):
        staged = hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(
            hpmoe.swiglu, rows="auto", cols="auto", machine=machine)))
        assert (staged(*tensors([x])).asnumpy() == hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(
            hpmoe.swiglu)))(*tensors([x])).asnumpy()).all()
