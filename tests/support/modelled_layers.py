"""Layers of given sizes on a modelled Ascend A3."""

from types import SimpleNamespace

import hpmoe
from hpmoe.commands.layer import Layer, ids_of


def layer(direction="forward", ep=4, tokens=4096, imbalance=1.0, tuned=True, replicas=0, machine=hpmoe.ascend_a3, **sizes):
    o = SimpleNamespace(**{"hidden": 7168, "intermediate": 2048, "top_k": 8, "experts": 8 * ep, **sizes}, ep=ep,
                        tokens=tokens,
                        dtype="bfloat16")
    return Layer(o, direction, machine, ids_of(o, imbalance), replicas, tuned)
