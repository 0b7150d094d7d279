"""Routings that are not made up here: the public imbalance workloads W0 to W7."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.workload import balanced_ids, sampled_ids
from hpmoe.support.errors import check_argument

WORKLOADS = {
    "W0": "balanced", "W1": "a fixed quarter of the experts is hot",
    "W2": "the same, experts next to each other, on few ranks",
    "W3": "every other expert is hot", "W4": "ranks have from half to all of the tokens",
    "W5": "half of the experts get none", "W6": "the hot quarter moves on every third step",
    "W7": "every fourth step half of the tokens go to the hot quarter"}


def workload_ids(name: str, ep_size: int, num_tokens: int, top_k: int, num_experts: int, seed: int = 0,
                 step: int = 0) -> np.ndarray:
    """Samples a step of a token-imbalance workload proposed for Megatron-LM (pull request 7488).

    The hot set is a quarter of all experts, or top_k of them; three of four tokens choose in it alone, the fourth among all.
    W1 and W2 have the first quarter, and differ in what the source measures beside it; W3 every other expert; W5 the upper
    half for all tokens; in W6 the quarter moves on with every third step; in W7 half of the tokens of every fourth step are
    hot. How uneven the ranks' tokens of W4 are, the source does not say: here from half to all, evenly, the rest being -1.

    Returns:
        [ep, T, K] int32, distinct experts for each token.

    Example:
        >>> [np.bincount(workload_ids(w, 4, 64, 2, 8).reshape(-1), minlength=8).max().item() for w in ("W0", "W5")]
        [64, 136]
    """
    check_argument(name in WORKLOADS, "workload_ids", "name", repr(name), f"one of {', '.join(WORKLOADS)}")
    if name == "W0":
        return balanced_ids(ep_size, num_tokens, top_k, num_experts)
    every, width = np.arange(num_experts), min(num_experts, max(top_k, num_experts // 4))
    hot = {"W3": every[::2], "W5": every[num_experts // 2:], "W6": (every[:width] + step // 3 * width) % num_experts}
    chosen = hot.get(name, every[:width])
    chosen = chosen if len(chosen) >= top_k else every
    rng = np.random.default_rng((seed, step, int(name[1])))
    ids = sampled_ids(ep_size, num_tokens, top_k, num_experts, seed=rng)
    token = np.arange(num_tokens)
    is_hot = {"W4": token < 0, "W5": token >= 0, "W7": (token % 2 == 0) & (step % 4 == 3)}.get(name, token % 4 > 0)
    of_hot = chosen[sampled_ids(ep_size, num_tokens, top_k, len(chosen), seed=rng)]
    ids[:, is_hot] = of_hot[:, is_hot]
    if name == "W4":
        lengths = np.linspace(num_tokens, -(-num_tokens // 2), ep_size).astype(int)
        ids[token >= lengths[:, None]] = -1
    return ids
