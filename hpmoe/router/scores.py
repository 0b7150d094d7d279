"""Scores: what logits [T, E] say of each expert, in float32."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, mint, ops

from hpmoe.support.errors import check_argument, is_name, kind_of, tensor_advice
from hpmoe.support.trees import PyTree, is_traced

SCORES = ("softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen", "sparsemixer")
LEAST_SUM = 1e-20  # added to what weights are divided by
SMALL = -4.0  # where softplus(z) is e^z to a few percent
LARGE = 30.0  # where softplus(z) is z in float32


def described(x: object) -> str:
    return f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else kind_of(x)


def check_logits(who: str, logits: Tensor, argument: str = "logits") -> Tensor:
    """Returns logits in float32; raises ArgumentError unless they are a float tensor [T, E]."""
    is_float = isinstance(logits, Tensor) and logits.dtype in (ms.float32, ms.bfloat16, ms.float16)
    check_argument(is_float and logits.ndim == 2, who, argument, described(logits), "a float Tensor [T, E]",
                   tensor_advice(argument, logits))
    return logits if logits.dtype == ms.float32 else logits.astype(ms.float32)


def check_ids(who: str, topk_ids: Tensor) -> None:
    is_ids = isinstance(topk_ids, Tensor) and topk_ids.ndim == 2 and topk_ids.dtype in (ms.int32, ms.int64)
    check_argument(is_ids, who, "topk_ids", described(topk_ids), "a Tensor [T, K], int32 or int64",
                   tensor_advice("topk_ids", topk_ids))


def check_score(who: str, score: str) -> None:
    check_argument(is_name(score, SCORES), who, "score", repr(score), f"one of {', '.join(SCORES)}")


def scores_of(logits: Tensor, score: str) -> Tensor:
    """Returns the scores [T, E] of a score's name: softmax(z), sigmoid(z), sqrt(softplus(z)), or z for later softmaxes."""
    if score == "softmax":
        return softmax(logits)
    if score == "sigmoid":
        return mint.sigmoid(logits)
    if score == "sqrt_softplus":
        return _sqrt_softplus(logits)
    return logits


def softmax(z: Tensor) -> Tensor:
    """Returns the softmax of rows, without MindSpore 2.10's, whose gradients on a CPU are wrong after one of one column."""
    powers = mint.exp(z - ops.stop_gradient(mint.amax(z, -1, True)))
    return powers / mint.sum(powers, -1, True)


def _sqrt_softplus(z: Tensor) -> Tensor:
    """Computes sqrt(softplus(z)), by a series where log(1 + e^z) loses digits, so that low scores keep order and slope.

    Each branch computes with numbers of its own range: an infinity has a slope of 0, not 0 times NaN.
    """
    is_low, is_high = z < SMALL, z > LARGE
    low, high = mint.where(is_low, z, SMALL), mint.where(is_high, z, LARGE)
    middle = mint.where(mint.logical_or(is_low, is_high), 0.0, z)
    e = mint.exp(low)
    tail = mint.exp(low * 0.5) * mint.sqrt(1.0 - e * (1 / 2 - e * (1 / 3 - e * (1 / 4))))
    others = mint.where(is_high, mint.sqrt(high), mint.sqrt(mint.log(1.0 + mint.exp(middle))))
    return mint.where(is_low, tail, others)


def probabilities(logits: Tensor, score: str) -> Tensor:
    """Returns p [T, E], which adds up to 1 for each token: the softmax of logits, or scores divided by their sum."""
    if score.startswith("softmax") or score == "sparsemixer":
        return softmax(logits)
    return divided_by_sum(scores_of(logits, score))


def sum_of_tokens(x: Tensor, *axes: PyTree) -> Tensor:
    """Returns mint.sum(x, *axes); zeros if there are no tokens: MindSpore's sum is then memory that nothing has written."""
    if is_traced(x) or x.shape[0]:
        return mint.sum(x, *axes)
    return ops.zeros_like(mint.sum(mint.ones((1, *x.shape[1:]), dtype=x.dtype), *axes))


def divided_by_sum(x: Tensor, epsilon: float = LEAST_SUM) -> Tensor:
    return x / (mint.sum(x, -1, True) + epsilon)
