"""The weights of chosen experts."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
from mindspore import Tensor, mint

from hpmoe.primitives.columns import take_columns
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.ids import checked_ids
from hpmoe.router.scores import check_ids, check_logits, check_score, described, divided_by_sum, scores_of, softmax
from hpmoe.support.errors import check_argument, check_flags, is_number
from hpmoe.support.keywords import suggests_keywords

Fusion = Callable[[Tensor], Tensor]
NO_LOGIT = -1e30  # whose softmax is 0 beside others, and a number where there are none


@suggests_keywords
def weigh(logits: Tensor, topk_ids: Tensor, *, score: str = "softmax", normalize: bool = True, scale: float = 1.0,
          fusion: Fusion | None = None) -> Tensor:
    """The weights of experts that were chosen elsewhere: replayed from another run, hashed, or forced.

    Args:
        logits: [T, E].
        topk_ids: [T, K] int32 or int64, distinct experts of each token, e.g. those that inference chose, to train on the
            same experts (router replay); -1 is no expert, of weight 0.
        score, normalize, scale, fusion: as in `hpmoe.route`.

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
    check_flags("hpmoe.router.weigh", normalize=normalize)
    check_scale("hpmoe.router.weigh", scale)
    check_ids("hpmoe.router.weigh", topk_ids)
    z = check_logits("hpmoe.router.weigh", logits)
    check_argument(topk_ids.shape[0] == z.shape[0], "hpmoe.router.weigh", "topk_ids", described(topk_ids),
                   f"[{z.shape[0]}, K], as many rows as logits")
    is_expert = checked_ids("hpmoe.router.weigh", topk_ids, z.shape[1])
    chosen = _chosen_scores(z, mint.where(is_expert, topk_ids, 0).astype(ms.int32), is_expert, score)
    return mint.where(is_expert, finished(chosen, score, normalize, scale, fusion), 0.0)


def _chosen_scores(z: Tensor, ids: Tensor, is_expert: Tensor, score: str) -> Tensor:
    """Scores of the chosen experts [T, K]; of other entries 0, or NO_LOGIT for a softmax of the chosen.

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


def finished(chosen: Tensor, score: str, normalize: bool, scale: float, fusion: Fusion | None) -> Tensor:
    """Weights from the scores of the chosen, [T, K]."""
    chosen = softmax(chosen) if score == "softmax_of_chosen" else chosen
    if fusion is not None:
        check_argument(callable(fusion), "hpmoe.route", "fusion", described(fusion), "a function of weights [T, K], or None")
        return fusion(chosen)
    weights = divided_by_sum(chosen) if normalize else chosen
    return weights if scale == 1 else mint.mul(weights, float(scale))
