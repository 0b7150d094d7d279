"""tile_partition: the tile shape that it chooses by the machine, and what of it is given."""

import numpy as np
import pytest
from modelled_layers import layer
from simulated_layers import NPU

import hpmoe
from hpmoe.costs import tile_choice
from hpmoe.costs.tile_choice import choose_tile

ODD_SIZES = {"tokens": 513, "hidden": 777, "intermediate": 333, "top_k": 3, "experts": 9, "imbalance": 1.5}


@pytest.mark.parametrize("direction", ("forward", "backward"))
def test_the_tile_is_chosen_by_the_machine_and_the_sizes(direction):
    big, small = (layer(direction, tokens=t).tiles for t in (4096, 64))
    assert big.provenance[-1] == layer(direction).tiles.provenance[-1]  # the same again
    assert big.machine is hpmoe.ascend_a3 and hpmoe.assign_queues.apply_to(big).machine is hpmoe.ascend_a3
    assert big.provenance[-1] != small.provenance[-1]


@pytest.mark.parametrize("constant, factor, worst, node_size, sizes", [
    ("worker_l2_bytes_per_us", 2, 1.04, 384, ODD_SIZES),
    ("accumulator_bytes", 10, 1.0, 384, ODD_SIZES),
    ("num_aiv", 4, 1.12, 1, {"tokens": 256, "hidden": 5120, "intermediate": 1536, "top_k": 3, "experts": 3}),
])
def test_a_better_machine_is_planned_no_worse(constant, factor, worst, node_size, sizes):
    machine, spans = hpmoe.ascend_a3.replace(node_size=node_size), []
    for on in (machine, machine.replace(**{constant: factor * getattr(machine, constant)})):
        whole = layer("backward", ep=3, machine=on, **sizes)
        spans.append(whole.fused().span)
    assert spans[1] <= worst * spans[0]


def test_where_links_take_longest_the_tile_is_the_default_one():
    sizes = {"ep": 8, "tokens": 2048, "hidden": 2048, "intermediate": 768, "experts": 32, "imbalance": 2.0}
    links = [getattr(hpmoe.ascend_a3, name) for name in ("link_bytes_per_us", "far_link_bytes_per_us")]
    tiles = [layer("forward", machine=hpmoe.ascend_a3.replace(link_bytes_per_us=times * links[0],
                                                              far_link_bytes_per_us=times * links[1]), **sizes).tiles
             for times in (1, 10)]
    assert [flow.provenance[-1] for flow in tiles] == [
        "tile_partition(rows=128, cols=256)", "tile_partition(rows=128, cols=512)"]


def test_rows_of_an_expert_are_not_split_for_little(monkeypatch):
    """With 96 rows each, of which half a tile of 64 rows would wait for the weight that the others have asked for."""
    sizes = {"ep": 16, "tokens": 64, "hidden": 5120, "intermediate": 1536, "experts": 64, "top_k": 6}
    whole, split = layer(**sizes), layer(**sizes, tile_rows=64, tile_cols=128)
    assert whole.tiles.provenance[-1] == "tile_partition(rows=128, cols=256)"
    assert whole.fused().span < 0.95 * split.fused().span
    monkeypatch.setattr(tile_choice, "SPLIT", 1.0)
    assert layer(**sizes).tiles.provenance[-1] == split.tiles.provenance[-1]


def test_what_is_given_is_kept():
    program = hpmoe.trace(hpmoe.swiglu, hpmoe.Aval((300, 64), "float32"))
    assert choose_tile(program, hpmoe.ascend_a3, 24, None)[0] == 24 and choose_tile(program, NPU, None, 40)[1] == 40
    flow = hpmoe.tile_partition(hpmoe.swiglu, rows="auto", cols=40).lower(hpmoe.Aval((300, 64), "float32"))
    assert "cols=40" in flow.provenance[-1] and flow.machine is None


def test_a_choice_changes_no_number():
    x = np.random.default_rng(0).standard_normal((37, 24)).astype(np.float32)
    from helpers import tensors
    for machine in (None, hpmoe.ascend_a3.replace(tile_rows=8, tile_cols=4)):
        staged = hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(
            hpmoe.swiglu, rows="auto", cols="auto", machine=machine)))
        assert (staged(*tensors([x])).asnumpy() == hpmoe.fuse_persistent(hpmoe.assign_queues(hpmoe.tile_partition(
            hpmoe.swiglu)))(*tensors([x])).asnumpy()).all()
