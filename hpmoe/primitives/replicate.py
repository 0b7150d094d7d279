"""Copies of experts' weights on other ranks, and the copies' gradients on their way back to the owners."""

from __future__ import annotations

import numpy as np

from hpmoe.ir.avals import RouteAval, ShapeDtypeStruct, fixed
from hpmoe.ir.program import Atom, Equation
from hpmoe.ir.tile_op import Access
from hpmoe.primitives.primitive import Primitive
from hpmoe.primitives.tiler import Tiler
from hpmoe.routing.routing import Route
from hpmoe.support.errors import check_argument
from hpmoe.support.known import known
from hpmoe.tile_ops import col_modes, row_modes
from hpmoe.tile_ops.params import MatrixBlock
from hpmoe.tile_ops.transfers import REPLICATE, RETURN_GRADS

replicate_weights = Primitive("replicate_weights", collective=True)
return_weight_grads = Primitive("return_weight_grads", collective=True)
replicate_weights.tile(lambda tiler, eqn: tile_copies(tiler, eqn, back=False))
return_weight_grads.tile(lambda tiler, eqn: tile_copies(tiler, eqn, back=True))


def check_placed(who: str, route: RouteAval) -> None:
    """Raises ArgumentError unless the route knows of copies."""
    check_argument(isinstance(route, RouteAval) and route.placement is not None, who, "route", route,
                   "a route with a placement of copies", "hpmoe.replicate_experts gives it one.")


@replicate_weights.infer
def _(w: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    check_placed("replicate_weights", route)
    check_argument(len(w.shape) in (2, 3) and w.shape[0] == route.num_own_experts, "replicate_weights", "weight", w,
                   f"[{route.num_own_experts}, K, N] or [{route.num_own_experts}, N], a matrix or a row for each expert of "
                   "the rank")
    return ShapeDtypeStruct((route.num_replicas, *w.shape[1:]), w.dtype)


@replicate_weights.reference
def _(weights: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    placement = known(routes[0].routing.placement)
    out = [np.zeros((placement.num_replicas, *w.shape[1:]), w.dtype) for w in weights]
    for owner, copies in enumerate(placement.copies):
        for expert, host, slot in copies:
            out[host][slot] = weights[owner][expert]
    return out


@return_weight_grads.infer
def _(grads: ShapeDtypeStruct, route: RouteAval) -> ShapeDtypeStruct:
    check_placed("return_weight_grads", route)
    check_argument(len(grads.shape) == 3 and grads.shape[0] == route.num_replicas, "return_weight_grads", "gradients", grads,
                   f"[{route.num_replicas}, K, N], a matrix for each copy on the rank")
    return ShapeDtypeStruct((known(route.placement).most_copies, *grads.shape[1:]), grads.dtype)


@return_weight_grads.reference
def _(grads: list[np.ndarray], routes: list[Route]) -> list[np.ndarray]:
    placement = known(routes[0].routing.placement)
    out = [np.zeros((placement.most_copies, *g.shape[1:]), g.dtype) for g in grads]
    for owner, copies in enumerate(placement.copies):
        for i, (_, host, slot) in enumerate(copies):
            out[owner][i] = grads[host][slot]
    return out


def tile_copies(tiler: Tiler, eqn: Equation, back: bool) -> None:
    """Moves matrices to the ranks that hold replicas, or from them, with one task for all of a rank's.

    Its params are the rows that a task moves of a matrix, and those of a matrix.
    """
    (source, route), out = eqn.inputs, eqn.outputs[0]
    tiler.new(out, dtype=tiler.buffer(source).dtype)
    primitive, height = RETURN_GRADS if back else REPLICATE, fixed(out.aval.shape)[-2] if len(out.aval.shape) > 2 else 1
    to, of = (row_modes.RETURNED, row_modes.REPLICA) if back else (row_modes.REPLICA, row_modes.ALL)
    moved = Access(_of_matrices(tiler, out), to, col_modes.ALL), Access(_of_matrices(tiler, source), of, col_modes.ALL)
    tiler.emit(primitive, tiler.once(route), *moved, cols=0, params=MatrixBlock(height, height))


def _of_matrices(tiler: Tiler, x: Atom) -> int:
    """Returns the buffer of a matrix for each expert; a row for each expert counts as a matrix of one row."""
    if len(x.aval.shape) > 2:
        return tiler.at(x, dtypes=(*tiler.MOVED, "int8")).buffer
    experts, *cols = fixed(x.aval.shape)
    return tiler.view(tiler.at(x, dtypes=tiler.MOVED).buffer, x, (experts, 1, *cols), cols[0], experts)
