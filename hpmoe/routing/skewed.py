"""Routings with known imbalance: uniform, by sampled popularity, one hot expert, or on half of the ranks."""

from __future__ import annotations

import numpy as np

from hpmoe.support.errors import check_argument

SKEWS = {
    "uniform": "every expert equally often", "dirichlet": "by popularities drawn from Dirichlet(0.3)",
    "hot": "every token takes one expert, its other choices are uniform",
    "half": "uniform over the experts of half of the ranks"}
DRAWN = 2**22  # numbers at a time
CERTAIN = 100.0  # the logarithm of how much more popular an expert is that every token takes


def skewed_ids(name: str, ep_size: int, num_tokens: int, top_k: int, num_experts: int, seed: int = 0) -> np.ndarray:
    """Samples distinct experts for every token by one of SKEWS, whose popular experts are sampled, too.

    Returns:
        [ep, T, K] int32.

    Example:
        >>> for name in SKEWS:
        ...     print(np.bincount(skewed_ids(name, 2, 200, 2, 8).reshape(-1), minlength=8).tolist())
        [91, 96, 89, 106, 110, 100, 106, 102]
        [68, 0, 151, 55, 36, 201, 93, 196]
        [53, 43, 64, 62, 60, 58, 400, 60]
        [189, 205, 200, 206, 0, 0, 0, 0]
    """
    check_argument(name in SKEWS, "skewed_ids", "name", repr(name), f"one of {', '.join(SKEWS)}")
    rng, most = np.random.default_rng(seed), max(1, ep_size // 2) * (num_experts // ep_size)
    check_argument(name != "half" or top_k <= most, "skewed_ids", "top_k", top_k,
                   f"at most {most}, the experts of half of the ranks")
    return ids_by_odds(log_odds(name, ep_size, num_experts, rng), ep_size, num_tokens, top_k, rng)


def log_odds(name: str, ep_size: int, num_experts: int, rng: np.random.Generator) -> np.ndarray:
    """Returns the logarithm of each expert's popularity under one of SKEWS, [num_experts], the highest 0."""
    odds = np.zeros(num_experts)
    if name == "dirichlet":
        odds = np.log(np.maximum(rng.dirichlet(np.full(num_experts, 0.3)), np.finfo(float).tiny))
    elif name == "hot":
        odds[rng.integers(num_experts)] = CERTAIN
    elif name == "half":
        taken = rng.permutation(ep_size)[:max(1, ep_size // 2)]
        odds[~np.isin(np.arange(num_experts) * ep_size // num_experts, taken)] = -CERTAIN
    return odds - odds.max()


def ids_by_odds(odds: np.ndarray, ep_size: int, num_tokens: int, top_k: int, rng: np.random.Generator) -> np.ndarray:
    """Samples distinct experts for each token by the logarithms of their popularities [num_experts]: [ep, T, K] int32."""
    out = np.empty((ep_size * num_tokens, top_k), np.int32)
    step = max(1, DRAWN // len(odds))
    for first in range(0, len(out), step):
        mine = out[first:first + step]
        # The k largest of log p + Gumbel noise are k draws without replacement from p.
        mine[:] = np.argpartition(-(odds + rng.gumbel(size=(len(mine), len(odds)))), top_k - 1, axis=1)[:, :top_k]
    return out.reshape(ep_size, num_tokens, top_k)
