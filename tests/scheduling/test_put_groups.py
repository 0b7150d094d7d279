"""put_groups: workers are divided among ranks only where each group has enough to send at a time."""

from types import SimpleNamespace

import numpy as np

import hpmoe
from hpmoe.commands.layer import Layer
from hpmoe.scheduling.rules import without


def test_eight_ranks_half_of_them_empty_are_no_slower_by_groups():
    """Of two groups one would be done before the other here, whose rows all ranks then wait for: 1.2 times as long."""
    o = SimpleNamespace(ep=8, tokens=2048, hidden=2048, intermediate=768, experts=8, top_k=4, dtype="bfloat16")
    ids = np.argsort(np.random.default_rng(0).random((8, 2048, 4)), axis=2)
    layer = Layer(o, "backward", hpmoe.ascend_a3, np.array([0, 2, 5, 7], np.int32)[ids], tuned=True)
    with without("put_groups"):
        alone = layer.fused_flow()
    assert layer.outline(layer.fused_flow()).span <= layer.outline(alone).span
