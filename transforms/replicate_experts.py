"""replicate_experts: copies of hot experts on ranks with less to do; their weights are put there, their gradients back."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hpmoe.ir.avals import as_route
from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations, program_window
from hpmoe.primitives.expert import expert_bias
from hpmoe.primitives.grouped_matmul import grouped
from hpmoe.primitives.quantized_matmul import grouped_quantized
from hpmoe.primitives.replicate import replicate_weights
from hpmoe.primitives.route import make_route
from hpmoe.routing.balance import check_loads, place_replicas
from hpmoe.routing.kinds.replicated import Replicated
from hpmoe.routing.kinds.sharded import of_shards
from hpmoe.routing.placement import Placement
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import TransformError, check_argument


def _check(loads: Sequence[float], replicas: int = 1, min_load: float = 0.0) -> None:
    check_loads(loads, replicas, min_load)


@transform(requires="program", once=True, check=_check)
def replicate_experts(program: Program, *, loads: Sequence[float] | np.ndarray, replicas: int = 1,
                      min_load: float = 0.0) -> Program:
    """Gives hot experts replicas on ranks with less to do, which take a share of their rows (load balancing as in EPLB).

    `hpmoe.routing.balance.place_replicas` plans the copies from an estimate of the experts' loads. In each forward pass the
    owners put the weights of copied experts on the ranks that hold the copies, beside the dispatch and like it tile by tile;
    a matmul on rows of a copy waits for that copy. An entry's row is computed by the owner or by one copy: each rank cuts
    its entries for an expert, in their order, into one run for each, in proportion to the planned shares. In the backward
    pass the gradients of the copies are put back, and the owner's weight gradient begins with their sum.

    Results and gradients are bitwise those without replicas, except weight gradients of replicated experts: these are summed
    in another order, and in half precision a replica's part is rounded once. Replicas pay if computing their rows takes
    longer than moving their weights, and lose with small batches: `min_load` prevents these, and `hpmoe simulate --replicas`
    shows both. Quantised weights are copied with their scales.

    Rewrite:
        a = route[...] topk_ids                    c = grouped_matmul b w a
        ->
        a = route[... placement=0@1] topk_ids      d = replicate_weights w a      c = grouped_matmul b w a d

    Requires: a plain function with a dispatch, or one under transforms of the traced Program. Other
        operands of received rows, such as a scale for each column, are equal on all ranks.
    Ensures: the same function; unchanged where no rank is above the mean.

    Args:
        f: the function.
        loads: [num_experts], the expected load of each expert of all ranks, in any unit; do not count masked entries (-1).
        replicas: maximum number of replicas on each rank.
        min_load: the least load that a replica must take, in the unit of `loads`. If loads are rows of a step, use the rows
            that a rank computes in the time in which an expert's weights are sent.

    Raises:
        ArgumentError: loads are not numbers for the experts of the function, replicas is not a positive int, or min_load is
            not a number.
        TransformError: applied out of order or twice; f has no dispatch, or adds a bias for each expert.

    Example:
        >>> import hpmoe
        >>> avals = [hpmoe.ShapeDtypeStruct(shape, "float32") for shape in [(4, 2), (4, 1), (4, 1), (2, 2, 6), (2, 3, 2)]]
        >>> avals[1] = hpmoe.ShapeDtypeStruct((4, 1), "int32")
        >>> print(hpmoe.replicate_experts(hpmoe.moe_ffn, loads=[9, 1, 1, 1]).lower(*avals, mesh=hpmoe.Mesh(2)))
        # moe_ffn | replicate_experts(replicas=1)
        { lambda hidden_states:f32[4,2] topk_ids:i32[4,1] topk_weights:f32[4,1] gate_up_weight:f32[2,2,6]
                 down_weight:f32[2,3,2]
          let a:route[R]   = route[num_local_experts=2 ep_size=2 placement=0@1 max_rows=8] topk_ids
              b:f32[R,2]   = dispatch hidden_states a
              c:f32[1,2,6] = replicate_weights gate_up_weight a
              d:f32[R,6]   = grouped_matmul b gate_up_weight a c
              e:f32[R,3]   = swiglu d
              f:f32[1,3,2] = replicate_weights down_weight a
              g:f32[R,2]   = grouped_matmul e down_weight a f
              h:f32[4,2]   = combine g a topk_weights
          in (h,) : f32[4,2] }
    """
    rule = _Rule(program, loads, {"replicas": replicas, "min_load": min_load})
    out = map_equations(program, rule)
    if not rule.routes:
        raise TransformError(f"replicate_experts: {program.name} has no dispatch, so there are no experts to copy")
    return out.replace(provenance=(*program.provenance, f"replicate_experts(replicas={replicas})"))


@dataclasses.dataclass(frozen=True)
class _Rule:
    """The rewrite of an equation, with the routes and the copies of weights that are made already."""

    program: Program
    loads: Sequence[float] | np.ndarray
    options: dict[str, float]
    routes: dict[Var, Placement] = dataclasses.field(default_factory=dict)
    copies: dict[tuple[Atom, Atom], Atom] = dataclasses.field(default_factory=dict)

    def __call__(self, builder: Builder, eqn: Equation) -> list[Atom] | None:
        if eqn.primitive is make_route:
            return [_placed(builder, eqn, self.routes, self.loads, **self.options)]
        route = next((a for a in eqn.inputs if a in self.routes and self.routes[a].most_copies), None)
        if route is not None and eqn.primitive is expert_bias:
            index = next(i for i, e in enumerate(self.program.equations) if e.outputs == eqn.outputs)
            raise TransformError("replicate_experts: biases of experts are not copied; make them a row of the weights, and "
                                 f"add a column of ones to the tokens\n{program_window(self.program, index)}")
        if route is None or eqn.primitive not in (grouped, grouped_quantized):
            return None
        copies = [self._copied(builder, a, route, eqn.source) for a in (eqn.inputs[1], *eqn.inputs[3:])]
        return [builder.add(eqn.primitive, *eqn.inputs, *copies, source=eqn.source, **eqn.params)]

    def _copied(self, builder: Builder, array: Atom, route: Atom, source: str) -> Atom:
        """Returns the copies of a weight, or of its scale."""
        if (array, route) not in self.copies:
            self.copies[array, route] = builder.add(replicate_weights, array, route, source=source)
        return self.copies[array, route]


def _placed(builder: Builder, eqn: Equation, routes: dict[Var, Placement], loads: Sequence[float] | np.ndarray,
            **options: Any) -> Var:
    """Returns the route with a placement and the same received rows; the route itself if no replica pays."""
    aval = as_route(eqn.outputs[0].aval)
    check_argument(len(loads) == aval.num_model_experts, "replicate_experts", "loads", f"of {len(loads)} experts",
                   f"of the {aval.num_model_experts} of a route on {aval.ep_size} ranks")
    loads = of_shards(np.asarray(loads), aval.num_own_experts, aval.tp_size)
    placement = place_replicas(loads, ep_size=aval.ep_size, **options)
    var, params = eqn.outputs[0], eqn.params
    if placement.most_copies:
        var = Var(dataclasses.replace(aval, kind=Replicated(aval.kind.by_ids, placement)))
        params = {**eqn.params, "placement": placement}
    builder.keep(eqn.replace(params=params, outputs=(var,)))
    routes[var] = placement
    return var
