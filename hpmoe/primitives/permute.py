"""Permute and unpermute: tokens' rows sorted by expert on one rank, and back to their tokens."""

from __future__ import annotations

import math

import numpy as np
from mindspore import Tensor, mint, ops

from hpmoe.ir.avals import Aval, fixed
from hpmoe.ir.program import Atom, Builder, Equation
from hpmoe.primitives.differentiable import is_differentiable
from hpmoe.primitives.elementwise import check_weights, mul
from hpmoe.primitives.in_float32 import in_float32
from hpmoe.primitives.outside_graphs import outside_graphs, values_of
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.route import check_tensor
from hpmoe.primitives.row_dot import dots_for
from hpmoe.primitives.shape import reshape
from hpmoe.support.errors import check_argument, is_int

sort_indices = Primitive("sort_indices")
permute_rows = Primitive("permute")
unpermute_rows = Primitive("unpermute")


def permute(tokens: Tensor, indices: Tensor, num_out_tokens: int = 0, padded_mode: bool = False) -> tuple[Tensor, Tensor]:
    """Copies each token's row once for each of its experts, the copies sorted stably by expert.

    Ids are sorted as numbers. So an id of -1, which is no expert to `hpmoe.dispatch`, has a row here, before those of expert
    0. To leave such entries out give them an id past the last expert, and `num_out_tokens` the number of the others:
    `unpermute` takes the rows that are cut off for zero.

    Args:
        tokens: [N, H].
        indices: [N, K] or [N], int32 or int64, the experts of each token.
        num_out_tokens: how many of the sorted rows to keep, the first ones; 0 keeps all.
        padded_mode: must be False.

    Returns:
        (permuted, sorted_indices): rows [N * K, H], or [num_out_tokens, H], and int32 [N * K], the place of each
        (token, choice) among the sorted rows.

    Raises:
        ArgumentError: shapes or dtypes do not fit, or padded_mode is set.

    Example:
        >>> import mindspore as ms, numpy as np
        >>> x, experts = ms.Tensor([[1.0], [2.0]]), ms.Tensor(np.array([[1, 0], [0, 2]], np.int32))
        >>> permuted, sorted_indices = permute(x, experts)
        >>> permuted.asnumpy()[:, 0].tolist(), sorted_indices.asnumpy().tolist()
        ([1.0, 2.0, 1.0, 2.0], [2, 0, 1, 3])
        >>> permute(x, ms.Tensor(np.array([[1, 3], [0, 3]], np.int32)), num_out_tokens=2)[0].asnumpy()[:, 0].tolist()
        [2.0, 1.0]
    """
    outside_graphs("hpmoe.permute")
    check_argument(not padded_mode, "hpmoe.permute", "padded_mode", padded_mode, "False",
                   "Padded routing needs the capacity of each expert; permute keeps every row.")
    check_tensor("hpmoe.permute", "tokens", tokens)
    check_tensor("hpmoe.permute", "indices", indices)
    check_argument(len(indices.shape) in (1, 2), "hpmoe.permute", "indices", f"of shape {tuple(indices.shape)}",
                   "[N, K] or [N]")
    top_k = indices.shape[1] if len(indices.shape) == 2 else 1
    entries = indices.shape[0] * top_k
    check_argument(is_int(num_out_tokens, least=0, most=entries), "hpmoe.permute",
                   "num_out_tokens", num_out_tokens, f"an int in 0..{entries}")
    order = sort_indices(indices)
    return permute_rows(tokens, order, top_k=top_k, num_rows=num_out_tokens or entries), order


def unpermute(permuted: Tensor, sorted_indices: Tensor, probs: Tensor | None = None) -> Tensor:
    """Brings permuted rows back to their tokens and sums each token's rows, weighted by `probs`.

    Args:
        permuted: [M, H], the first M sorted rows; the rest count as zero.
        sorted_indices: int32 [N * K], the second result of `permute`.
        probs: optional [N, K] of the dtype of `permuted`, or float32; without it K is 1 and rows are only moved.

    Returns:
        [N, H], out[i] = sum over j of probs[i, j] * permuted[sorted_indices[i * K + j]].

    Raises:
        ArgumentError: shapes or dtypes do not fit.

    Example:
        >>> import mindspore as ms, numpy as np
        >>> x, experts = ms.Tensor([[1.0], [2.0]]), ms.Tensor(np.array([[1, 0], [0, 2]], np.int32))
        >>> permuted, sorted_indices = permute(x, experts)
        >>> unpermute(permuted, sorted_indices, ms.Tensor([[1.0, 1.0], [0.5, 2.0]])).asnumpy().tolist()
        [[2.0], [5.0]]
    """
    outside_graphs("hpmoe.unpermute")
    for argument, given in (("permuted", permuted), ("sorted_indices", sorted_indices)):
        check_tensor("hpmoe.unpermute", argument, given)
    if probs is None:
        return unpermute_rows(permuted, sorted_indices, top_k=1)
    check_tensor("hpmoe.unpermute", "probs", probs)
    check_argument(len(probs.shape) == 2, "hpmoe.unpermute", "probs", f"of shape {tuple(probs.shape)}", "[N, K]")
    return unpermute_rows(permuted, sorted_indices, probs, top_k=probs.shape[1])


# Where each entry goes.

@sort_indices.infer
def _(indices: Aval) -> Aval:
    check_argument(len(indices.shape) in (1, 2) and indices.dtype in ("int32", "int64"), "hpmoe.permute", "indices",
                   indices, "[N, K] or [N] of int32 or int64")
    return Aval((math.prod(fixed(indices.shape)),), "int32")


@sort_indices.reference
def _(indices: np.ndarray) -> np.ndarray:
    order = np.argsort(indices.reshape(-1), kind="stable")
    place = np.empty(order.size, np.int32)
    place[order] = np.arange(order.size, dtype=np.int32)
    return place


@sort_indices.eager
def _(indices: Tensor) -> Tensor:
    sort_indices.rules["infer"](Aval(tuple(indices.shape), str(indices.dtype).lower()))
    return Tensor(sort_indices.rules["reference"](values_of("hpmoe.permute", indices)))


@sort_indices.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [None]


# Rows to their places, and back.

def _check_places(who: str, places: Aval, num_entries: int | None, top_k: int) -> None:
    check_argument(len(places.shape) == 1 and places.dtype == "int32", who, "sorted_indices", places, "int32 [N * K]",
                   "It is the second result of hpmoe.permute.")
    given = fixed(places.shape)[0]
    fits = given == num_entries if num_entries is not None else given % top_k == 0
    check_argument(fits, who, "sorted_indices", places, f"[N * {top_k}] for the same N tokens")


@permute_rows.infer
def _(x: Aval, places: Aval, *, top_k: int, num_rows: int) -> Aval:
    check_argument(len(x.shape) == 2, "hpmoe.permute", "tokens", x, "[N, H]")
    _check_places("hpmoe.permute", places, fixed(x.shape)[0] * top_k, top_k)
    return Aval((num_rows, x.shape[1]), x.dtype)


@unpermute_rows.infer
def _(rows: Aval, places: Aval, *probs: Aval, top_k: int) -> Aval:
    check_argument(len(rows.shape) == 2, "hpmoe.unpermute", "permuted", rows, "[M, H]")
    _check_places("hpmoe.unpermute", places, None, top_k)
    num_tokens = fixed(places.shape)[0] // top_k
    for p in probs:
        check_weights("hpmoe.unpermute", "probs", p, (num_tokens, top_k), rows.dtype)
    return Aval((num_tokens, rows.shape[1]), rows.dtype)


def _entry_of_row(places: np.ndarray, num_rows: int) -> np.ndarray:
    entries = np.empty(places.size, np.int32)
    entries[places] = np.arange(places.size, dtype=np.int32)
    return entries[:num_rows]


@permute_rows.reference
def _(x: np.ndarray, places: np.ndarray, *, top_k: int, num_rows: int) -> np.ndarray:
    return x[_entry_of_row(places, num_rows) // top_k]


@unpermute_rows.reference
def _(rows: np.ndarray, places: np.ndarray, *probs: np.ndarray, top_k: int) -> np.ndarray:
    entries = np.zeros((places.size, rows.shape[1]), rows.dtype)
    kept = places < len(rows)
    entries[kept] = rows[places[kept]]
    entries = entries.reshape(-1, top_k, rows.shape[1])
    return (entries * probs[0][:, :, None] if probs else entries).sum(axis=1)


def _aval(tensor: Tensor) -> Aval:
    return Aval(tuple(tensor.shape), str(tensor.dtype).lower())


@permute_rows.eager
def _(x: Tensor, places: Tensor, *, top_k: int, num_rows: int) -> Tensor:
    permute_rows.rules["infer"](_aval(x), _aval(places), top_k=top_k, num_rows=num_rows)
    if num_rows == 0:
        return mint.zeros((0, x.shape[1]), dtype=x.dtype)
    return in_float32(ops.gather)(x, Tensor(_entry_of_row(values_of("hpmoe.permute", places), num_rows) // top_k), 0)


@unpermute_rows.eager
def _(rows: Tensor, places: Tensor, *probs: Tensor, top_k: int) -> Tensor:
    out = unpermute_rows.rules["infer"](_aval(rows), _aval(places), *map(_aval, probs), top_k=top_k)
    if 0 in (*out.shape, rows.shape[0]):
        return mint.zeros(out.shape, dtype=rows.dtype)
    return _sum_choices(rows, values_of("hpmoe.unpermute", places), *probs, shape=out.shape, top_k=top_k)


@in_float32
def _sum_choices(rows: Tensor, place: np.ndarray, *probs: Tensor, shape: tuple[int, int], top_k: int) -> Tensor:
    entries = ops.gather(rows, Tensor(np.minimum(place, len(rows) - 1)), 0)
    if (place >= len(rows)).any():
        entries = entries * Tensor((place < len(rows))[:, None]).astype(rows.dtype)
    entries = entries.reshape(shape[0], top_k, shape[1])
    return mint.sum(entries * mint.unsqueeze(probs[0], -1) if probs else entries, 1)


@permute_rows.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    return [b.add(unpermute_rows, cotangents[0], eqn.inputs[1], top_k=eqn.params["top_k"]), None]


@unpermute_rows.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    (rows, places, *probs), top_k = eqn.inputs, eqn.params["top_k"]
    num_rows = rows.aval.shape[0]
    received = b.add(permute_rows, cotangents[0], places, top_k=top_k, num_rows=num_rows)
    if not probs:
        return [received, None]
    scale = b.add(reshape, probs[0], shape=(places.aval.shape[0], 1))
    d_rows = b.add(mul, received, b.add(permute_rows, scale, places, top_k=1, num_rows=num_rows))
    if not is_differentiable(probs[0]):
        return [d_rows, None, None]
    dots = b.add(unpermute_rows, dots_for(b, received, rows, probs[0].aval), places, top_k=1)
    return [d_rows, None, b.add(reshape, dots, shape=probs[0].aval.shape)]
