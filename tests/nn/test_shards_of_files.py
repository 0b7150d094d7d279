"""Shards of experts from files: each rank of EP and TP reads its own bytes, of every layout."""

import numpy as np
import pytest
from hugging_face_states import E, H, N, make_block
from safetensors.numpy import save_file

import hpmoe
from hpmoe.nn import safetensors
from hpmoe.nn.checkpoint_folder import open_arrays
from hpmoe.nn.expert_reads import read_into
from hpmoe.nn.matching import Block, find_match
from hpmoe.nn.model_types import MODELS

SPLITS = {"weight1": "gate_up", "weight2": "rows", "bias1": "gate_up", "bias2": "first"}


@pytest.mark.parametrize("model_type,fused", [("qwen3_moe", False), ("qwen3_moe", True), ("mixtral", False),
                                              ("gpt_oss", False)])
def test_a_shard_of_two(model_type, fused, tmp_path, monkeypatch):
    """Beside `shard_experts` of all experts."""
    block, mesh = make_block(model_type, fused), hpmoe.Mesh(2, tp=2)
    save_file({name: np.ascontiguousarray(x) for name, x in block.theirs.items()}, tmp_path / "model.safetensors")
    sizes = []
    read = np.fromfile

    def counted(path, dtype, count, offset):
        sizes.append(count)
        return read(path, dtype, count, offset=offset)
    monkeypatch.setattr(safetensors.np, "fromfile", counted)
    names = [name for name in block.ours if name.startswith(("experts.", "router."))]
    kinds = {name: ("float32", block.ours[name].shape) for name in names}
    for rank in range(4):
        group = Block(kinds, E, 0, range(rank // 2 * E // 2, (rank // 2 + 1) * E // 2), rank % 2, 2)
        arrays = open_arrays("test", tmp_path, "")
        match = find_match("test", group, arrays, MODELS[model_type].formats)
        for name in filter(lambda name: name.startswith("experts."), names):
            short = name.removeprefix("experts.")
            expected = hpmoe.nn.shard_experts(block.ours[name], mesh, SPLITS[short])[rank]
            array = np.full(expected.shape, np.nan, np.float32)
            sizes.clear()
            for stored, place in match.places.items():
                if place.entry.parameter == name:
                    read_into(array, arrays[stored], place, group)
            np.testing.assert_array_equal(array, expected, name)
            assert sum(sizes) == (0 if short == "bias2" and rank % 2 else array.nbytes)
    assert (H, N) == (8, 6)
