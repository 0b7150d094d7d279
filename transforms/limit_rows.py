"""limit_rows: bounds the received rows of a rank to a multiple of the rows of a balanced routing."""

from __future__ import annotations

import dataclasses

from hpmoe.ir.avals import as_route
from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations
from hpmoe.primitives.route import make_route
from hpmoe.routing.capacity import FACTOR, is_factor
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import TransformError, check_argument


def _check(rank_capacity_factor: float) -> None:
    check_argument(is_factor(rank_capacity_factor), "limit_rows", "rank_capacity_factor", repr(rank_capacity_factor), FACTOR)


@transform(requires="program", once=True, check=_check)
def limit_rows(program: Program, *, rank_capacity_factor: float) -> Program:
    """Limits each rank to ceil(rank_capacity_factor * T * K) received rows; a balanced routing sends T * K rows to a rank.

    On an NPU the host does not read the ids, so a plan has buffers for all ep * T * K rows that a rank could receive: in
    the symmetric heap, and for every value computed or saved from received rows. This transform makes that memory
    ep / rank_capacity_factor times smaller, forward and backward. Nothing is dropped. If a rank would receive more rows,
    every rank raises the same error before any row moves; the error names the rank, its rows and the limit. On an NPU the
    kernel checks the limit when it starts, and a LaunchError reports it. To drop rows instead, give `dispatch` a
    capacity_factor and a drop_policy: they also bound a rank's rows, and `drop_counts` counts dropped entries. Padding rows
    of an expert_alignment do not count towards the limit.

    Rewrite:
        a = route[...] topk_ids  ->  a = route[... rank_capacity_factor=1.5] topk_ids

    Requires: a plain function with a dispatch, or one under transforms of the traced Program.
    Ensures: bitwise the same function and gradients, if no rank exceeds the limit.

    Args:
        f: the function.
        rank_capacity_factor: limit of a rank's received rows, as a multiple of T * K, the rows of a balanced routing.

    Raises:
        ArgumentError: rank_capacity_factor is not a number from 2**-30 to 2**30; from a call, if a rank receives too many
            rows.
        LaunchError: on an NPU, raised by a later call or by `hpmoe.ranks.synchronize` if a rank received too many rows.
        TransformError: applied out of order or twice; f has no dispatch.

    Example:
        >>> import hpmoe
        >>> avals = [hpmoe.ShapeDtypeStruct(shape, "float32") for shape in [(4, 2), (4, 1), (4, 1), (2, 2, 6), (2, 3, 2)]]
        >>> avals[1] = hpmoe.ShapeDtypeStruct((4, 1), "int32")
        >>> f = hpmoe.limit_rows(hpmoe.moe_ffn, rank_capacity_factor=1.25)
        >>> print(f.lower(*avals, mesh=hpmoe.Mesh(4)))  # 16 without it
        # moe_ffn | limit_rows(rank_capacity_factor=1.25)
        { lambda hidden_states:f32[4,2] topk_ids:i32[4,1] topk_weights:f32[4,1] gate_up_weight:f32[2,2,6]
                 down_weight:f32[2,3,2]
          let a:route[R] = route[num_local_experts=2 ep_size=4 rank_capacity_factor=1.25 max_rows=5] topk_ids
              b:f32[R,2] = dispatch hidden_states a
              c:f32[R,6] = grouped_matmul b gate_up_weight a
              d:f32[R,3] = swiglu c
              e:f32[R,2] = grouped_matmul d down_weight a
              f:f32[4,2] = combine e a topk_weights
          in (f,) : f32[4,2] }
    """
    if not any(eqn.primitive is make_route for eqn in program.equations):
        raise TransformError(f"limit_rows: {program.name} has no dispatch, so no rank receives rows")
    return map_equations(program, lambda builder, eqn: _limited(builder, eqn, rank_capacity_factor)).replace(
        provenance=(*program.provenance, f"limit_rows(rank_capacity_factor={rank_capacity_factor:g})"))


def _limited(builder: Builder, eqn: Equation, factor: float) -> list[Atom] | None:
    """Adds the route with `rank_capacity_factor` to the program."""
    if eqn.primitive is not make_route:
        return None
    var = Var(dataclasses.replace(as_route(eqn.outputs[0].aval), rank_capacity_factor=float(factor)))
    builder.keep(eqn.replace(params={**eqn.params, "rank_capacity_factor": float(factor)}, outputs=(var,)))
    return [var]
