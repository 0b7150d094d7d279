"""Ids that no scores choose: of hash layers, and forced ones for measurements and tests of balance."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, mint

from hpmoe.primitives.columns import top_k as best_of
from hpmoe.primitives.draw import draw
from hpmoe.primitives.outside_graphs import outside_graphs
from hpmoe.router.ids import check_values
from hpmoe.router.noise import CHOICE, seed_tensor
from hpmoe.router.scores import described
from hpmoe.support.errors import check_argument, is_int
from hpmoe.support.keywords import suggests_keywords


@suggests_keywords
def hash_ids(token_ids: Tensor, table: Tensor) -> Tensor:
    """Returns table[token_ids], the experts of each token by its vocabulary id; `router.weigh` computes their weights.

    Args:
        token_ids: [T] int32, in 0..V - 1.
        table: [V, K] int32, distinct experts of each word, or -1: `router.weigh` and `hpmoe.dispatch` check the result.

    Returns:
        [T, K] int32.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value, or a word is not in the table. A program
            raises it at the end of the call.

    Source: Roller et al., Hash layers (arXiv 2106.04426); DeepSeek-V4's `tid2eid`.

    Example:
        >>> import mindspore as ms
        >>> hash_ids(ms.Tensor([2, 0], ms.int32), ms.Tensor([[0, 1], [1, 2], [3, 0]], ms.int32)).asnumpy().tolist()
        [[3, 0], [0, 1]]
    """
    who = "hpmoe.router.hash_ids"
    outside_graphs(who)
    for name, x, rank in (("token_ids", token_ids, 1), ("table", table, 2)):
        is_one = isinstance(x, Tensor) and x.ndim == rank and x.dtype == ms.int32
        check_argument(is_one, who, name, described(x), f"an int32 Tensor {['[T]', '[V, K]'][rank - 1]}")
    num_words = table.shape[0]
    check_values(who, token_ids, lambda words, by: _check_words(words, num_words, by))
    return table[mint.clamp(token_ids, 0, num_words - 1)]


def _check_words(words: np.ndarray, num_words: int, who: str) -> None:
    """Raises ArgumentError unless each word has a row in the table."""
    outside = np.flatnonzero((words < 0) | (words >= num_words))
    if len(outside):
        check_argument(False, who, f"token_ids[{outside[0]}]", int(words[outside[0]]),
                       f"an int in 0..{num_words - 1}, a row of the table")


def _check_sizes(who: str, num_tokens: int, num_experts: int, top_k: int) -> None:
    check_argument(is_int(num_tokens, 0, 2**31 - 1), who, "num_tokens", repr(num_tokens), "an int that is not negative")
    check_argument(is_int(num_experts, 1, 2**31 - 2), who, "num_experts", repr(num_experts), "a positive int")
    check_argument(is_int(top_k, 1, num_experts), who, "top_k", repr(top_k), f"an int in 1..{num_experts}")


@suggests_keywords
def balanced_ids(num_tokens: int, num_experts: int, top_k: int) -> Tensor:
    """Returns expert ids that balance the experts to within one token: choice k of token t is (t * K + k) mod E.

    Args:
        num_tokens, num_experts, top_k: T, E and K, positive ints with K <= E; T may be 0.

    Returns:
        [num_tokens, top_k] int32, distinct for each token.

    Raises:
        ArgumentError: a size does not fit.

    Example:
        >>> balanced_ids(3, 4, 2).asnumpy().tolist()
        [[0, 1], [2, 3], [0, 1]]
    """
    _check_sizes("hpmoe.router.balanced_ids", num_tokens, num_experts, top_k)
    return Tensor((np.arange(num_tokens * top_k) % num_experts).astype(np.int32).reshape(num_tokens, top_k))


@suggests_keywords
def uniform_ids(num_tokens: int, num_experts: int, top_k: int, seed: int | Tensor | None) -> Tensor:
    """Samples expert ids: each set of top_k experts is equally probable, independently for each token.

    Args:
        num_tokens, num_experts, top_k: T, E and K, positive ints with K <= E; T may be 0.
        seed: an int, or an int32 Tensor of one element.

    Returns:
        [num_tokens, top_k] int32, distinct for each token.

    Raises:
        ArgumentError: an argument has a wrong type, shape or value.

    Example:
        >>> sorted(uniform_ids(1, 3, 3, seed=1).asnumpy()[0].tolist())
        [0, 1, 2]
    """
    who = "hpmoe.router.uniform_ids"
    outside_graphs(who)
    _check_sizes(who, num_tokens, num_experts, top_k)
    return best_of(draw(seed_tensor(who, seed), shape=(num_tokens, num_experts), stream=CHOICE), k=top_k, largest=True)[1]
