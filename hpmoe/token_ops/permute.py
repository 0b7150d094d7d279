"""permute and unpermute: tokens' rows sorted by expert on one rank, and back to their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from mindspore import Tensor

from hpmoe.primitives.gather import gather_rows, scatter_rows
from hpmoe.primitives.in_float32 import in_float32
from hpmoe.primitives.permute import permute_rows, sort_indices, unpermute_rows
from hpmoe.primitives.route import check_tensor
from hpmoe.support.errors import check_argument, check_flags, is_int
from hpmoe.support.known import known
from hpmoe.token_ops import checks
from hpmoe.token_ops.operator import operator
from hpmoe.tracing.calls import call
from hpmoe.tracing.tracer import Trace


@operator
def permute(tokens: Tensor, indices: Tensor, num_out_tokens: int = 0, padded_mode: bool = False) -> tuple[Tensor, Tensor]:
    """Copies each token's row once for each of its experts, the copies sorted stably by expert.

    With S = argsort(argsort(indices, stable)): out[S[i]] = tokens[i // K]. The gradient of a token is the sum of the
    gradients of its rows, in the order of its choices.

    Args:
        tokens: [N, H] float32, float16 or bfloat16.
        indices: [N, K] or [N], int32 or int64, the experts of each token; K is at most 512 and N * K at most 16,777,214. In
            padded mode [E, C], the token of each row of each expert.
        num_out_tokens: number of sorted rows to keep, the first ones; 0 keeps all.
        padded_mode: True if each expert has C rows, whose tokens are `indices` [E, C]; then nothing is sorted.

    Returns:
        (permuted, sorted_indices): rows [N * K, H], or [num_out_tokens, H], and int32 [N * K], the place of each
        (token, choice) among the sorted rows. In padded mode rows [E * C, H], and their tokens, int32 [E * C].

    Raises:
        ArgumentError: shapes or dtypes do not fit, or a limit is exceeded.

    Source: CANN's MoeTokenPermute; padded mode: Megatron-LM.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, experts = ms.Tensor([[1.0], [2.0]]), ms.Tensor(np.array([[1, 0], [0, 2]], np.int32))
        >>> permuted, sorted_indices = hpmoe.token_ops.permute(x, experts)
        >>> permuted.asnumpy()[:, 0].tolist(), sorted_indices.asnumpy().tolist()
        ([1.0, 2.0, 1.0, 2.0], [2, 0, 1, 3])
    """
    who = "hpmoe.token_ops.permute"
    checks.check_rows(who, "tokens", tokens)
    check_flags(who, padded_mode=padded_mode)
    if padded_mode:
        return _pick_tokens(who, tokens, indices, num_out_tokens)
    top_k = checks.check_choices(who, "indices", indices, tokens)
    entries = indices.shape[0] * top_k
    checks.check_count(who, "num_out_tokens", num_out_tokens, entries)
    places = sort_indices(indices)
    return permute_rows(tokens, places, top_k=top_k, num_rows=num_out_tokens or entries), places


@operator
def unpermute(permuted: Tensor, sorted_indices: Tensor, probs: Tensor | None = None, padded_mode: bool = False,
              restore_shape: tuple[int, int] | None = None) -> Tensor:
    """Brings permuted rows back to their tokens and sums each token's rows, weighted by `probs`, in the order of choices.

    Args:
        permuted: [M, H] float32, float16 or bfloat16, the first M sorted rows; the rest count as zero.
        sorted_indices: int32 [N * K], the second result of `permute`.
        probs: optional [N, K] of the dtype of `permuted`, or float32; without it K is 1 and rows are only moved. In padded
            mode [E, C], without it all 1.
        padded_mode: whether `permute` was in padded mode.
        restore_shape: (N, H), given only in padded mode.

    Returns:
        [N, H], out[i] = sum over j of probs[i, j] * permuted[sorted_indices[i * K + j]], summed in float32 and rounded once.

    Raises:
        ArgumentError: shapes or dtypes do not fit, or a limit is exceeded.

    Source: CANN's MoeTokenUnpermute; padded mode: Megatron-LM.

    Example:
        >>> import mindspore as ms, numpy as np, hpmoe
        >>> x, experts = ms.Tensor([[1.0], [2.0]]), ms.Tensor(np.array([[1, 0], [0, 2]], np.int32))
        >>> permuted, sorted_indices = hpmoe.token_ops.permute(x, experts)
        >>> hpmoe.token_ops.unpermute(permuted, sorted_indices, ms.Tensor([[1.0, 1.0], [0.5, 2.0]])).asnumpy().tolist()
        [[2.0], [5.0]]
    """
    who = "hpmoe.token_ops.unpermute"
    checks.check_rows(who, "permuted", permuted)
    check_flags(who, padded_mode=padded_mode)
    check_argument(padded_mode or restore_shape is None, who, "restore_shape", restore_shape,
                   "None without padded_mode=True")
    if padded_mode:
        return _sum_picked(who, permuted, sorted_indices, probs, restore_shape)
    if probs is None:
        checks.check_places(who, sorted_indices, 1)
        return unpermute_rows(permuted, sorted_indices, top_k=1)
    top_k = checks.check_probs(who, probs)
    checks.check_places(who, sorted_indices, top_k)
    return unpermute_rows(permuted, sorted_indices, probs, top_k=top_k)


def _pick_tokens(who: str, tokens: Tensor, indices: Tensor, num_out_tokens: int) -> tuple[Tensor, Tensor]:
    check_tensor(who, "indices", indices)
    check_argument(len(indices.shape) == 2 and str(indices.dtype).lower() == "int32", who, "indices",
                   f"{indices.dtype} of shape {tuple(indices.shape)}", "int32 [E, C] with padded_mode=True")
    check_argument(is_int(num_out_tokens, 0, 0), who, "num_out_tokens", num_out_tokens, "0 with padded_mode=True")
    checks.check_entries(who, "indices", indices)
    picked = indices.reshape(-1)
    return gather_rows(tokens, checks.checked_rows(who, "indices", picked, tokens.shape[0])), picked


def _sum_picked(who: str, permuted: Tensor, picked: Tensor, probs: Tensor | None, shape: Sequence[int] | None) -> Tensor:
    checks.check_places(who, picked, 1)
    rows, cols = permuted.shape
    is_shape = isinstance(shape, (tuple, list)) and len(shape) == 2 and is_int(shape[0]) and shape[1] == cols
    check_argument(is_shape, who, "restore_shape", shape, f"(N, {cols}) with padded_mode=True")
    check_argument(picked.shape[0] == rows, who, "sorted_indices", f"of shape {tuple(picked.shape)}", f"of shape ({rows},)",
                   f"permuted has {rows} rows, and each row needs one index.")
    picked = checks.checked_rows(who, "sorted_indices", picked, known(shape)[0])
    if probs is None:
        return scatter_rows(permuted, picked, num_rows=known(shape)[0])
    check_tensor(who, "probs", probs)
    check_argument(len(probs.shape) == 2 and probs.shape[0] * probs.shape[1] == rows, who, "probs",
                   f"of shape {tuple(probs.shape)}", f"[E, C] with E * C = {rows}")
    return scatter_rows(_scaled(permuted, probs.reshape(-1, 1)), picked, num_rows=known(shape)[0])


@in_float32
def _scaled(rows: Tensor, factors: Tensor) -> Tensor:
    return rows * factors


# MindSpore's own operators, which run on Ascend alone: a trace records these instead.

@call("MoeTokenPermute")
def moe_token_permute(recorder: Trace, tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None,
                      padded_mode: bool = False) -> Tensor:
    return permute(tokens, indices, num_out_tokens or 0, padded_mode)


@call("MoeTokenUnpermute")
def moe_token_unpermute(recorder: Trace, permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None,
                        padded_mode: bool = False, restore_shape: tuple[int, int] | None = None) -> Tensor:
    return unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)
