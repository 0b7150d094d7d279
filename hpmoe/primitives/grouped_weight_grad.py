"""The gradient of experts' weights: of each expert, its received rows, transposed, by the gradients of its results."""

from __future__ import annotations

import numpy as np

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct
from hpmoe.ir.program import Equation
from hpmoe.primitives.matmul import accumulated, tile_weight_grad
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.routing import Route
from hpmoe.support.errors import check_argument
from hpmoe.support.known import known
from hpmoe.tile_ops import row_modes

grouped_weight_grad = Primitive("grouped_weight_grad")


def groups_of(counts: np.ndarray) -> list[tuple[int, slice]]:
    """Returns (expert, slice of its rows) for each expert with a positive count."""
    stops = np.cumsum(counts)
    return [(e, slice(int(stop - n), int(stop))) for e, (n, stop) in enumerate(zip(counts, stops, strict=True)) if n]


@grouped_weight_grad.infer
def _(x: ShapeDtypeStruct, g: ShapeDtypeStruct, route: RouteAval, *more: ShapeDtypeStruct,
      of: str | None = None) -> ShapeDtypeStruct:
    """Returns the aval of gradients of all local experts, of replicas ("replicas"), or of own experts ("owners").

    "owners" adds the gradients that ranks with replicas returned.
    """
    experts = {"owners": route.num_own_experts, "replicas": route.num_replicas}.get(of or "", route.num_local_experts)
    out = ShapeDtypeStruct((experts, x.shape[1], g.shape[1]), x.dtype)
    if of == "owners":
        returned, more = more[0], more[1:]
        expected = ShapeDtypeStruct((known(route.placement).most_copies, *out.shape[1:]), x.dtype)
        check_argument(returned == expected, "grouped_weight_grad", "returned gradients", returned, f"{expected}")
    return accumulated("grouped_weight_grad", out, more)


@grouped_weight_grad.reference
def _(x: np.ndarray, g: np.ndarray, route: Route, *more: np.ndarray, of: str | None = None) -> np.ndarray:
    counts, placement, returned, copies = route.tokens_per_expert, route.routing.placement, (), ()
    if of == "owners":
        returned, more, counts = more[0], more[1:], counts[:known(placement).num_own]
        copies = known(placement).copies[route.rank]
    groups = groups_of(counts)
    if of == "replicas":
        own = known(placement).num_own
        groups = [(e - own, rows) for e, rows in groups if e >= own]
    out = more[0].copy() if more else np.zeros(
        (known(placement).num_replicas if of == "replicas" else len(counts), x.shape[1], g.shape[1]), x.dtype)
    for copy, grad in zip(copies, returned, strict=False):
        out[copy.expert] += grad
    for e, rows in groups:
        out[e] += x[rows].T @ g[rows]
    return out


@grouped_weight_grad.tile
def _(tiler: Tiler, eqn: Equation) -> None:
    of, more = eqn.params.get("of"), eqn.inputs[3:]
    tiler.new(eqn.outputs[0])
    returned = [tiler.at(more[0], row_modes.RETURNED)] if of == "owners" else []
    tile_weight_grad(tiler, eqn, tiler.at(eqn.outputs[0]), more[len(returned):], of, returned)
