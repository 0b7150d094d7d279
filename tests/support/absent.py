"""Ids of -1 in patterns that are easily got wrong, and transforms of layers that have such ids."""

import numpy as np

import hpmoe

ABSENT = {
    "none": lambda ids, rng: np.zeros(ids.shape, bool),
    "all": lambda ids, rng: np.ones(ids.shape, bool),
    "all of the first rank": lambda ids, rng: _at(ids, 0),
    "all but the last rank's": lambda ids, rng: ~_at(ids, -1),
    "one token": lambda ids, rng: _at(ids, slice(None), ids.shape[1] // 2),
    "all but one token": lambda ids, rng: ~_at(ids, slice(None), ids.shape[1] // 2),
    "first choices": lambda ids, rng: _at(ids, slice(None), slice(None), 0),
    "last choices": lambda ids, rng: _at(ids, slice(None), slice(None), -1),
    "one expert": lambda ids, rng: ids == ids.max(initial=0),
    "all but one expert": lambda ids, rng: ids != 0,
    "a part": lambda ids, rng: rng.random(ids.shape) < 0.4,
    "most": lambda ids, rng: rng.random(ids.shape) < 0.9,
    "top-p": lambda ids, rng: np.arange(ids.shape[2]) >= rng.integers(0, ids.shape[2] + 1, (*ids.shape[:2], 1)),
}


def _at(ids, *where):
    """True where an index of `where` points to, if there is anything."""
    out = np.zeros(ids.shape, bool)
    if ids.size:
        out[where] = True
    return out


def without(layer, pattern, seed=0):
    """The arguments of a layer with ids of -1, beside which the weights are NaN; and which entries are left, [ep, T, K]."""
    args = layer.arguments(seed)
    absent = ABSENT[pattern](args[1], np.random.default_rng(seed))
    args[1][absent], args[2][absent] = -1, np.nan
    return args, ~absent


def replicating(layer):
    """Copies of the first experts on the last ranks, planned from other loads than these."""
    return lambda f: hpmoe.replicate_experts(f, loads=[2 ** (layer.E - e) for e in range(layer.E)], replicas=2)


TRANSFORMS = {
    "nothing": lambda layer: lambda f: f,
    "deduplicated": lambda layer: hpmoe.send_rows(scheme="deduplicated"),
    "replicate_experts": replicating,
    "both": lambda layer: lambda f: hpmoe.send_rows(scheme="deduplicated")(replicating(layer)(f)),
}
