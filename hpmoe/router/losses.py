"""Losses that keep routers balanced and their logits small: scalars, differentiable by the logits, of one rank's tokens.

p are probabilities [T, E]: softmax(z), or scores by their sum for each token. n_i counts the tokens that have expert i among
the top_k of their raw scores, without bias and groups; it has no gradient. T are a rank's real tokens beside `num_tokens`;
of none every loss is 0.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.primitives.columns import add_columns
from hpmoe.primitives.matmul import weight_grad
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.primitives.top_k import top_k as best_of
from hpmoe.router.scores import LEAST_SUM, check_logits, check_score, described, probabilities
from hpmoe.support.errors import check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords


def _checked(who: str, logits: Tensor, score: str, coefficient: float, top_k: int = 1) -> Tensor:
    check_score(who, score)
    check_argument(is_number(coefficient), who, "coefficient", repr(coefficient), "a number")
    z = check_logits(who, logits)
    check_argument(is_int(top_k, 1, z.shape[1]), who, "top_k", repr(top_k), f"an int in 1..{z.shape[1]}")
    return z


def _choices(z: Tensor, top_k: int) -> Tensor:
    """1 where an expert is among the top_k of a token's raw scores, which rise with the logits; float32 [T, E]."""
    _, ids = best_of(ops.stop_gradient(z), k=top_k, largest=True)
    return add_columns(1.0, ids, num_cols=z.shape[1])


@suggests_keywords
def aux_loss(logits: Tensor, top_k: int, *, score: str = "softmax", coefficient: float = 1.0) -> Tensor:
    """The auxiliary loss of Switch and Megatron: coefficient * E / (K T^2) * sum_i n_i sum_t p_ti; 1 where balanced.

    Args:
        logits: [T, E].
        top_k: experts that a token chooses.
        score: as in `hpmoe.route`.
        coefficient: factor of the loss.

    Returns:
        A scalar, float32. K times it is Hugging Face's.

    Raises:
        ArgumentError: an argument does not fit.

    Formula: Fedus et al. (arXiv 2101.03961), as megatron-core and MindFormers have it for any K.

    Example:
        >>> import mindspore as ms
        >>> float(aux_loss(ms.Tensor([[1.0, 0.0], [0.0, 1.0]]), 1)), float(aux_loss(ms.Tensor([[9.0, 0.0]] * 2), 1)) > 1.9
        (1.0, True)
    """
    outside_graphs("hpmoe.router.aux_loss")
    z = _checked("hpmoe.router.aux_loss", logits, score, coefficient, top_k)
    share, mean = balance_terms(z, top_k, score)
    return mint.sum(share * mean) * (float(coefficient) * z.shape[1] / top_k)


def balance_terms(z: Tensor, top_k: int, score: str) -> tuple[Tensor, Tensor]:
    """n / T and mean p, [E] each, of float32 logits: the loss is of their product, and ranks of as many tokens have the mean
    of theirs."""
    return _mean(_choices(z, top_k)), _mean(probabilities(z, score))


def _mean(rows: Tensor) -> Tensor:
    """Of [T, N] over tokens, of which it counts those that are real: the sum over all of a number that each has."""
    first = rows[:, :1]
    ones = mint.logical_or(first == first, first != first).astype(ms.float32)
    return mint.sum(rows, 0) / (mint.sum(ones, 0) + LEAST_SUM)


@suggests_keywords
def sequence_loss(logits: Tensor, top_k: int, num_sequences: int, *, score: str = "softmax",
                  coefficient: float = 1.0) -> Tensor:
    """The auxiliary loss of each sequence by itself, in the mean over sequences.

    Args:
        logits: [T, E], the tokens of equally long sequences one after another.
        top_k: experts that a token chooses.
        num_sequences: divides T.
        score: as in `hpmoe.route`.
        coefficient: factor of the loss.

    Returns:
        A scalar, float32.

    Raises:
        ArgumentError: an argument does not fit.

    Formula: DeepSeek-V3's complementary loss (arXiv 2412.19437, equation 17), megatron-core's seq_aux_loss.

    Example:
        >>> import mindspore as ms
        >>> logits = ms.Tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
        >>> float(aux_loss(logits, 1)), round(float(sequence_loss(logits, 1, 2)), 2)
        (1.0, 2.0)
    """
    who = "hpmoe.router.sequence_loss"
    outside_graphs(who)
    z = _checked(who, logits, score, coefficient, top_k)
    num_tokens, num_experts = z.shape
    check_argument(is_int(num_sequences, 1, num_tokens) and num_tokens % num_sequences == 0, who, "num_sequences",
                   repr(num_sequences), f"an int that divides {num_tokens} tokens")
    length = num_tokens // num_sequences
    member = Tensor(np.kron(np.eye(num_sequences), np.ones((length, 1))).astype(np.float32))
    n, p = weight_grad(member, _choices(z, top_k)), weight_grad(member, probabilities(z, score))
    tokens = mint.sum(n, -1, True) / top_k
    losses = mint.sum(n * p, -1, True) / (tokens * tokens + LEAST_SUM)
    mean = mint.sum(losses) / (mint.sum((tokens > 0).astype(ms.float32)) + LEAST_SUM)
    return mean * (float(coefficient) * num_experts / top_k)


@suggests_keywords
def global_batch_loss(logits: Tensor, counts: Tensor, *, score: str = "softmax", coefficient: float = 1.0) -> Tensor:
    """The auxiliary loss by counts of the global batch: coefficient * E * sum_i (n_i / sum n) * mean_t p_ti.

    Args:
        logits: [T, E], of this rank and step.
        counts: [E], `router.tokens_per_expert` summed over all ranks and over the steps since these were last set to zero;
            their mean over steps gives the same.
        score: as in `hpmoe.route`.
        coefficient: factor of the loss.

    Returns:
        A scalar, float32.

    Raises:
        ArgumentError: an argument does not fit.

    Formula: Qiu et al., Demons in the detail (arXiv 2501.11873); megatron-core's global_aux_loss.

    Example:
        >>> import mindspore as ms
        >>> logits = ms.Tensor([[9.0, 0.0]])
        >>> [round(float(global_batch_loss(logits, ms.Tensor(n, ms.int32))), 2) for n in ([5, 5], [10, 0])]
        [1.0, 2.0]
    """
    who = "hpmoe.router.global_batch_loss"
    outside_graphs(who)
    z = _checked(who, logits, score, coefficient)
    is_counts = isinstance(counts, Tensor) and tuple(counts.shape) == (z.shape[1],)
    check_argument(is_counts, who, "counts", described(counts), f"a Tensor [{z.shape[1]}], one number for each expert")
    n = ops.stop_gradient(counts.astype(ms.float32))
    share = n / (mint.sum(n, 0, True) + LEAST_SUM)
    return mint.sum(share * _mean(probabilities(z, score))) * (float(coefficient) * z.shape[1])


@suggests_keywords
def z_loss(logits: Tensor, *, coefficient: float = 1.0) -> Tensor:
    """The loss that keeps logits small: coefficient * mean over tokens of logsumexp(z)^2.

    Args:
        logits: [T, E].
        coefficient: factor of the loss.

    Returns:
        A scalar, float32.

    Raises:
        ArgumentError: an argument does not fit.

    Formula: Zoph et al., ST-MoE (arXiv 2202.08906), equation 5.

    Example:
        >>> import mindspore as ms
        >>> round(float(z_loss(ms.Tensor([[0.0, 0.0]]))), 4)  # log(2)^2
        0.4805
    """
    outside_graphs("hpmoe.router.z_loss")
    z = _checked("hpmoe.router.z_loss", logits, "softmax", coefficient)
    return mint.sum(_mean(mint.square(ops.logsumexp(z, 1, True)))) * float(coefficient)
