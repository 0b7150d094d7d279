"""The text of every stage of a small moe_ffn, forward and backward, as stored in tests/golden."""

import pytest
from helpers import Layer, stages

import hpmoe
from hpmoe import Mesh, ShapeDtypeStruct

LAYER = Layer(ep=2, T=3, H=4, I=3, E=4, K=2)
TEXTS = {name: {} for name in ("plain", "tiles", "overlap", "queues", "fused")}
TEXTS |= {"overlap_peer": {"signal": "peer"}, "overlap_expert": {"signal": "expert"}}


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_stage(name, direction, golden):
    avals = [ShapeDtypeStruct(a.shape, str(a.dtype)) for a in LAYER.arguments()]
    staged = stages(rows=2, cols=4, **TEXTS[name])[name.partition("_")[0]](hpmoe.moe_ffn)
    text = str(hpmoe.spmd(staged, Mesh(LAYER.ep)).lower(*avals, direction=direction)) + "\n"
    assert text == golden(f"moe_ffn.{name}.{direction}.txt", text), "if meant so, run pytest --update-golden"
