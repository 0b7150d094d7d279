"""Routings from files: recorded ids, or drawn from recorded loads, tokens of each expert as serving systems count them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from hpmoe.routing.routing import check_topk_ids
from hpmoe.support.errors import ArgumentError, check_argument, is_int

WHO, IDS = "recorded_loads", "recorded_ids"  # who errors of a file of loads or of ids are of
STEP = 2**20  # tokens times experts that are drawn at a time


def ids_of_loads(loads: np.ndarray, ep_size: int, num_tokens: int, top_k: int, seed: int = 0) -> np.ndarray:
    """Returns topk_ids drawn so that each expert is expected to have its share of the loads, [ep, T, K] int32.

    A token chooses distinct experts by systematic sampling in an order of its own. An expert with more than the share of all
    tokens is chosen by every token, and the others share the rest.

    Args:
        loads: tokens of each expert, [E], or any numbers in proportion to them.
        ep_size, num_tokens, top_k: ranks, tokens of each rank and choices of each token.
        seed: seed of the samples.

    Example:
        >>> ids = ids_of_loads(np.array([6, 2, 1, 1]), ep_size=1, num_tokens=1000, top_k=1)
        >>> np.bincount(ids.ravel()).tolist()
        [585, 208, 100, 107]
    """
    shares = _shares(np.asarray(loads, float), top_k)
    rng, num_experts = np.random.default_rng(seed), len(shares)
    out = np.empty((ep_size * num_tokens, top_k), np.int32)
    step = max(1, STEP // num_experts)
    for first in range(0, len(out), step):
        mine = out[first:first + step]
        order = rng.random((len(mine), num_experts)).argsort(axis=1)
        ends = shares[order].cumsum(axis=1)
        ends *= top_k / ends[:, -1:]
        at = rng.random((len(mine), 1)) + np.arange(top_k)
        place = (ends[:, None, :] <= at[:, :, None]).sum(axis=2)
        mine[:] = np.take_along_axis(order, np.minimum(place, num_experts - 1), axis=1)
    return out.reshape(ep_size, num_tokens, top_k)


def _shares(loads: np.ndarray, top_k: int) -> np.ndarray:
    """Returns the probability that a token chooses each expert, at most 1; they sum to top_k."""
    is_ok = loads.ndim == 1 and bool(np.isfinite(loads).all() and (loads >= 0).all())
    check_argument(is_ok, WHO, "loads", f"{loads.dtype} of shape {loads.shape}", "[E] numbers of at least 0")
    check_argument(int((loads > 0).sum()) >= top_k, WHO, "loads", f"those of {(loads > 0).sum()} experts",
                   f"of at least {top_k} experts, which each token chooses")
    out = np.zeros(len(loads))
    for _ in loads:  # each round caps experts with too much; the last one caps none
        capped = out >= 1
        rest = np.where(capped, 0.0, loads)
        out = np.where(capped, 1.0, rest * (top_k - capped.sum()) / max(rest.sum(), 1e-300))
        if (out <= 1).all():
            break
        out = np.minimum(out, 1.0)
    return out


def ids_of_file(path: str | os.PathLike[str], ep_size: int, num_tokens: int, top_k: int, num_experts: int, *, seed: int = 0,
                layer: int | None = None, step: int = 0) -> np.ndarray:
    """Returns the topk_ids that a file records, or ids drawn from the loads that it records, [ep, T, K] int32.

    Args:
        path: a .npy file of loads [E], [layers, E] or [steps, layers, E]; of ids [..., K], or with `layer` [T, layers, K];
            or a .json file with an array of loads, or with an object whose key "logical_count" holds them.
        ep_size, num_tokens, top_k, num_experts: sizes of the layer.
        seed: seed of the samples.
        layer, step: which loads or ids are meant, if a file has those of several layers or steps.
    """
    file = Path(path)
    if file.suffix == ".json" or (array := _array_of(file, top_k)).shape[-1:] == (num_experts,) != (top_k,):
        counts = _counts(file) if file.suffix == ".json" else array
        return ids_of_loads(_of_layer(file, counts, num_experts, layer, step), ep_size, num_tokens, top_k, seed)
    if array.ndim != 3:
        layer = None
    if layer is not None:
        _check_index("layer", layer, array.shape[1], file)
    return _recorded_ids(str(file), array, ep_size, num_tokens, top_k, num_experts, layer)


def _array_of(file: Path, top_k: int) -> np.ndarray:
    try:
        found = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise ArgumentError(f"{IDS}: path is {str(file)!r}, which cannot be read as a .npy file ({error})") from None
    check_argument(isinstance(found, np.ndarray), IDS, "path", f"{str(file)!r} of several arrays",
                   f"a file of integers [..., {top_k}]")
    return found


def _recorded_ids(file: str, ids: np.ndarray, ep_size: int, num_tokens: int, top_k: int, num_experts: int,
                  layer: int | None) -> np.ndarray:
    """Returns the first recorded ids, dealt out to ranks in order; -1 is no expert."""
    is_ids = ids.ndim >= 2 and ids.dtype.kind in "iu" and ids.shape[-1] == top_k
    check_argument(is_ids, IDS, "path", f"{file!r} of {ids.dtype}{ids.shape}", f"a file of integers [..., {top_k}]")
    tokens = (ids if layer is None else ids[:, layer]).reshape(-1, top_k)
    check_argument(len(tokens) >= ep_size * num_tokens, IDS, "path", f"{file!r} of {len(tokens)} tokens",
                   f"one of at least {ep_size * num_tokens}: {num_tokens} for each of {ep_size} ranks")
    used = tokens[:ep_size * num_tokens].astype(np.int64)
    check_argument(bool(((used >= -1) & (used < num_experts)).all()), IDS, "path",
                   f"{file!r} with ids from {used.min()} to {used.max()}", f"one with ids from -1 to {num_experts - 1}")
    check_topk_ids(used, num_experts, f"{IDS}: {file!r}")
    return used.astype(np.int32).reshape(ep_size, num_tokens, top_k)


def _counts(file: Path) -> np.ndarray:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return np.array(found["logical_count"] if isinstance(found, dict) else found, float)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArgumentError(f"{WHO}: path is {str(file)!r}, which cannot be read ({type(error).__name__}: {error}); it must "
                            'be JSON like {"logical_count": [[tokens of each expert] of each layer]}') from None


def _of_layer(file: Path, counts: np.ndarray, num_experts: int, layer: int | None, step: int) -> np.ndarray:
    """Returns the loads of one layer and step, [E]."""
    is_ok = 1 <= counts.ndim <= 3 and counts.shape[-1] == num_experts
    check_argument(is_ok, WHO, "path", f"{str(file)!r} with loads of shape {counts.shape}",
                   f"loads [E], [layers, E] or [steps, layers, E], E = {num_experts}")
    if counts.ndim == 3:
        _check_index("step", step, len(counts), file)
        counts = counts[step]
    if counts.ndim == 2:
        layer = 0 if layer is None and len(counts) == 1 else layer
        _check_index("layer", layer, len(counts), file)
        counts = counts[layer]
    check_argument(bool(counts.any()), WHO, "layer", f"{layer}, which has no tokens in {str(file)!r}",
                   "a layer with experts")
    return counts


def _check_index(name: str, index: object, count: int, file: Path) -> None:
    check_argument(is_int(index, 0, count - 1), WHO, name, repr(index),
                   f"an int in 0..{count - 1}, as {str(file)!r} has {count}")
