"""Tokens' rows to the places of their entries on one rank, and back to their tokens; what `hpmoe.token_ops` is made of.

An entry is a (token, choice); entry i is of token i // top_k. Its row is its place less `start`; one that is not in
0..num_rows-1 is none: nothing goes there, and zero comes back. How they run on tensors is in hpmoe.kernels.token_rows.
"""

from __future__ import annotations

import math

import numpy as np

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Builder, Equation, is_differentiable
from hpmoe.primitives.elementwise import check_weights, mul
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.row_dot import dots_for
from hpmoe.primitives.shape import reshape
from hpmoe.support.errors import check_argument

sort_indices = Primitive("sort_indices", differentiable=False)
permute_rows = Primitive("permute")
unpermute_rows = Primitive("unpermute")
expert_places = Primitive("expert_places", differentiable=False)
expert_counts = Primitive("expert_counts", differentiable=False)


# Where each entry goes.

@sort_indices.infer
def _(indices: ShapeDtypeStruct) -> ShapeDtypeStruct:
    check_argument(len(indices.shape) in (1, 2) and indices.dtype in ("int32", "int64"), "hpmoe.token_ops.permute",
                   "indices",
                   indices, "[N, K] or [N] of int32 or int64")
    return ShapeDtypeStruct((math.prod(fixed(indices.shape)),), "int32")


@sort_indices.reference
def _(indices: np.ndarray) -> np.ndarray:
    order = np.argsort(indices.reshape(-1), kind="stable")
    place = np.empty(order.size, np.int32)
    place[order] = np.arange(order.size, dtype=np.int32)
    return place


@expert_places.infer
def _(indices: ShapeDtypeStruct, *, num_experts: int, capacity: int) -> ShapeDtypeStruct:
    check_argument(len(indices.shape) == 2 and indices.dtype == "int32", "hpmoe.token_ops.init_routing", "expert_idx",
                   indices,
                   "int32 [N, K]")
    return ShapeDtypeStruct((math.prod(fixed(indices.shape)),), "int32")


@expert_places.reference
def _(indices: np.ndarray, *, num_experts: int, capacity: int) -> np.ndarray:
    """Gives each entry, in order, the next of the `capacity` rows of its expert, or -1 if no row is left."""
    check_experts(indices, num_experts)
    place = sort_indices.rules["reference"](indices)
    counts = np.bincount(indices.reshape(-1), minlength=num_experts)
    among_own = place - (np.cumsum(counts) - counts)[indices.reshape(-1)]
    return np.where(among_own < capacity, indices.reshape(-1) * capacity + among_own, -1).astype(np.int32)


@expert_counts.infer
def _(indices: ShapeDtypeStruct, *, num_experts: int, cumulative: bool) -> ShapeDtypeStruct:
    return ShapeDtypeStruct((num_experts,), "int32")


@expert_counts.reference
def _(indices: np.ndarray, *, num_experts: int, cumulative: bool) -> np.ndarray:
    check_experts(indices, num_experts)
    counts = np.bincount(indices.reshape(-1), minlength=num_experts)
    return (np.cumsum(counts) if cumulative else counts).astype(np.int32)


def check_experts(indices: np.ndarray, num_experts: int) -> None:
    """Raises ArgumentError unless all ids are those of experts."""
    if indices.size and (bad := np.argwhere((indices < 0) | (indices >= num_experts))).size:
        where = tuple(int(i) for i in bad[0])
        check_argument(False, "hpmoe.token_ops.init_routing", f"expert_idx{list(where)}", int(indices[where]),
                       f"an expert id in 0..{num_experts - 1}", f"Ids out of range: {len(bad)}.")


# Rows to their places, and back.

def _check_places(who: str, places: ShapeDtypeStruct, num_entries: int | None, top_k: int) -> None:
    check_argument(len(places.shape) == 1 and places.dtype == "int32", who, "sorted_indices", places, "int32 [N * K]",
                   "It is the second result of hpmoe.token_ops.permute.")
    given = fixed(places.shape)[0]
    fits = given == num_entries if num_entries is not None else given % top_k == 0
    check_argument(fits, who, "sorted_indices", places, f"[N * {top_k}] for the same N tokens")


@permute_rows.infer
def _(x: ShapeDtypeStruct, places: ShapeDtypeStruct, *, top_k: int, num_rows: int, start: int = 0) -> ShapeDtypeStruct:
    check_argument(len(x.shape) == 2, "hpmoe.token_ops.permute", "tokens", x, "[N, H]")
    _check_places("hpmoe.token_ops.permute", places, fixed(x.shape)[0] * top_k, top_k)
    return ShapeDtypeStruct((num_rows, x.shape[1]), x.dtype)


@unpermute_rows.infer
def _(rows: ShapeDtypeStruct, places: ShapeDtypeStruct, *probs: ShapeDtypeStruct, top_k: int,
      start: int = 0) -> ShapeDtypeStruct:
    check_argument(len(rows.shape) == 2, "hpmoe.token_ops.unpermute", "permuted", rows, "[M, H]")
    _check_places("hpmoe.token_ops.unpermute", places, None, top_k)
    num_tokens = fixed(places.shape)[0] // top_k
    for p in probs:
        check_weights("hpmoe.token_ops.unpermute", "probs", p, (num_tokens, top_k), rows.dtype)
    return ShapeDtypeStruct((num_tokens, rows.shape[1]), rows.dtype)


@permute_rows.reference
def _(x: np.ndarray, places: np.ndarray, *, top_k: int, num_rows: int, start: int = 0) -> np.ndarray:
    out, row = np.zeros((num_rows, x.shape[1]), x.dtype), places - start
    entries = np.flatnonzero((row >= 0) & (row < num_rows))
    out[row[entries]] = x[entries // top_k]
    return out


@unpermute_rows.reference
def _(rows: np.ndarray, places: np.ndarray, *probs: np.ndarray, top_k: int, start: int = 0) -> np.ndarray:
    row = (places - start).reshape(-1, top_k)
    out = np.zeros((len(row), rows.shape[1]), rows.dtype)
    for k in range(top_k):
        tokens = np.flatnonzero((row[:, k] >= 0) & (row[:, k] < len(rows)))
        found = rows[row[tokens, k]]
        out[tokens] += found * probs[0][tokens, k, None] if probs else found
    return out


@permute_rows.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    options = {"top_k": eqn.params["top_k"], "start": eqn.params.get("start", 0)}
    return [b.add(unpermute_rows, cotangents[0], eqn.inputs[1], **options), None]


@unpermute_rows.vjp
def _(b: Builder, eqn: Equation, cotangents: list[Atom]) -> list[Atom | None]:
    (rows, places, *probs), top_k = eqn.inputs, eqn.params["top_k"]
    to_rows = {"num_rows": rows.aval.shape[0], "start": eqn.params.get("start", 0)}
    received = b.add(permute_rows, cotangents[0], places, top_k=top_k, **to_rows)
    if not probs:
        return [received, None]
    scale = b.add(reshape, probs[0], shape=(places.aval.shape[0], 1))
    d_rows = b.add(mul, received, b.add(permute_rows, scale, places, top_k=1, **to_rows))
    if not is_differentiable(probs[0]):
        return [d_rows, None, None]
    dots = b.add(unpermute_rows, dots_for(b, received, rows, probs[0].aval), places, top_k=1, start=to_rows["start"])
    return [d_rows, None, b.add(reshape, dots, shape=probs[0].aval.shape)]
