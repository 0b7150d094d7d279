"""Routings, balanced or not, and random inputs: layers are planned, simulated and measured with them."""

from __future__ import annotations

from types import SimpleNamespace

import mindspore as ms
import numpy as np
from absl import flags

from hpmoe.support.dtypes import rounded
from hpmoe.support.errors import check_argument


def balanced_ids(ep_size: int, num_tokens: int, top_k: int, num_experts: int) -> np.ndarray:
    """Returns ids by which every expert gets equally many entries of every rank, or one more or less if they do not divide.

    Example:
        >>> balanced_ids(1, 3, 2, 4)[0].tolist()
        [[0, 1], [2, 3], [0, 1]]
    """
    ids = np.arange(num_tokens * top_k, dtype=np.int32) % num_experts
    return np.tile(ids.reshape(num_tokens, top_k), (ep_size, 1, 1))


def imbalanced_ids(ep_size: int, num_tokens: int, top_k: int, num_experts: int, imbalance: float,
                   seed: int = 0) -> np.ndarray:
    """Returns ids by which one rank receives `imbalance` times the mean of all ranks, and the others share the rest evenly.

    Args:
        imbalance: largest over mean number of received rows, from 1 to what distinct experts for each token allow.
        seed: seed that decides the hot rank and the experts of each token.

    Returns:
        [ep, T, K] int32, distinct experts for each token.

    Example:
        >>> ids = imbalanced_ids(4, 100, 2, 16, imbalance=1.5)
        >>> (np.bincount(ids.reshape(-1) // 4).max() / np.bincount(ids.reshape(-1) // 4).mean()).round(2)
        1.5
    """
    local = num_experts // ep_size
    most = min(ep_size, ep_size * local / top_k)
    check_argument(1 <= imbalance <= most, "imbalanced_ids", "imbalance", imbalance, f"from 1 to {most:g}")
    rng = np.random.default_rng(seed)
    hot = int(rng.integers(ep_size))
    # Entry (t, k) is hot where the running total of hot entries steps up, which spreads them evenly over tokens.
    share = imbalance * top_k / ep_size
    per_token = np.diff(np.floor(np.arange(num_tokens + 1) * share + 1e-9).astype(int), axis=0)
    cold = np.setdiff1d(np.arange(num_experts), np.arange(hot * local, (hot + 1) * local))
    out = np.empty((ep_size, num_tokens, top_k), np.int32)
    for rank in range(ep_size):
        warm = hot * local + rng.random((num_tokens, local)).argsort(axis=1)[:, :top_k]
        rest = cold[rng.random((num_tokens, len(cold))).argsort(axis=1)[:, :top_k]] if len(cold) else warm
        skipped = per_token if rest.shape[1] < top_k else 0 * per_token  # of the others, those that hot entries stand for
        for k in range(top_k):
            is_hot = k < per_token
            other = np.clip(k - skipped, 0, rest.shape[1] - 1)
            out[rank, :, k] = np.where(is_hot, warm[:, np.minimum(k, warm.shape[1] - 1)], rest[np.arange(num_tokens), other])
    return out


def sampled_ids(ep_size: int, num_tokens: int, top_k: int, num_experts: int, is_zipf: bool = False,
              seed: int | np.random.Generator = 0) -> np.ndarray:
    """Samples distinct experts for every token, uniformly or by Zipf's law: the r-th most popular expert has weight 1 / r.

    Args:
        is_zipf: True if some experts, which are sampled too, are more popular than others.
        seed: seed of the samples, or a random generator.

    Returns:
        [ep, T, K] int32, distinct experts for each token.

    Example:
        >>> ids = sampled_ids(2, 500, 2, 8, is_zipf=True)
        >>> np.sort(np.bincount(ids.reshape(-1)))[::-1].tolist()
        [635, 409, 253, 208, 149, 148, 111, 87]
    """
    rng = np.random.default_rng(seed)
    popularity = -np.log(rng.permutation(num_experts) + 1.0) if is_zipf else np.zeros(num_experts)
    out = np.empty((ep_size * num_tokens, top_k), np.int32)
    step = max(1, 2**22 // num_experts)
    for first in range(0, len(out), step):
        mine = out[first:first + step]
        # The k largest of log p + Gumbel noise are k draws without replacement from p.
        scores = popularity + rng.gumbel(size=(len(mine), num_experts))
        mine[:] = np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
    return out.reshape(ep_size, num_tokens, top_k)


def layer_inputs(o: SimpleNamespace | flags.FlagValues) -> tuple[tuple[ms.Tensor, ...], ms.Tensor]:
    """Returns random arguments of moe_ffn stacked over ranks, with distinct experts, and a cotangent of its output.

    Args:
        o: ep, tokens, hidden, intermediate, experts, top_k, dtype and seed, as the flags of a command name them.

    Returns:
        hidden_states [ep, T, H], topk_ids [ep, T, K] int32, topk_weights [ep, T, K] float32, gate_up_weight
        [ep, E / ep, H, 2I] and down_weight [ep, E / ep, I, H], the others of `dtype`; the cotangent [ep, T, H], float32.
    """
    rng = np.random.default_rng(o.seed)

    def normal(*shape: int, scale: float = 1.0) -> ms.Tensor:
        return ms.Tensor(rounded(rng.standard_normal(shape, np.float32) * np.float32(scale), o.dtype))

    tokens, local = (o.ep, o.tokens), (o.ep, o.experts // o.ep)
    ids = np.argsort(rng.random((*tokens, o.experts), np.float32), axis=-1)[..., :o.top_k].astype(np.int32)
    weights = rng.random((*tokens, o.top_k), np.float32) + np.float32(0.1)
    args = (normal(*tokens, o.hidden), ms.Tensor(ids), ms.Tensor(weights / weights.sum(-1, keepdims=True)),
            normal(*local, o.hidden, 2 * o.intermediate, scale=o.hidden ** -0.5),
            normal(*local, o.intermediate, o.hidden, scale=o.intermediate ** -0.5))
    return args, normal(*tokens, o.hidden).astype(ms.float32)
