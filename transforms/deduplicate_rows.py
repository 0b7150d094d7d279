"""deduplicate_rows: a token goes to a rank once, whatever number of its experts are there, and comes back as one sum."""

from __future__ import annotations

from hpmoe.ir.avals import RouteAval, as_route
from hpmoe.ir.program import Atom, Builder, Equation, Program, Var, map_equations
from hpmoe.primitives.dispatch import MOVES, check_moves, combine_rows, dispatch_rows, routes_moved
from hpmoe.primitives.entry_weights import dispatch_weights
from hpmoe.primitives.fan import fan_in, fan_out, route_to_ranks
from hpmoe.routing.kinds.deduplicated import Deduplicated
from hpmoe.runtime.transform import transform


@transform(requires="program", once=True, passes="both")
def deduplicate_rows(program: Program) -> Program:
    """Sends each token's row once to each rank that has experts for it, and one sum of its experts' rows back.

    Without it a token's row crosses the link once for each of its experts. With it the receiving rank copies the row to the
    rows of its experts, and in combine first adds what its experts made of the token, weighted, in the order of the
    choices; the token's rank adds one row for each rank. Backward passes send and return gradients in the same way. Of K
    experts on EP ranks drawn at random, EP (1 - (1 - 1 / EP)^K) ranks are distinct: 5.3 of 8 experts at EP 8, 7.5 at EP 64.

    Results are those without it up to the order of float32 sums; in half precision, what a rank sends back is rounded once
    more. Ids of -1, which are no expert, go to no rank. It pays where links are what a layer waits for and several of a
    token's experts share a rank. The sums begin when the rank's last expert is done, so that little of the way back
    overlaps the matmuls: where these take longer than the links it costs time. `hpmoe compare dedup dedup=0` shows both.

    Rewrite:
        b = dispatch x a                  ->  r = route_to_ranks a      u = dispatch x r            b = fan_out u r a
        e = combine d a w                 ->  v = dispatch_weights w a  s = fan_in d r a v          e = combine s r

    Requires: a plain function with a dispatch or combine; transforms of the traced Program come before it.
    Ensures: the same function; unchanged where no rank can have two experts of a token, and on one rank.

    Args:
        f: the function.

    Raises:
        TransformError: applied out of order or twice; f has neither dispatch nor combine.

    Example:
        >>> import hpmoe
        >>> avals = [hpmoe.ShapeDtypeStruct(shape, "float32") for shape in [(4, 2), (4, 2), (4, 2), (2, 2, 6), (2, 3, 2)]]
        >>> avals[1] = hpmoe.ShapeDtypeStruct((4, 2), "int32")
        >>> print(hpmoe.deduplicate_rows(hpmoe.moe_ffn).lower(*avals, mesh=hpmoe.Mesh(2)))
        # moe_ffn | deduplicate_rows
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
    check_moves("deduplicate_rows", program)
    ranks: dict[Atom, Var] = {}
    return map_equations(program, lambda builder, eqn: _sent_once(builder, eqn, ranks))


def _sent_once(builder: Builder, eqn: Equation, ranks: dict[Atom, Var]) -> list[Atom] | None:
    """The right side of the rewrite; `ranks` has the routes to ranks that are made already."""
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
    """Whether `deduplicate_rows` would change the program."""
    return any(map(_can_repeat, routes_moved(program))) and not any(e.primitive is route_to_ranks for e in program.equations)


def _can_repeat(route: RouteAval) -> bool:
    """Whether a token may have two experts on another rank, and is not sent once for both already."""
    return route.ep_size > 1 and min(route.num_choices, route.num_local_experts) > 1 and not route.kind.is_of_tokens
