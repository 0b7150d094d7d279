"""permute_with_ep and unpermute_with_ep: of the sorted rows those of one range, such as those of a rank's experts."""

from __future__ import annotations

from mindspore import Tensor

from hpmoe.primitives.permute import permute_rows, sort_indices, unpermute_rows
from hpmoe.support.errors import check_argument
from hpmoe.token_ops import checks
from hpmoe.token_ops.operator import operator


@operator
def permute_with_ep(tokens: Tensor, indices: Tensor, probs: Tensor | None = None,
                    range: tuple[int, int] | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Permutes tokens by expert like `hpmoe.token_ops.permute` and returns sorted rows start to end - 1 with their probs.

    With S = argsort(argsort(indices, stable)): out[S[i] - start] = tokens[i // K] for start <= S[i] < end. Gradients are
    gathered inside the range and zero outside.

    Args:
        tokens: [N, H] float32, float16 or bfloat16.
        indices: [N, K] or [N], int32 or int64, the experts of each token; K is at most 512 and N * K at most 16,777,214.
        probs: optional, of the shape of `indices`, float32, float16 or bfloat16, permuted as the rows are.
        range: (start, end) with 0 <= start <= end <= N * K; None or () is all.

    Returns:
        (permuted, sorted_indices, permuted_probs): rows [end - start, H]; int32 [N * K], the place of each entry among all
        sorted rows; probs [end - start], or None without probs.

    Raises:
        ArgumentError: shapes or dtypes do not fit, or a limit is exceeded.

    Source: CANN's MoeTokenPermuteWithEp.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, experts = ms.Tensor([[1.0], [2.0]]), ms.Tensor(np.array([[1, 0], [0, 2]], np.int32))
        >>> permuted, places, probs = hpmoe.token_ops.permute_with_ep(x, experts, ms.Tensor([[0.5, 0.25], [0.75, 1.0]]),
        ...                                                           (1, 3))
        >>> permuted.asnumpy()[:, 0].tolist(), places.asnumpy().tolist(), probs.asnumpy().tolist()
        ([2.0, 1.0], [2, 0, 1, 3], [0.75, 0.5])
    """
    who = "hpmoe.token_ops.permute_with_ep"
    checks.check_rows(who, "tokens", tokens)
    top_k = checks.check_choices(who, "indices", indices, tokens)
    start, end = checks.check_range(who, range, indices.shape[0] * top_k)
    places = sort_indices(indices)
    permuted = permute_rows(tokens, places, top_k=top_k, num_rows=end - start, start=start)
    if probs is None:
        return permuted, places, None
    check_argument(getattr(probs, "shape", None) == indices.shape, who, "probs", f"of shape {getattr(probs, 'shape', None)}",
                   f"{list(indices.shape)}, as indices")
    column = probs.reshape(-1, 1)
    checks.check_rows(who, "probs", column)
    return permuted, places, permute_rows(column, places, top_k=1, num_rows=end - start, start=start).reshape(-1)


@operator
def unpermute_with_ep(permuted: Tensor, sorted_indices: Tensor, probs: Tensor | None = None,
                      range: tuple[int, int] | None = None) -> Tensor:
    """Inverts `hpmoe.token_ops.permute_with_ep`: sums each token's rows, weighted by `probs`, in the order of choices.

    Entries outside the range contribute zero.

    Args:
        permuted: [end - start, H] float32, float16 or bfloat16.
        sorted_indices: int32 [N * K], the second result of `permute_with_ep`.
        probs: optional [N, K] of the dtype of `permuted`, or float32; without it K is 1 and rows are only moved.
        range: (start, end), as given to `permute_with_ep`; None or () is all.

    Returns:
        [N, H], out[i] = sum over j with start <= S[i * K + j] < end of probs[i, j] * permuted[S[i * K + j] - start].

    Raises:
        ArgumentError: shapes or dtypes do not fit, or a limit is exceeded.

    Source: CANN's MoeTokenUnpermuteWithEp.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> places = ms.Tensor(np.array([2, 0, 1, 3], np.int32))
        >>> probs = ms.Tensor([[0.5, 1.0], [2.0, 1.0]])
        >>> hpmoe.token_ops.unpermute_with_ep(ms.Tensor([[10.0], [20.0]]), places, probs, (1, 3)).asnumpy().tolist()
        [[10.0], [20.0]]
    """
    who = "hpmoe.token_ops.unpermute_with_ep"
    checks.check_rows(who, "permuted", permuted)
    top_k = 1 if probs is None else checks.check_probs(who, probs)
    checks.check_places(who, sorted_indices, top_k)
    start, end = checks.check_range(who, range, sorted_indices.shape[0])
    is_all = range is None or not range
    check_argument(is_all or permuted.shape[0] == end - start, who, "permuted", f"of shape {tuple(permuted.shape)}",
                   f"[{end - start}, H], a row for each place of the range")
    return unpermute_rows(permuted, sorted_indices, *(() if probs is None else (probs,)), top_k=top_k, start=start)
