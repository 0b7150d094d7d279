"""The scheme "deduplicated" of send_rows: each token goes to a rank once, and one sum of its experts' rows comes back."""

from __future__ import annotations

from hpmoe.ir.avals import RouteAval, as_route
from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations
from hpmoe.primitives.dispatch import MOVES, combine_rows, dispatch_rows, routes_moved
from hpmoe.primitives.entry_weights import dispatch_weights
from hpmoe.primitives.fan import fan_in, fan_out, route_to_ranks
from hpmoe.routing.kinds.stops import Deduplicated


def deduplicated(program: Program) -> Program:
    """Sends each token's row once to each rank that has experts for it; the rank sends one weighted sum back.

    Unchanged if no rank can have two experts of a token, and on one rank. In half precision the sum that a rank sends back
    is rounded once more. Ids of -1 go to no rank.

    Rewrite:
        b = dispatch x a                  ->  r = route_to_ranks a      u = dispatch x r            b = fan_out u r a
        e = combine d a w                 ->  v = dispatch_weights w a  s = fan_in d r a v          e = combine s r

    Example:
        >>> import hpmoe
        >>> f32, i32 = (lambda *shape, dtype=dtype: hpmoe.ShapeDtypeStruct(shape, dtype) for dtype in ("float32", "int32"))
        >>> layer = f32(4, 2), i32(4, 2), f32(4, 2), f32(2, 2, 6), f32(2, 3, 2)
        >>> print(hpmoe.send_rows(hpmoe.moe_ffn, scheme="deduplicated").lower(*layer, mesh=hpmoe.Mesh(ep=2)))
        # moe_ffn | send_rows(scheme=deduplicated)
        { lambda hidden_states:f32[4,2] topk_ids:i32[4,2] topk_weights:f32[4,2] gate_up_weight:f32[2,2,6]
                 down_weight:f32[2,3,2]
          let a:route[R]  = route[num_local_experts=2 ep_size=2 max_rows=16] topk_ids
              b:route[R1] = route_to_ranks[kind=Deduplicated] a
              c:f32[R1,2] = dispatch hidden_states b
              d:f32[R,2]  = fan_out c b a
              e:f32[R,6]  = grouped_matmul d gate_up_weight a
              f:f32[R,3]  = swiglu e
              g:f32[R,2]  = grouped_matmul f down_weight a
              h:f32[R,1]  = dispatch_weights topk_weights a
              i:f32[R1,2] = fan_in g b a h
              j:f32[4,2]  = combine i b
          in (j,) : f32[4,2] }
    """
    ranks: dict[Atom, Var] = {}
    return map_equations(program, lambda builder, eqn: _sent_once(builder, eqn, ranks))


def _sent_once(builder: Builder, eqn: Equation, ranks: dict[Atom, Var]) -> list[Atom] | None:
    """Returns the right side of the rewrite; `ranks` has the routes to ranks that are made already."""
    if eqn.primitive not in MOVES or not _can_repeat(as_route(eqn.inputs[1].aval)):
        return None
    rows, route, *weights = eqn.inputs
    if route not in ranks:
        ranks[route] = builder.add(route_to_ranks, route, source=eqn.source, kind=Deduplicated)
    if eqn.primitive is dispatch_rows:
        sent = builder.add(dispatch_rows, rows, ranks[route], source=eqn.source)
        return [builder.add(fan_out, sent, ranks[route], route, source=eqn.source)]
    there = [builder.add(dispatch_weights, w, route, source=eqn.source) for w in weights]
    sums = builder.add(fan_in, rows, ranks[route], route, *there, source=eqn.source)
    return [builder.add(combine_rows, sums, ranks[route], source=eqn.source)]


def can_deduplicate(program: Program) -> bool:
    """Returns True if `deduplicated` would change the program."""
    return any(map(_can_repeat, routes_moved(program))) and not any(e.primitive is route_to_ranks for e in program.equations)


def _can_repeat(route: RouteAval) -> bool:
    """Returns True if a token may have two experts on one other rank and the route still sends one row for each."""
    return route.ep_size > 1 and min(route.num_choices, route.num_local_experts) > 1 and not route.kind.is_of_tokens
