"""relay_rows: a token crosses to a node once, to a relay that spreads it there, and comes back as one sum of the node."""

from __future__ import annotations

from hpmoe.ir.avals import RouteAval, as_route
from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations
from hpmoe.primitives.dispatch import MOVES, check_moves, combine_rows, dispatch_rows, routes_moved
from hpmoe.primitives.fan import route_to_ranks
from hpmoe.primitives.relay import relay, relay_back
from hpmoe.routing.kinds.hierarchical import Hierarchical
from hpmoe.runtime.transform import transform
from hpmoe.support.errors import check_argument


@transform(requires="program", once=True, passes="both")
def relay_rows(program: Program) -> Program:
    """Sends each token's row once to each node that has experts for it, and one sum of these experts' rows back.

    The mesh says what a node is: `Mesh(ep_size=16, node_size=8)`. A rank sends to the one rank of another node that has its
    own place there, the relay of its tokens, which passes rows on to the ranks of their experts. In combine the node's ranks
    send rows back to the relay; it adds those of a token, weighted, in the order of the choices, and the token's rank adds
    one row for each node. Backward passes send and return gradients in the same way. A rank is its own relay in its node.
    Of K experts on N nodes drawn at random, N (1 - (1 - 1 / N)^K) nodes are distinct: 2.0 for 8 experts on 2, 5.3 on 8.

    Received rows are the same bit for bit as without it, and so is all that is computed from them up to combine, whose
    results are the same up to the order of float32 sums; in half precision, what a node sends back is rounded once more.
    Ids of -1, and entries over capacity, go to no node. It pays where the links between nodes are what a layer waits for.
    Comes after `deduplicate_rows`, if both are applied: then a relay passes a row on to each rank once.

    Rewrite:
        b = dispatch x a      ->  r = route_to_ranks[kind=Hierarchical] a   u = dispatch x r  b = relay u r a
        e = combine d a w     ->  v = dispatch w r   s = relay_back d r a v                   e = combine s r

    Requires: a plain function with a dispatch or combine; transforms of the traced Program come before it.
    Ensures: the same function; unchanged on a mesh of one node, or of nodes of one rank.

    Args:
        f: the function.

    Raises:
        TransformError: applied out of order or twice; f has neither dispatch nor combine.
        ArgumentError: a dispatch has an expert_alignment and `deduplicate_rows` does not come before.

    Example:
        >>> import hpmoe
        >>> avals = [hpmoe.ShapeDtypeStruct(shape, "float32") for shape in [(4, 2), (4, 2), (4, 2), (2, 2, 6), (2, 3, 2)]]
        >>> avals[1] = hpmoe.ShapeDtypeStruct((4, 2), "int32")
        >>> print(hpmoe.relay_rows(hpmoe.moe_ffn).lower(*avals, mesh=hpmoe.Mesh(4, node_size=2)))
        # moe_ffn | relay_rows
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
    check_moves("relay_rows", program)
    for aval in routes_moved(program):
        check_argument(aval.alignment == 1, "relay_rows", "expert_alignment of dispatch", aval.alignment,
                       "1: a row of padding is of no token that could cross to a node")
    experts: dict[Atom, Atom] = {e.outputs[0]: e.inputs[0] for e in program.equations if e.primitive is route_to_ranks}
    relays: dict[Atom, Var] = {}
    return map_equations(program, lambda builder, eqn: _relayed(builder, eqn, experts, relays))


def can_relay(program: Program) -> bool:
    """Whether `relay_rows` would change the program, and can."""
    routes = routes_moved(program)
    return any(map(_has_nodes, routes)) and not any(route.kind.is_to_relays or route.alignment > 1 for route in routes)


def _has_nodes(route: RouteAval) -> bool:
    return route.node_size not in (None, 1, route.ep_size)


def _relayed(builder: Builder, eqn: Equation, experts: dict[Atom, Atom], relays: dict[Atom, Var]) -> list[Atom] | None:
    """The right side of the rewrite; `experts` has the routes that those to ranks are made of, `relays` the routes to relays
    that are made already."""
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
