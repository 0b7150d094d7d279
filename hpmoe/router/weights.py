"""The weights of chosen experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import mindspore as ms
from mindspore import Tensor, mint, ops

from hpmoe.primitives.columns import add_columns, take_columns
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.ids import checked_ids
from hpmoe.router.scores import (
    LEAST_SUM,
    check_ids,
    check_logits,
    check_score,
    described,
    divided_by_sum,
    scores_of,
    softmax,
)
from hpmoe.support.errors import check_argument, check_flags, is_number
from hpmoe.support.keywords import suggests_keywords

Fusion = Callable[[Tensor], Tensor]
NO_LOGIT = -1e30  # whose softmax is 0 beside others, and a number where there are none


@suggests_keywords
def weigh(logits: Tensor, topk_ids: Tensor, *, score: str = "softmax", normalize: bool = True, scale: float = 1.0,
          fusion: Fusion | None = None, epsilon: float = LEAST_SUM) -> Tensor:
    """Computes the weights of experts that `hpmoe.route` did not choose: replayed from another run, hashed, or forced.

    Args:
        logits: [T, E].
        topk_ids: [T, K] int32 or int64, distinct experts of each token, e.g. those that inference chose, to train on the
            same experts (router replay); -1 is no expert, of weight 0.
        score, normalize, scale, fusion, epsilon: as in `hpmoe.route`, but no "sparsemixer", whose weights need its choice.

    Returns:
        [T, K] float32, differentiable by logits.

    Raises:
        ArgumentError: an argument does not fit, an id is out of range, or a token repeats an expert. A program raises it at
            the end of the call.

    Source: hash layers of DeepSeek-V4 and router replay weigh what they did not choose: w = s[ids].

    Example:
        >>> import mindspore as ms
        >>> weigh(ms.Tensor([[0.0, 0.0, 9.0]]), ms.Tensor([[1, 0]], ms.int32)).asnumpy().round(2).tolist()
        [[0.5, 0.5]]
    """
    outside_graphs("hpmoe.router.weigh")
    check_score("hpmoe.router.weigh", score)
    check_argument(score != "sparsemixer", "hpmoe.router.weigh", "score", repr(score), "another, which weighs any choice")
    check_epsilon("hpmoe.router.weigh", epsilon)
    check_flags("hpmoe.router.weigh", normalize=normalize)
    check_scale("hpmoe.router.weigh", scale)
    check_ids("hpmoe.router.weigh", topk_ids)
    z = check_logits("hpmoe.router.weigh", logits)
    check_argument(topk_ids.shape[0] == z.shape[0], "hpmoe.router.weigh", "topk_ids", described(topk_ids),
                   f"[{z.shape[0]}, K], as many rows as logits")
    is_expert = checked_ids("hpmoe.router.weigh", topk_ids, z.shape[1])
    chosen = _chosen_scores(z, mint.where(is_expert, topk_ids, 0).astype(ms.int32), is_expert, score)
    return mint.where(is_expert, finished(chosen, score, normalize, scale, fusion, epsilon), 0.0)


def _chosen_scores(z: Tensor, ids: Tensor, is_expert: Tensor, score: str) -> Tensor:
    """Returns the scores of the chosen experts, [T, K]; masked entries get 0, or NO_LOGIT for a softmax of the chosen.

    Logits that no entry reads become numbers before they are computed with: the gradient of NaN is NaN, also times 0.
    """
    if score == "softmax":
        has_expert = mint.sum(is_expert.astype(ms.float32), -1, True) > 0
        return mint.where(is_expert, take_columns(softmax(mint.where(has_expert, z, 0.0)), ids), 0.0)
    if score == "softmax_of_chosen":
        return mint.where(is_expert, take_columns(z, ids), NO_LOGIT)
    return mint.where(is_expert, scores_of(mint.where(is_expert, take_columns(z, ids), 0.0), score), 0.0)


def check_scale(who: str, scale: float) -> None:
    check_argument(is_number(scale), who, "scale", repr(scale), "a finite float32 number")


def check_epsilon(who: str, epsilon: float) -> None:
    check_argument(is_number(epsilon) and epsilon >= 0, who, "epsilon", repr(epsilon), "a float32 number of at least 0")


BAND = 0.02  # twice Phi-3.5-MoE's router_jitter_noise


def sparsemixer(z: Tensor, ids: Tensor) -> Tensor:
    """Returns weights [T, K] of the experts with the K largest logits z [T, E], by SparseMixer's rule of evaluation.

    Each weight is that of the softmax over the experts which are left and whose logits z_e are close to the largest of them,
    m - z_e <= BAND * max(|z_e|, m).

    Source: Phi-3.5-MoE (transformers 5.23); Liu et al., arXiv 2310.00811.
    """
    weights = []
    for k in range(ids.shape[1]):
        largest = take_columns(z, ids[:, k:k + 1])
        width = mint.maximum(mint.abs(z), largest) * BAND
        is_close = cast(Tensor, ops.stop_gradient(largest - z)) <= cast(Tensor, ops.stop_gradient(width))
        if k:
            is_close = mint.logical_and(is_close, add_columns(1.0, ids[:, :k], num_cols=z.shape[1]) == 0)
        weights.append(take_columns(softmax(mint.where(is_close, z, NO_LOGIT)), ids[:, k:k + 1]))
    return mint.cat(tuple(weights), -1)


def finished(chosen: Tensor, score: str, normalize: bool, scale: float, fusion: Fusion | None,
             epsilon: float = LEAST_SUM) -> Tensor:
    """Turns the scores of chosen experts into routing weights, both [T, K].

    Takes their softmax if `score` is "softmax_of_chosen". Then returns `fusion` of the weights if it is given; otherwise
    divides them by their sum plus `epsilon` if `normalize`, and multiplies them by `scale`.
    """
    chosen = softmax(chosen) if score == "softmax_of_chosen" else chosen
    if fusion is not None:
        check_argument(callable(fusion), "hpmoe.route", "fusion", described(fusion), "a function of weights [T, K], or None")
        return fusion(chosen)
    weights = divided_by_sum(chosen, epsilon) if normalize else chosen
    return weights if scale == 1 else mint.mul(weights, float(scale))
