"""hpmoe.route: from the logits of a router to the experts of each token and their weights."""

from __future__ import annotations

import math
from typing import cast

from mindspore import Tensor, mint

from hpmoe.primitives.columns import take_columns
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.choice import NUM_SUMMED, check_sizes, choose, in_best_groups, or_all_left
from hpmoe.router.noise import check_share, gumbel, jitter as jittered, kept_experts, seed_tensor
from hpmoe.router.scores import LEAST_SUM, check_logits, check_score, described, scores_of
from hpmoe.router.weights import Fusion, check_epsilon, check_scale, finished, sparsemixer
from hpmoe.support.errors import check_argument, check_flags, is_name, is_number
from hpmoe.support.keywords import suggests_keywords

WHO = "hpmoe.route"


@suggests_keywords
def route(logits: Tensor, top_k: int, *, score: str = "softmax", bias: Tensor | None = None, num_groups: int = 1,
          topk_groups: int = 1, normalize: bool = True, scale: float = 1.0, temperature: float | None = None,
          jitter: float = 0.0, expert_dropout: float = 0.0, seed: int | Tensor | None = None,
          fusion: Fusion | None = None, group_score: str = "sum_of_two",
          epsilon: float = LEAST_SUM) -> tuple[Tensor, Tensor]:
    """Chooses top_k experts for each token and computes their weights.

    Options of well-known models:

        DeepSeek-V3, GLM-4.5, Kimi K2: score="sigmoid", bias=b, num_groups=8, topk_groups=4, scale=2.5 (others: 1, 1, ...)
        DeepSeek-V4: score="sqrt_softplus", scale=1.5; MiniMax-M2: score="sigmoid", bias=b
        Qwen3-MoE, Mixtral: score="softmax", with normalize=False or True
        gpt-oss: score="softmax_of_chosen", of logits with the router's bias added
        DeepSeek-V2: num_groups=8, topk_groups=3, group_score="largest", normalize=False, scale=16
        LFM2: score="sigmoid", bias=b, epsilon=1e-6; Phi-3.5-MoE: score="sparsemixer", normalize=False
        Llama 4: top_k=1, score="sigmoid", normalize=False; multiply the expert's input by the weight, not its output

    In float32, with logits z, scores s = softmax(z), sigmoid(z), sqrt(softplus(z)) or z, and choice scores c = s + bias:

    - Only experts of the topk_groups best groups are chosen; a group's score is the sum of its two best c, or its best c.
    - ids = top-k of c, the smaller id first if equal; NaN is the largest.
    - w = s[ids], or softmax(z[ids]) for "softmax_of_chosen"; w / (sum w + epsilon) if normalize; w * scale.

    Ids and bias have no gradient. A logit of -inf masks an expert, which is chosen only if under top_k others are left, and
    a group's score ignores it. If the best groups have too few experts, all groups are chosen from. With top_k=1 and
    normalize=True every weight is `scale` and has no gradient: write normalize=False to train the router.

    Args:
        logits: [T, E] float32, bfloat16 or float16: x @ w.T of a router's weight.
        top_k: experts of each token, 1..E.
        score: "softmax", "sigmoid", "sqrt_softplus", "softmax_of_chosen", or "sparsemixer", which takes no bias.
        bias: None, or [E] float32, added for the choice but not for the weights; see `router.update_bias`.
        num_groups: number of groups of consecutive experts, such as the experts of a node.
        topk_groups: number of groups that a token's experts are chosen from.
        normalize: True makes the weights of a token sum to scale.
        scale: factor of the weights.
        temperature: None, or the divisor of logits after Gumbel noise is added in training; see `router.gumbel`.
        jitter: epsilon; logits are multiplied by random numbers in 1 - epsilon .. 1 + epsilon.
        expert_dropout: probability with which a token cannot choose an expert; without effect if fewer than top_k are left.
        seed: None in evaluation, which disables jitter, dropout and Gumbel noise; in training an int, or an int32 Tensor of
            one element that may change each step. Use another seed for each layer and rank.
        group_score: score of a group: "sum_of_two", of its best c, or "largest".
        epsilon: number added to the divisor of the weights.
        fusion: function from chosen scores [T, K] to weights [T, K] that replaces normalize and scale.

    Returns:
        (topk_ids int32 [T, K], topk_weights float32 [T, K]), best first.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value.

    Source: the models' configurations and code (transformers 5.23, megatron-core 0.16.1); groups: DeepSeek-V3 (arXiv
    2412.19437); Gumbel: arXiv 1611.01144 and 1903.06059.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> ids, weights = hpmoe.route(ms.Tensor([[0.0, 2.0, 1.0, 2.0]]), 2, score="sigmoid", scale=2.5)
        >>> ids.asnumpy().tolist(), weights.asnumpy().tolist()
        ([[1, 3]], [[1.25, 1.25]])
    """
    outside_graphs(WHO)
    z = check_logits(WHO, logits)
    check_sizes(WHO, z.shape[1], top_k, num_groups, topk_groups)
    _check(z.shape[1], score, bias, normalize, scale, expert_dropout)
    check_epsilon(WHO, epsilon)
    check_argument(is_name(group_score, NUM_SUMMED), WHO, "group_score", repr(group_score),
                   f"one of {', '.join(NUM_SUMMED)}")
    seed = None if seed is None else seed_tensor(WHO, seed)
    z = _noisy(z, temperature, jitter, seed)
    scores, allowed = scores_of(z, score), None
    is_limited, drops = topk_groups < num_groups, bool(expert_dropout) and seed is not None
    if is_limited or drops:
        allowed = cast(Tensor, z != -math.inf)
    if is_limited:
        best = in_best_groups(_compared(z, scores, bias), num_groups, topk_groups, group_score)
        allowed = or_all_left(best, allowed, top_k)
    if drops:
        kept = kept_experts(WHO, z, expert_dropout, top_k, seed, allowed)
        allowed = mint.logical_and(kept, allowed)
        z = mint.where(kept, z, -math.inf)
        scores = scores_of(z, score)
    ids = choose(_order(z, scores, bias), top_k, allowed)
    chosen = sparsemixer(z, ids) if score == "sparsemixer" else take_columns(scores, ids)
    return ids, finished(chosen, score, normalize, scale, fusion, epsilon)


def _check(num_experts: int, score: str, bias: Tensor | None, normalize: bool, scale: float, expert_dropout: float) -> None:
    check_score(WHO, score)
    check_flags(WHO, normalize=normalize)
    check_scale(WHO, scale)
    check_argument(bias is None or score != "sparsemixer", WHO, "bias", described(bias), "None with score=\"sparsemixer\"")
    is_bias = bias is None or (isinstance(bias, Tensor) and tuple(bias.shape) == (num_experts,))
    check_argument(is_bias, WHO, "bias", described(bias), f"a Tensor [{num_experts}], one number for each expert")
    check_share(WHO, "expert_dropout", expert_dropout)


def _compared(z: Tensor, scores: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the choice scores c [T, E], scores + bias; -inf for an expert whose logit is -inf."""
    return mint.where(z == -math.inf, -math.inf, scores if bias is None else scores + bias)


def _order(z: Tensor, scores: Tensor, bias: Tensor | None) -> Tensor:
    """Returns the values that experts are chosen by: c, or the logits if there is no bias or a bias of zeros.

    Scores rise with their logits, which float32 keeps apart where it rounds scores to the same.
    """
    return z if bias is None else mint.where(mint.sum(mint.abs(bias), 0, True) == 0, z, _compared(z, scores, bias))


def _noisy(z: Tensor, temperature: float | None, jitter: float, seed: Tensor | None) -> Tensor:
    check_share(WHO, "jitter", jitter)
    check_argument(temperature is None or (is_number(temperature) and temperature > 0), WHO, "temperature",
                   repr(temperature), "a float32 number above 0, or None")
    z = jittered(z, jitter, seed) if jitter and seed is not None else z
    if temperature is None:
        return z
    return (z if seed is None else gumbel(z, seed)) / float(temperature)
