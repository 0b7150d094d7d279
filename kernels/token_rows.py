"""Runs the primitives of tokens' rows on tensors: natively, on all cores, in memory that is kept from call to call."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from mindspore import Tensor

from hpmoe.ir.avals import ShapeDtypeStruct, fixed
from hpmoe.kernels.memory import Pool
from hpmoe.kernels.native import Rows, load
from hpmoe.kernels.protocol import Dtype
from hpmoe.primitives.gather import gather_rows, scatter_rows
from hpmoe.primitives.outside_graphs import values_of
from hpmoe.primitives.permute import check_experts, expert_counts, expert_places, permute_rows, sort_indices, unpermute_rows
from hpmoe.primitives.route import make_route, route_of_tensors
from hpmoe.support.dtypes import widen
from hpmoe.support.errors import ProgramError, check_argument
from hpmoe.support.loading import address
from hpmoe.support.mindspore_private import Differentiable, gradient_depth, takes_gradient

WHO = "hpmoe.token_ops.permute"
MEMORY = Pool()


class Entries(NamedTuple):
    """Row of each entry (token, choice): `places` minus `start`, if in 0..num_rows - 1; see kernels/cpu/token_rows.h."""

    places: np.ndarray
    top_k: int
    num_rows: int
    start: int


def _c_rows(e: Entries) -> Rows:
    return Rows(address(e.places), len(e.places), e.top_k, e.start, e.num_rows)


def _check(code: int) -> None:
    if code < 0:
        raise MemoryError("hpmoe: no memory to move tokens' rows with")
    check_argument(code == 0, WHO, "sorted_indices", f"naming row {code - 1} twice", "distinct rows")


# In NumPy arrays.

def sorted_places(keys: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
    """Returns the place of each key in a stable sort; `order` receives the key at each place."""
    if keys.dtype != np.int32:
        keys = np.unique(keys, return_inverse=True)[1].astype(np.int32)
    keys = np.ascontiguousarray(keys.reshape(-1))
    places, scratch = MEMORY.empty(keys.shape, np.int32), MEMORY.empty(keys.shape, np.int32)
    _check(load().hpmoe_sort(address(keys), keys.size, None if order is None else address(order), address(places),
                             address(scratch)))
    return places


def spread(x: np.ndarray, e: Entries) -> np.ndarray:
    """Returns each token's row at the places of its entries."""
    out = MEMORY.empty((e.num_rows, x.shape[1]), x.dtype)
    _check(load().hpmoe_spread_rows(_c_rows(e), address(x), x.shape[1] * x.itemsize, address(out)))
    return out


def collect(rows: np.ndarray, e: Entries, weights: np.ndarray | None, dtype: str,
            first: np.ndarray | None = None) -> np.ndarray:
    """Returns each token's weighted sum of rows, [T, N]. With `first`, token t has entries first[t] .. first[t + 1] - 1."""
    num_tokens = len(e.places) // e.top_k if first is None else len(first) - 1
    out = MEMORY.empty((num_tokens, rows.shape[1]), rows.dtype)
    _check(load().hpmoe_collect_rows(_c_rows(e), None if first is None else address(first), num_tokens,
                                     None if weights is None else address(weights), Dtype[dtype.upper()], address(rows),
                                     rows.shape[1], address(out)))
    return out


def collect_grad(rows: np.ndarray, e: Entries, weights: np.ndarray, dtype: str,
                 d_out: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the gradients of `collect`: d_rows [R, N] in the dtype of rows, and d_weights [T, K] in float32.

    `rows`, `e`, `weights` and `dtype`, the dtype of rows, are the arguments of `collect`; d_out [T, N] is the gradient of
    its result.
    """
    d_rows, d_weights = MEMORY.empty(rows.shape, rows.dtype), np.empty(weights.shape, np.float32)
    _check(load().hpmoe_collect_rows_grad(_c_rows(e), address(weights), Dtype[dtype.upper()], address(rows), address(d_out),
                                          rows.shape[1], address(d_rows), address(d_weights)))
    return d_rows, d_weights


def scatter_sum(rows: np.ndarray, index: np.ndarray, num_rows: int, dtype: str) -> np.ndarray:
    """Returns out[i] = the sum of the rows whose index is i, in their order."""
    order = np.empty(len(index), np.int32)
    sorted_places(index, order)
    first = np.concatenate([[0], np.cumsum(np.bincount(index, minlength=num_rows))]).astype(np.int64)
    return collect(rows, Entries(order, 1, len(rows), 0), None, dtype, first)


# On tensors. Each operation has a forward and a backward on arrays, and a name of the dtype of what is summed.

class _Operation(Protocol):
    """Operation that moves rows of arrays, and of gradients of its results."""

    @property
    def forward(self) -> Callable[..., np.ndarray]: ...
    @property
    def backward(self) -> Callable[..., list[np.ndarray]]: ...


class _Spread(NamedTuple):
    e: Entries

    def forward(self, dtype: str, x: np.ndarray) -> np.ndarray:
        return spread(x, self.e)

    def backward(self, dtype: str, grad: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
        return [collect(grad, self.e, None, dtype)]


class _Collect(NamedTuple):
    e: Entries

    def forward(self, dtype: str, rows: np.ndarray, *probs: np.ndarray) -> np.ndarray:
        return collect(rows, self.e, _weights(probs[0]) if probs else None, dtype)

    def backward(self, dtype: str, grad: np.ndarray, rows: np.ndarray, *probs: np.ndarray) -> list[np.ndarray]:
        if not probs:
            return [spread(grad, self.e)]
        d_rows, d_probs = collect_grad(rows, self.e, _weights(probs[0]), dtype, grad)
        return [d_rows, d_probs.astype(probs[0].dtype)]


class _Gather(NamedTuple):
    index: np.ndarray

    def forward(self, dtype: str, x: np.ndarray) -> np.ndarray:
        return collect(x, Entries(self.index, 1, len(x), 0), None, dtype)

    def backward(self, dtype: str, grad: np.ndarray, x: np.ndarray) -> list[np.ndarray]:
        return [scatter_sum(grad, self.index, len(x), dtype)]


class _Scatter(NamedTuple):
    index: np.ndarray
    num_rows: int

    def forward(self, dtype: str, rows: np.ndarray) -> np.ndarray:
        return scatter_sum(rows, self.index, self.num_rows, dtype)

    def backward(self, dtype: str, grad: np.ndarray, rows: np.ndarray) -> list[np.ndarray]:
        return [collect(grad, Entries(self.index, 1, len(grad), 0), None, dtype)]


def _weights(probs: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(widen(probs), np.float32)


class _DifferentiableRows(Differentiable):
    """An operation on rows as one of autograd."""

    @staticmethod
    def forward(ctx: Any, operation: _Operation, *tensors: Tensor) -> Tensor:
        ctx.operation, ctx.arrays, ctx.dtype = operation, _arrays(tensors), _dtype(tensors[0])
        ctx.is_nested = gradient_depth() > 1
        return Tensor.from_numpy(operation.forward(ctx.dtype, *ctx.arrays))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        if ctx.is_nested:
            raise ProgramError(f"{WHO}: a gradient is taken of its gradient, which is computed natively and is not "
                               "differentiable")
        return None, *map(Tensor.from_numpy, ctx.operation.backward(ctx.dtype, *_arrays([grad]), *ctx.arrays))


def _run(operation: _Operation, *tensors: Tensor) -> Tensor:
    if takes_gradient():
        return _DifferentiableRows.apply(operation, *tensors)
    return Tensor.from_numpy(operation.forward(_dtype(tensors[0]), *_arrays(tensors)))


def _arrays(tensors: Sequence[Tensor]) -> list[np.ndarray]:
    return [np.ascontiguousarray(values_of(WHO, x)) for x in tensors]


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).lower()


def _aval(tensor: Tensor) -> ShapeDtypeStruct:
    return ShapeDtypeStruct(tuple(tensor.shape), _dtype(tensor))


def _places(tensor: Tensor) -> np.ndarray:
    return np.ascontiguousarray(values_of(WHO, tensor))


def _order(ids: np.ndarray) -> np.ndarray:
    order = np.empty(ids.size, np.int32)
    sorted_places(ids, order)
    return order


make_route.eager(functools.partial(route_of_tensors, _order))


@sort_indices.eager
def _(indices: Tensor) -> Tensor:
    sort_indices.rules["infer"](_aval(indices))
    return Tensor.from_numpy(sorted_places(values_of(WHO, indices)))


@expert_places.eager
def _(indices: Tensor, *, num_experts: int, capacity: int) -> Tensor:
    expert_places.rules["infer"](_aval(indices), num_experts=num_experts, capacity=capacity)
    ids = values_of("hpmoe.token_ops.init_routing", indices)
    check_experts(ids, num_experts)
    ids = ids.reshape(-1)
    counts = np.bincount(ids, minlength=num_experts)
    among_own = sorted_places(ids) - (np.cumsum(counts) - counts)[ids]
    return Tensor.from_numpy(np.where(among_own < capacity, ids * capacity + among_own, -1).astype(np.int32))


@expert_counts.eager
def _(indices: Tensor, *, num_experts: int, cumulative: bool) -> Tensor:
    counted = expert_counts.rules["reference"](values_of("hpmoe.token_ops.init_routing", indices), num_experts=num_experts,
                                               cumulative=cumulative)
    return Tensor.from_numpy(counted)


@permute_rows.eager
def _(x: Tensor, places: Tensor, *, top_k: int, num_rows: int, start: int = 0) -> Tensor:
    permute_rows.rules["infer"](_aval(x), _aval(places), top_k=top_k, num_rows=num_rows, start=start)
    return _run(_Spread(Entries(_places(places), top_k, num_rows, start)), x)


@unpermute_rows.eager
def _(rows: Tensor, places: Tensor, *probs: Tensor, top_k: int, start: int = 0) -> Tensor:
    unpermute_rows.rules["infer"](_aval(rows), _aval(places), *map(_aval, probs), top_k=top_k, start=start)
    return _run(_Collect(Entries(_places(places), top_k, rows.shape[0], start)), rows, *probs)


@gather_rows.eager
def _(x: Tensor, index: Tensor) -> Tensor:
    out = gather_rows.rules["infer"](_aval(x), _aval(index))
    return _run(_Gather(_index(index, x.shape[0])), x).reshape(fixed(out.shape))


@scatter_rows.eager
def _(rows: Tensor, index: Tensor, *, num_rows: int) -> Tensor:
    return _run(_Scatter(_index(index, num_rows), num_rows), rows)


def _index(index: Tensor, num_rows: int) -> np.ndarray:
    """Returns an index of rows; raises ArgumentError if it is out of range."""
    values = _places(index).reshape(-1)
    is_row = (values >= 0) & (values < num_rows)
    check_argument(bool(is_row.all()), WHO, "indices", f"an array with {values[~is_row][:1].tolist()}",
                   f"an array of ints in 0..{num_rows - 1}")
    return values.astype(np.int32)
