"""Noise that a seed decides: numbers depend on it, the kind of noise, the token's row and the column, and on nothing else.

A seed is an int, which is fixed in a trace, or an int32 Tensor of one element, which a step may change without another
trace. Each layer and each rank takes its own, as the same seed draws the same numbers. Gradients draw nothing again.
"""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.primitives.draw import draw
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.primitives.route import check_tensor
from hpmoe.router.scores import check_logits, described
from hpmoe.support.errors import check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords

JITTER, GUMBEL, DROPOUT, CHOICE = range(4)  # streams


def seed_tensor(who: str, seed: int | Tensor | None) -> Tensor:
    """Returns a seed as an int32 tensor of one element; raises ArgumentError if it is no int of 32 bits or such a tensor."""
    if isinstance(seed, Tensor):
        check_argument(seed.dtype == ms.int32 and tuple(seed.shape) in ((), (1,)), who, "seed",
                       f"{seed.dtype} of shape {seed.shape}", "an int32 Tensor of one element")
        return seed
    check_argument(is_int(seed, -2**31, 2**31 - 1), who, "seed", repr(seed), "an int of 32 bits, or an int32 Tensor")
    return Tensor(np.array([seed], np.int32))


def uniform(who: str, like: Tensor, seed: int | Tensor | None, stream: int) -> Tensor:
    """Returns float32 random numbers above 0 and below 1, in the shape of `like`."""
    return draw(seed_tensor(who, seed), shape=tuple(like.shape), stream=stream)


def check_share(who: str, argument: str, share: float) -> None:
    check_argument(is_number(share) and 0 <= share < 1, who, argument, repr(share), "a number from 0 to below 1")


@suggests_keywords
def jitter(x: Tensor, epsilon: float, seed: int | Tensor | None) -> Tensor:
    """Multiplies x by random numbers, uniform in 1 - epsilon .. 1 + epsilon (the input jitter of a router).

    Args:
        x: [T, N], a router's hidden states or logits.
        epsilon: a number from 0 to below 1.
        seed: an int, or an int32 Tensor of one element.

    Returns:
        [T, N], of the dtype of x.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value.

    Formula: Fedus et al., Switch Transformers (arXiv 2101.03961); Mixtral's `router_jitter_noise`.

    Example:
        >>> import mindspore as ms
        >>> jitter(ms.Tensor([[1.0, 1.0]]), 0.1, seed=3).asnumpy().astype(float).round(3).tolist()
        [[0.92, 0.962]]
    """
    outside_graphs("hpmoe.router.jitter")
    check_share("hpmoe.router.jitter", "epsilon", epsilon)
    wide = check_logits("hpmoe.router.jitter", x, "x")
    return (wide * (uniform("hpmoe.router.jitter", x, seed, JITTER) * (2 * epsilon) + (1 - epsilon))).astype(x.dtype)


@suggests_keywords
def gumbel(logits: Tensor, seed: int | Tensor | None) -> Tensor:
    """Adds Gumbel noise to logits, z - log(-log U): the k largest results are a sample of k experts without replacement.

    The first expert is sampled with the probabilities softmax(z), each later expert with the renormalized probabilities of
    the experts that are left. `router.weigh(logits, ids)` computes weights without noise for the sampled ids.

    Args:
        logits: [T, E].
        seed: an int, or an int32 Tensor of one element.

    Returns:
        [T, E] float32.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value.

    Formula: Kool et al., Stochastic beams and where to find them (arXiv 1903.06059).

    Example:
        >>> import mindspore as ms, hpmoe
        >>> logits = ms.Tensor([[0.0, 0.0, 0.0, -99.0]])
        >>> sorted(hpmoe.route(gumbel(logits, seed=5), 3)[0].asnumpy()[0].tolist())
        [0, 1, 2]
    """
    outside_graphs("hpmoe.router.gumbel")
    z = check_logits("hpmoe.router.gumbel", logits)
    return z - mint.log(-mint.log(uniform("hpmoe.router.gumbel", z, seed, GUMBEL)))


@suggests_keywords
def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    """Returns the values of `hard` with the gradient of `soft`; both are tensors of one shape.

    Formula: Bengio et al., Estimating or propagating gradients through stochastic neurons (arXiv 1308.3432); with weights
    relaxed by Gumbel noise, Jang et al. (arXiv 1611.01144).

    Raises:
        ArgumentError: `hard` or `soft` is not a tensor, or their shapes differ.

    Example:
        >>> import mindspore as ms, hpmoe
        >>> ids, soft = hpmoe.route(ms.Tensor([[1.0, 2.0, 0.0]]), 1, normalize=False, temperature=0.5, seed=1)
        >>> straight_through(soft * 0 + 1, soft).asnumpy().tolist()
        [[1.0]]
    """
    outside_graphs("hpmoe.router.straight_through")
    check_tensor("hpmoe.router.straight_through", "soft", soft)
    fits = isinstance(hard, Tensor) and hard.shape == soft.shape
    check_argument(fits, "hpmoe.router.straight_through", "hard", described(hard), f"a Tensor of shape {tuple(soft.shape)}")
    slope = mint.where(mint.abs(soft) < math.inf, soft, 0.0)  # which is 0 where NaN - NaN would be NaN
    return ops.stop_gradient(hard) + (slope - ops.stop_gradient(slope))


def kept_experts(who: str, logits: Tensor, rate: float, top_k: int, seed: int | Tensor, allowed: Tensor) -> Tensor:
    """Returns a mask of the experts not dropped, bool [T, E]; all for a token with fewer than top_k of `allowed` left."""
    is_kept = uniform(who, logits, seed, DROPOUT) >= rate
    left = mint.logical_and(is_kept, allowed)
    return mint.logical_or(is_kept, mint.sum(left.astype(ms.float32), -1, True) < top_k)
