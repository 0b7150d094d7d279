"""RelayedRows: what relays pass on to the ranks of their nodes, and get back from them."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.routing.routing import Routing


@dataclasses.dataclass(frozen=True, eq=False)
class RelayedRows:
    """The rows of a routing as their relays see them: entry i of a relay is choice i % top_k of its row i // top_k.
    """

    source_of_row: tuple[np.ndarray, ...]  # for each rank, the relay that each received row comes from
    entry_of_row: tuple[np.ndarray, ...]  # for each rank, which of its entries each received row is
    kept: tuple[np.ndarray, ...]  # for each relay, which of its entries have a row in its node
    top_k: int  # entries of a token

    @staticmethod
    def of(routing: Routing, relays: Routing) -> RelayedRows:
        """Returns the relayed rows of a routing to experts or ranks whose tokens cross to nodes by `relays`.

        Example:
            >>> import numpy as np
            >>> from hpmoe.routing.kinds.direct import Direct
            >>> from hpmoe.routing.kinds.stops import Hierarchical
            >>> from hpmoe.routing.routing import make_routing, routing_of_tokens
            >>> ids = [np.array([[0, 3]]), np.array([[2, 3]]), np.zeros((0, 2), int), np.array([[1, 2]])]
            >>> kind = Direct(ep_size=4, num_tokens=1, num_choices=2, num_model_experts=4)
            >>> experts = make_routing(kind, ids)
            >>> rows = RelayedRows.of(experts, routing_of_tokens(Hierarchical(kind, node_size=2), experts))
            >>> [r.tolist() for r in rows.source_of_row], [e.tolist() for e in rows.entry_of_row]
            ([[0], [1], [3, 3], [2, 3]], [[0], [0], [0, 3], [1, 1]])
        """
        top_k = routing.top_k
        kept = [np.zeros(relays.num_rows(rank) * top_k, bool) for rank in range(routing.ep_size)]
        names = [_tokens(relays, rank) for rank in range(routing.ep_size)]
        from_relays, entries = [], []
        for rank in range(routing.ep_size):
            relay = relays.kind.stop(routing.source_of_row[rank], rank)
            entry = routing.entry_of_row[rank] % top_k
            for at in np.unique(relay):
                mine = relay == at
                entry[mine] += np.searchsorted(names[at], _tokens(routing, rank)[mine]) * top_k
                kept[at][entry[mine]] = True
            from_relays.append(relay)
            entries.append(entry)
        return RelayedRows(tuple(from_relays), tuple(entries), tuple(kept), top_k)


def _tokens(routing: Routing, rank: int) -> np.ndarray:
    """Returns a number for the token of each received row, ascending within each expert."""
    return routing.source_of_row[rank] * routing.max_tokens + routing.entry_of_row[rank] // routing.top_k
