"""The weights of chosen experts."""

from __future__ import annotations

from collections.abc import Callable

import mindspore as ms
from mindspore import Tensor, mint

from hpmoe.primitives.columns import take_columns
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.scores import check_ids, check_logits, check_score, described, divided_by_sum, scores_of, softmax
from hpmoe.routing.routing import check_experts
from hpmoe.support.errors import check_argument, check_flags, is_number
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.mindspore_private import records_calls
from hpmoe.support.trees import is_traced

Fusion = Callable[[Tensor], Tensor]
NO_LOGIT = -1e30  # whose softmax is 0 beside others, and a number where there are none


@suggests_keywords
def weigh(logits: Tensor, topk_ids: Tensor, *, score: str = "softmax", normalize: bool = True, scale: float = 1.0,
          fusion: Fusion | None = None) -> Tensor:
    """The weights of experts that were chosen elsewhere: replayed from another run, hashed, or forced.

    Args:
        logits: [T, E].
        topk_ids: [T, K] int32 or int64, e.g. those that inference chose, to train on the same experts (router replay);
            -1 is no expert, of weight 0.
        score, normalize, scale, fusion: as in `hpmoe.route`.

    Returns:
        [T, K] float32, differentiable by logits.

    Raises:
        ArgumentError: an argument does not fit; on a CPU, an id is of no expert, and in a program the call that runs it.

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
    if ms.get_context("device_target") == "CPU" and not is_traced(topk_ids) and not records_calls():  # no wait for a device
        check_experts(topk_ids.asnumpy(), z.shape[1], "hpmoe.router.weigh")
    scores, is_expert = scores_of(z, score), topk_ids >= 0
    chosen = mint.where(is_expert, take_columns(scores, topk_ids), NO_LOGIT if score == "softmax_of_chosen" else 0.0)
    return mint.where(is_expert, finished(chosen, score, normalize, scale, fusion), 0.0)


def check_scale(who: str, scale: float) -> None:
    check_argument(is_number(scale), who, "scale", repr(scale), "a number")


def finished(chosen: Tensor, score: str, normalize: bool, scale: float, fusion: Fusion | None) -> Tensor:
    """Weights from the scores of the chosen, [T, K]."""
    chosen = softmax(chosen) if score == "softmax_of_chosen" else chosen
    if fusion is not None:
        check_argument(callable(fusion), "hpmoe.route", "fusion", described(fusion), "a function of weights [T, K], or None")
        return fusion(chosen)
    weights = divided_by_sum(chosen) if normalize else chosen
    return weights if scale == 1 else mint.mul(weights, float(scale))
