"""ring_rows: tokens go round a ring of ranks, from each rank to the next, up to the ranks of their experts."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np

import hpmoe
from hpmoe.rewriting import Program, Stops, map_equations
from hpmoe.rewriting.primitives import combine, dispatch, relay, relay_back, route_to_ranks


@dataclasses.dataclass(frozen=True)
class Ring(Stops):
    """Tokens after `hops` hops: at the ranks of their experts, or `hops` ranks after their own if these are further."""

    hops: int

    def stop(self, source: np.ndarray, dest: np.ndarray) -> np.ndarray:
        return (source + np.minimum(self.hops, (dest - source) % self.ep_size)) % self.ep_size


@hpmoe.transform(requires="program", once=True, passes="both")
def ring_rows(program: Program) -> Program:
    """Sends rows from rank to rank round a ring, where each link carries a token once, and sums them on the way back.

    Rewrite, on three ranks:
        b = dispatch x a     ->  r = route_to_ranks[kind=Ring hops=1] a    s = route_to_ranks[kind=Ring hops=2] a
                                 u = dispatch x r   v = relay u r s        b = relay v s a
        e = combine d a w    ->  p = dispatch w r   q = relay p r s
                                 y = relay_back d s a q   z = relay_back y r s   e = combine z r
    """
    hops = {}

    def rule(builder, eqn):
        if eqn.primitive not in (dispatch, combine):
            return None
        rows, route, *weights = eqn.inputs
        kind = route.aval.kind
        if kind.is_of_tokens or kind.ep_size == 1:
            return None
        if route not in hops:
            hops[route] = [builder.add(route_to_ranks, route, kind=Ring, hops=n) for n in range(1, kind.ep_size)]

        def send(rows, way):
            rows = builder.add(dispatch, rows, way[0])
            for before, then in itertools.pairwise(way):
                rows = builder.add(relay, rows, before, then)
            return rows

        way = [*hops[route], route]
        if eqn.primitive is dispatch:
            return [send(rows, way)]
        there = [send(w, way[:-1]) for w in weights]
        for before, then in reversed(list(itertools.pairwise(way))):
            rows = builder.add(relay_back, rows, before, then, *(there if then is route else ()))
        return [builder.add(combine, rows, way[0])]

    return map_equations(program, rule)
