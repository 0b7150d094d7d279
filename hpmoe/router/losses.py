"""Losses that keep routers balanced and their logits small: float32 scalars of all tokens, differentiable by the logits.

T is the number of tokens, z the logits [T, E], p the probabilities [T, E]: softmax(z), or scores divided by their sum. n_i
counts the tokens that have expert i among the top_k of their raw scores, without bias and groups; n has no gradient. E is
the number of experts that a token may choose: an expert whose logit is -inf does not count. Padding beside `num_tokens`
does not count. A loss of no tokens is 0.

    aux_loss             E / (K T^2) * sum_i n_i sum_t p_ti
    sequence_loss        the mean over sequences of the aux_loss of each sequence; sequences of padding do not count
    global_batch_loss    E / (T sum_i n_i) * sum_i n_i sum_t p_ti, with n of all ranks and steps
    z_loss               1 / T * sum_t logsumexp(z_t)^2

A loss over ranks is the loss of all their tokens together. Each loss is a quotient of sums over tokens, so ranks add up
their sums, and divide once. `hpmoe.nn.MoELayer` does that. A per-rank function has the loss of its own T_r tokens: z_loss
and global_batch_loss of all tokens are sum_r T_r loss_r / sum_r T_r, sequence_loss the mean weighted by sequences, and
aux_loss of all tokens is global_batch_loss with the counts of all ranks.
"""

from __future__ import annotations

import math
from typing import cast

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.primitives.columns import add_columns, top_k as best_of
from hpmoe.primitives.matmul import weight_grad
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.scores import LEAST_SUM, check_logits, check_score, described, probabilities, sum_of_tokens
from hpmoe.support.errors import check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords


def _checked(who: str, logits: Tensor, score: str, coefficient: float, top_k: int = 1) -> Tensor:
    check_score(who, score)
    check_argument(is_number(coefficient), who, "coefficient", repr(coefficient), "a finite float32 number")
    z = check_logits(who, logits)
    check_argument(is_int(top_k, 1, z.shape[1]), who, "top_k", repr(top_k), f"an int in 1..{z.shape[1]}")
    return z


def _choices(z: Tensor, top_k: int) -> Tensor:
    """Returns 1 for each expert among the top_k of a token's raw scores, which rise with the logits; float32 [T, E]."""
    _, ids = best_of(ops.stop_gradient(z), k=top_k, largest=True)
    return add_columns(1.0, ids, num_cols=z.shape[1])


@suggests_keywords
def aux_loss(logits: Tensor, top_k: int, *, score: str = "softmax", coefficient: float = 1.0) -> Tensor:
    """Computes the auxiliary loss of Switch and Megatron: coefficient * E / (K T^2) * sum_i n_i sum_t p_ti.

    T is the number of tokens, E the number of experts and K top_k. n_i is the number of tokens that choose expert i, and
    p_ti the share of expert i in the scores of token t. A balanced routing has the loss `coefficient`.

    Args:
        logits: [T, E].
        top_k: number of experts of each token, an int in 1..E.
        score: function from logits to scores: "softmax", "sigmoid" or another name that `hpmoe.route` takes.
        coefficient: factor of the loss.

    Returns:
        A scalar, float32. The loss of Hugging Face transformers is K times this loss.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value.

    Formula: Fedus et al. (arXiv 2101.03961), as megatron-core and MindFormers have it for any K.

    Example:
        >>> import mindspore as ms
        >>> float(aux_loss(ms.Tensor([[1.0, 0.0], [0.0, 1.0]]), 1)), float(aux_loss(ms.Tensor([[9.0, 0.0]] * 2), 1)) > 1.9
        (1.0, True)
    """
    outside_graphs("hpmoe.router.aux_loss")
    z = _checked("hpmoe.router.aux_loss", logits, score, coefficient, top_k)
    return balance_loss(*balance_sums(z, top_k, score), top_k) * float(coefficient)


def balance_sums(z: Tensor, top_k: int, score: str, is_real: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Returns sums over tokens from float32 logits: n [E], sum_t p_ti [E], and the number of allowed (token, expert) pairs.

    Tokens whose `is_real` [T, 1] is 0 do not count.
    """
    n, p, may = (_of_real(x, is_real) for x in (_choices(z, top_k), probabilities(z, score), _may_choose(z)))
    return sum_of_tokens(n, 0), sum_of_tokens(p, 0), sum_of_tokens(may)


def _of_real(x: Tensor, is_real: Tensor | None) -> Tensor:
    return x if is_real is None else x * is_real


def balance_loss(n: Tensor, p: Tensor, may_choose: Tensor, top_k: int) -> Tensor:
    """Returns the auxiliary loss, E / (K T^2) * sum_i n_i sum_t p_ti, from `balance_sums` or their sums over ranks."""
    tokens = mint.sum(n) / top_k + LEAST_SUM
    return mint.sum(n / tokens * (p / tokens)) * (may_choose / tokens / top_k)


def _may_choose(z: Tensor) -> Tensor:
    """Returns 1 for each expert that a token may choose, 0 if its logit is -inf; float32 [T, E]."""
    return cast(Tensor, z != -math.inf).astype(ms.float32)


def num_tokens_of(z: Tensor, is_real: Tensor | None = None) -> Tensor:
    """Returns the number of real tokens as a float32 scalar."""
    first = z[:, :1]
    return sum_of_tokens(_of_real(mint.logical_or(first == first, first != first).astype(ms.float32), is_real))


@suggests_keywords
def sequence_loss(logits: Tensor, top_k: int, num_sequences: int, *, score: str = "softmax",
                  coefficient: float = 1.0) -> Tensor:
    """Computes the auxiliary loss of each sequence separately and returns the mean over sequences.

    Args:
        logits: [T, E], the tokens of equally long sequences one after another.
        top_k: number of experts of each token, an int in 1..E.
        num_sequences: number of sequences, a positive divisor of T. If T is 0, any int from 0 on.
        score: function from logits to scores: "softmax", "sigmoid" or another name that `hpmoe.route` takes.
        coefficient: factor of the loss.

    Returns:
        A scalar, float32; `coefficient` if every sequence is balanced.

    Raises:
        ArgumentError: num_sequences does not divide T, or another argument has a wrong type, shape or value.

    Formula: DeepSeek-V3's complementary loss (arXiv 2412.19437, equation 17), megatron-core's seq_aux_loss.

    Example:
        >>> import mindspore as ms
        >>> from hpmoe.router import aux_loss, sequence_loss
        >>> logits = ms.Tensor([[9.0, 0.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
        >>> float(aux_loss(logits, 1)), round(float(sequence_loss(logits, 1, 2)), 2)
        (1.0, 2.0)
    """
    who = "hpmoe.router.sequence_loss"
    outside_graphs(who)
    z = _checked(who, logits, score, coefficient, top_k)
    num_tokens = z.shape[0]
    fits = is_int(num_sequences, 1 if num_tokens else 0) and num_tokens % max(1, num_sequences) == 0
    check_argument(fits, who, "num_sequences", repr(num_sequences), f"an int that divides {num_tokens} tokens")
    loss, count = sequence_sums(z, top_k, num_sequences if num_tokens else 1, score)
    return loss / (count + LEAST_SUM) * float(coefficient)


def sequence_sums(z: Tensor, top_k: int, num_sequences: int, score: str, is_real: Tensor | None = None
                  ) -> tuple[Tensor, Tensor]:
    """Returns the sum of the auxiliary losses of sequences, from float32 logits, and the number of non-empty sequences."""
    n, p, may = (_of_sequences(_of_real(x, is_real), num_sequences)
                 for x in (_choices(z, top_k), probabilities(z, score), _may_choose(z)))
    tokens = mint.sum(n, -1, True) / top_k
    few = tokens + LEAST_SUM
    losses = mint.sum(n / few * (p / few), -1, True) * (mint.sum(may, -1, True) / few / top_k)
    return mint.sum(losses), mint.sum((tokens > 0).astype(ms.float32))


def _of_sequences(x: Tensor, num_sequences: int) -> Tensor:
    """Returns the sums of x [T, E] over the tokens of each sequence, [num_sequences, E]."""
    if num_sequences == 1:  # also of no tokens, of which MindSpore has no gradient of a product
        return sum_of_tokens(x, 0, True)
    member = np.kron(np.eye(num_sequences), np.ones((x.shape[0] // num_sequences, 1)))
    return weight_grad(Tensor(member.astype(np.float32)), x)


@suggests_keywords
def global_batch_loss(logits: Tensor, counts: Tensor, *, score: str = "softmax", coefficient: float = 1.0) -> Tensor:
    """Computes the auxiliary loss from counts of the global batch: coefficient * E * sum_i (n_i / sum n) * mean_t p_ti.

    Args:
        logits: [T, E], of this rank and step.
        counts: n, [E], `router.tokens_per_expert` summed over all ranks, and over several steps if wanted.
        score: function from logits to scores: "softmax", "sigmoid" or another name that `hpmoe.route` takes.
        coefficient: factor of the loss.

    Returns:
        A scalar, float32. p_ti is the share of expert i in the scores of token t.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value.

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
    n, tokens = ops.stop_gradient(counts.astype(ms.float32)), num_tokens_of(z) + LEAST_SUM
    share = n / (mint.sum(n, 0, True) + LEAST_SUM)
    mean, num_experts = sum_of_tokens(probabilities(z, score), 0) / tokens, sum_of_tokens(_may_choose(z)) / tokens
    return mint.sum(share * mean) * num_experts * float(coefficient)


@suggests_keywords
def z_loss(logits: Tensor, *, coefficient: float = 1.0) -> Tensor:
    """Computes the loss that keeps logits z small: coefficient * mean over tokens of logsumexp(z)^2.

    Args:
        logits: [T, E].
        coefficient: factor of the loss.

    Returns:
        A scalar, float32.

    Raises:
        ArgumentError: logits is not a float tensor [T, E], or coefficient is not a finite number.

    Formula: Zoph et al., ST-MoE (arXiv 2202.08906), equation 5.

    Example:
        >>> import mindspore as ms
        >>> round(float(z_loss(ms.Tensor([[0.0, 0.0]]))), 4)  # log(2)^2
        0.4805
    """
    outside_graphs("hpmoe.router.z_loss")
    z = _checked("hpmoe.router.z_loss", logits, "softmax", coefficient)
    return z_sum(z) / (num_tokens_of(z) + LEAST_SUM) * float(coefficient)


def z_sum(z: Tensor, is_real: Tensor | None = None) -> Tensor:
    """Returns the sum over tokens of logsumexp(z)^2, from float32 logits."""
    return sum_of_tokens(_of_real(mint.square(ops.logsumexp(z, 1, True)), is_real))
