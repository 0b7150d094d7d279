"""The scheme "hierarchical" of send_rows: each token crosses to a node once, to a relay rank that passes it on there."""

from __future__ import annotations

from hpmoe.ir.avals import RouteAval, as_route
from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations
from hpmoe.primitives.dispatch import MOVES, combine_rows, dispatch_rows, routes_moved
from hpmoe.primitives.fan import route_to_ranks
from hpmoe.primitives.relay import relay, relay_back
from hpmoe.routing.kinds.stops import Hierarchical
from hpmoe.support.errors import check_argument


def hierarchical(program: Program) -> Program:
    """Sends each token's row once to each node that has experts for it; the node sends one weighted sum back.

    A rank sends to the one rank of another node that has its own place there, the relay of its tokens. Unchanged on a mesh
    of one node, or of nodes of one rank. In half precision the sum that a node sends back is rounded once more. Applied
    after `deduplicated`, a relay passes a row on to each rank once.

    Rewrite:
        b = dispatch x a      ->  r = route_to_ranks[kind=Hierarchical] a   u = dispatch x r  b = relay u r a
        e = combine d a w     ->  v = dispatch w r   s = relay_back d r a v                   e = combine s r

    Raises:
        ArgumentError: a dispatch has an expert_alignment, and `deduplicated` was not applied.

    Example:
        >>> import hpmoe
        >>> f32, i32 = (lambda *shape, dtype=dtype: hpmoe.ShapeDtypeStruct(shape, dtype) for dtype in ("float32", "int32"))
        >>> layer = f32(4, 2), i32(4, 2), f32(4, 2), f32(2, 2, 6), f32(2, 3, 2)
        >>> print(hpmoe.send_rows(hpmoe.moe_ffn, scheme="hierarchical").lower(*layer, mesh=hpmoe.Mesh(ep=4, nodes=2)))
        # moe_ffn | send_rows(scheme=hierarchical)
        { lambda hidden_states:f32[4,2] topk_ids:i32[4,2] topk_weights:f32[4,2] gate_up_weight:f32[2,2,6]
                 down_weight:f32[2,3,2]
          let a:route[R]  = route[num_local_experts=2 ep_size=4 node_size=2 max_rows=32 expected_rows=8] topk_ids
              b:route[R1] = route_to_ranks[kind=Hierarchical node_size=2] a
              c:f32[R1,2] = dispatch hidden_states b
              d:f32[R,2]  = relay c b a
              e:f32[R,6]  = grouped_matmul d gate_up_weight a
              f:f32[R,3]  = swiglu e
              g:f32[R,2]  = grouped_matmul f down_weight a
              h:f32[R1,2] = dispatch topk_weights b
              i:f32[R1,2] = relay_back g b a h
              j:f32[4,2]  = combine i b
          in (j,) : f32[4,2] }
    """
    for aval in routes_moved(program):
        check_argument(aval.alignment == 1, "send_rows", "expert_alignment of dispatch", aval.alignment,
                       "1 with scheme=\"hierarchical\": rows of padding belong to no token that could cross to a node",
                       "Write scheme=\"hierarchical+deduplicated\".")
    experts: dict[Atom, Atom] = {e.outputs[0]: e.inputs[0] for e in program.equations if e.primitive is route_to_ranks}
    relays: dict[Atom, Var] = {}
    return map_equations(program, lambda builder, eqn: _relayed(builder, eqn, experts, relays))


def can_relay(program: Program) -> bool:
    """Returns True if `hierarchical` would change the program, and can."""
    routes = routes_moved(program)
    return any(map(_has_nodes, routes)) and not any(route.kind.is_to_relays or route.alignment > 1 for route in routes)


def _has_nodes(route: RouteAval) -> bool:
    return route.node_size not in (None, 1, route.ep_size)


def _relayed(builder: Builder, eqn: Equation, experts: dict[Atom, Atom], relays: dict[Atom, Var]) -> list[Atom] | None:
    """Returns the right side of the rewrite; `experts` are the routes of routes to ranks, `relays` the routes to relays."""
    if eqn.primitive not in MOVES:
        return None
    rows, route, *weights = eqn.inputs
    of = experts.get(route, route)
    aval = as_route(of.aval)
    if as_route(route.aval).kind.is_to_relays or not _has_nodes(aval):
        return None
    if of not in relays:
        relays[of] = builder.add(route_to_ranks, of, source=eqn.source, kind=Hierarchical,
                                  node_size=aval.node_size)
    to = relays[of]
    if eqn.primitive is dispatch_rows:
        crossed = builder.add(dispatch_rows, rows, to, source=eqn.source)
        return [builder.add(relay, crossed, to, route, source=eqn.source)]
    there = [builder.add(dispatch_rows, w, to, source=eqn.source) for w in weights]
    sums = builder.add(relay_back, rows, to, route, *there, source=eqn.source)
    return [builder.add(combine_rows, sums, to, source=eqn.source)]
