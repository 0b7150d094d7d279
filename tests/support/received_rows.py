"""The rows that every rank receives through every route of a taskflow for one routing, told one by one.

Nothing here uses the library's own routing.
"""

import math

import numpy as np

from hpmoe.routing.kinds.stops import Deduplicated, Hierarchical

ZEROS = -1  # instead of an entry


class ReceivedRows:
    """Which entries are kept, and where each goes.

    Attributes:
        tokens: of each rank.
        kept: for each route and rank, the entries that have a row; of a route to ranks {entry: rank}.
        received: for each route and rank, what `_receive` says.
    """

    def __init__(self, flow, ids, num_tokens=None, weights=None):
        self.flow, self.ranks = flow, range(flow.ep_size)
        tokens = [len(ids[0][r]) for r in self.ranks] if ids else [None] * flow.ep_size
        self.tokens = list(num_tokens) if num_tokens is not None else tokens
        self.has_padding = num_tokens is not None
        self.kept, self.received = [], []
        for i, plan in enumerate(flow.routes):
            self.kept.append(self._first_of_each_rank(plan) if plan.kind.is_of_tokens else self._keep(plan, ids[i], weights))
            self.received.append(self._receive(plan, ids[i], self.kept[i]))

    def _keep(self, plan, ids, weights):
        """For each rank the entries of experts that are not dropped: of each the first, or the heaviest, that fit."""
        out = []
        for rank in self.ranks:
            flat = np.asarray(ids[rank][:self.tokens[rank]]).reshape(-1)
            kept = {i for i, e in enumerate(flat) if e >= 0}
            if plan.capacity is not None:
                share = math.ceil(len(flat) / plan.num_experts * plan.capacity.factor)
                for expert in range(plan.num_experts):
                    chose = [i for i, e in enumerate(flat) if e == expert]
                    if plan.capacity.policy == "probs":
                        chose.sort(key=lambda i: -np.asarray(weights[rank]).reshape(-1)[i])
                    kept -= set(chose[share:])
            out.append(kept)
        return out

    def _first_of_each_rank(self, plan):
        """For each rank {entry: rank} of the entries that stand for a token on a rank, or for a relay in a node, that has
        experts for it."""
        out = [{} for _ in self.ranks]
        rows = [(entry, source, d) for d in self.ranks for _, source, entry in self.received[plan.of][d][0]
                if entry != ZEROS]
        for entry, source, d in sorted(rows):
            to = self.stop(plan.kind, source, d)
            token = range(entry // plan.top_k * plan.top_k, entry)
            if not any(out[source].get(e) == to for e in token):
                out[source][entry] = to
        return out

    @staticmethod
    def stop(kind, source, rank):
        """The rank that a row of `source` for experts on `rank` comes to: of nodes, that of `rank`'s node that is where
        `source` is in its own. A kind that the library does not know says it itself."""
        if not isinstance(kind, Hierarchical):
            return rank if isinstance(kind, Deduplicated) else int(kind.stop(source, rank))
        node_size = kind.node_size
        return next(r for r in range(rank - rank % node_size, rank + 1 + node_size) if r % node_size == source % node_size)

    def relayed(self, route, owner, row):
        """(relay, entry there) of a received row of a route that relays pass on."""
        to, top_k = self.flow.routes[route].over, self.flow.routes[route].top_k
        plan = self.flow.routes[to]
        _, source, entry = self.received[route][owner][0][row]
        at = self.stop(plan.kind, source, owner)
        token = [(s, e // plan.top_k) for _, s, e in self.received[to][at][0]].index((source, entry // top_k))
        return at, token * top_k + entry % top_k

    def fan(self, rank, route, tokens):
        """The rows of a rank's experts that are of the tokens that some received rows of a route to ranks are."""
        plan, (rows, _) = self.flow.routes[route], self.received[route][rank]
        wanted = {(rows[t][1], rows[t][2] // plan.top_k) for t in tokens}
        return [i for i, (_, source, entry) in enumerate(self.received[plan.of][rank][0])
                if (source, entry // plan.top_k) in wanted]

    def _receive(self, plan, ids, kept):
        """For each rank its received rows as (local expert, source rank, entry), those that fill an expert's up as sent by
        itself of ZEROS, and its slots as lists of rows."""
        out, places = [], [{e: (d, 0) for e, d in mine.items()} for mine in kept] if plan.kind.is_of_tokens else [
            self._places(plan, ids[source], kept[source], source) for source in self.ranks]
        for d in self.ranks:
            came = sorted((expert, source, entry) for source in self.ranks
                          for entry, (dest, expert) in places[source].items() if dest == d)
            rows, slots, start = [], [], 0
            for e in range(plan.num_local_experts):
                rows += (mine := [row for row in came if row[0] == e])
                rows += [(e, d, ZEROS)] * (-len(mine) % plan.alignment)
                count = len(rows) - start
                mine = [(e, list(range(start + i, start + min(i + plan.tile_rows, count))))
                        for i in range(0, count, plan.tile_rows)]
                before = sum(row[0] == e and row[1] < d for row in rows) // plan.tile_rows
                turn = before % max(1, len(mine))  # the rank's own rows come first
                slots += mine[turn:] + mine[:turn]
                start += count
            slots += [(plan.num_local_experts - 1, [])] * (plan.num_slots - len(slots))
            assert len(slots) == plan.num_slots
            out.append((rows, slots))
        return out

    def _places(self, plan, ids, kept, source):
        """{entry: (rank, local expert there)} of a rank's entries; of an expert with copies they go in runs to each."""
        flat = np.asarray(ids[:self.tokens[source]]).reshape(-1).tolist()
        own, out = plan.num_experts // self.flow.ep_size, {}
        for expert in set(flat) - {-1}:
            entries = [i for i, e in enumerate(flat) if e == expert and i in kept]
            homes, left = [[expert // own, expert % own, 65536]], 65536 * (2 * source + 1) // (2 * self.flow.ep_size)
            for rank, slots in enumerate(plan.placement.experts if plan.placement else ()):
                for slot, e in enumerate(slots):
                    if e == expert:
                        homes.append([rank, own + slot, plan.placement.shares[rank][slot]])
                        homes[0][2] -= homes[-1][2]
            for rank, local, share in homes:
                left += len(entries) * share
                while left >= 65536 and len(out.keys() & set(entries)) < len(entries):
                    out[next(i for i in entries if i not in out)] = rank, local
                    left -= 65536
        return out
