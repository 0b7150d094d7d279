"""Routing: where every (token, choice) entry goes, computed from topk_ids; the reference for the kernel's prologue."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from hpmoe.routing.capacity import (
    ABSENT,
    Capacity,
    Sort,
    check_topk_weights,
    chosen_counts,
    kept_counts,
    kept_entries,
    stable_order,
)
from hpmoe.routing.placement import Placement
from hpmoe.routing.shards import of_shards, shard_ids
from hpmoe.routing.slots import padded
from hpmoe.support.errors import ArgumentError, check_argument
from hpmoe.support.known import known

PADDING = -1  # in place of the entry of a row that is of none
PerRank = Sequence[np.ndarray] | np.ndarray  # for each rank an array, or one of all, [ep, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Routing:
    """Placement of all ranks' entries; entry i of a rank is entry i % top_k of token i // top_k.

    A rank's received rows are compact and ordered by (local expert, source rank, entry). Entries that are dropped, or whose
    id is ABSENT, have no row. Rows of zeros that fill an expert's up to a multiple come after these; they are counted as
    sent by the rank that has them, and are of no entry, PADDING.

    Attributes:
        num_experts, top_k: of all ranks, and of a token, each shard of an expert counted as one.
        num_local_experts: of each rank, its own and what copies it holds.
        num_tokens: tokens of each rank.
        max_tokens: rows of the token arrays, tokens and padding.
        counts: [ep, ep * num_local_experts], entries of each rank for each expert or copy, without the dropped ones.
        dropped: [ep, experts of the model], entries of each rank that each of them had no capacity for.
        kept: for each rank, which entries of its tokens have a row.
        order: for each rank, its kept entries sorted stably by expert and copy.
        entry_of_row: for each rank, the entry that each received row came from.
        source_of_row: for each rank, the rank that each received row came from.
        placement: which ranks hold copies of experts, or None.
        padding: [ep], the rows of zeros that each rank has.
        experts: of a routing to ranks, each of which counts as one expert then, the routing to the experts; else None.
        node_size: of a routing to relays, one rank of each node, the ranks of a node; else None.
    """

    num_experts: int
    num_local_experts: int
    top_k: int
    num_tokens: tuple[int, ...]
    max_tokens: int
    counts: np.ndarray
    dropped: np.ndarray
    kept: tuple[np.ndarray, ...]
    order: tuple[np.ndarray, ...]
    entry_of_row: tuple[np.ndarray, ...]
    source_of_row: tuple[np.ndarray, ...]
    placement: Placement | None = None
    experts: Routing | None = None
    node_size: int | None = None

    @functools.cached_property
    def padding(self) -> tuple[int, ...]:
        return tuple(int((entries == PADDING).sum()) for entries in self.entry_of_row)

    @property
    def ep_size(self) -> int:
        return len(self.counts)

    @functools.cached_property
    def sources(self) -> tuple[np.ndarray, ...]:
        """Of a routing to ranks: for each rank, the received row here that each of the experts' rows there is a copy of, or
        PADDING."""
        out, experts = [], known(self.experts)
        for rank in range(self.ep_size):
            mine, theirs = (r.source_of_row[rank] * self.max_tokens + r.entry_of_row[rank] // self.top_k
                            for r in (self, experts))
            out.append(np.where(experts.entry_of_row[rank] == PADDING, PADDING, np.searchsorted(mine, theirs)))
        return tuple(out)

    def tokens_per_expert(self, rank: int) -> np.ndarray:
        """Rows of each local expert of `rank`, [num_local_experts]."""
        local = self.num_local_experts
        return self.counts[:, rank * local:(rank + 1) * local].sum(axis=0)

    def num_rows(self, rank: int) -> int:
        """Rows that `rank` receives."""
        return int(self.tokens_per_expert(rank).sum())

    def own_rows(self, rank: int) -> np.ndarray:
        """Where a rank's own rows begin among those of each of its local experts."""
        local = self.num_local_experts
        return self.counts[:rank, rank * local:(rank + 1) * local].sum(axis=0)

    def expert_of_row(self, rank: int) -> np.ndarray:
        """Local expert of each received row."""
        return np.repeat(np.arange(self.num_local_experts), self.tokens_per_expert(rank))

    def row_of_entry(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each rank, (destination rank, received row there) of each of its entries; -1 for those without a row."""
        placed = [(np.full(len(k), -1), np.full(len(k), -1)) for k in self.kept]
        for rank in range(self.ep_size):
            for source in range(self.ep_size):
                rows = np.flatnonzero((self.source_of_row[rank] == source) & (self.entry_of_row[rank] != PADDING))
                entries = self.entry_of_row[rank][rows]
                placed[source][0][entries], placed[source][1][entries] = rank, rows
        return placed


@dataclasses.dataclass(frozen=True, eq=False)
class Route:
    """One rank's view of a Routing; what `hpmoe.dispatch` returns beside the rows on concrete tensors."""

    routing: Routing
    rank: int = 0

    @property
    def tokens_per_expert(self) -> np.ndarray:
        return self.routing.tokens_per_expert(self.rank)

    @property
    def num_rows(self) -> int:
        return self.routing.num_rows(self.rank)

    @property
    def expert_of_row(self) -> np.ndarray:
        return self.routing.expert_of_row(self.rank)

    @property
    def dropped(self) -> np.ndarray:
        return self.routing.dropped[self.rank]


def check_experts(topk_ids: np.ndarray, num_experts: int, who: str, maker: str = "") -> bool:
    """Whether some ids are ABSENT; ArgumentError unless all others are experts in 0..num_experts-1."""
    unsigned = topk_ids.view(f"u{topk_ids.itemsize}")  # where negative ids are large ones
    has_absent = bool(topk_ids.size) and unsigned.max() >= num_experts
    if has_absent and (bad := np.argwhere((topk_ids < ABSENT) | (topk_ids >= num_experts))).size:
        where = tuple(int(i) for i in bad[0])
        check_argument(False, who, f"topk_ids{list(where)}", int(topk_ids[where]),
                       f"an expert id in 0..{num_experts - 1}, or {ABSENT} for none",
                       f"{len(bad)} ids are out of range.{maker}")
    return has_absent


def check_topk_ids(topk_ids: np.ndarray, num_experts: int, who: str = "hpmoe.dispatch", maker: str = "") -> None:
    """Raises ArgumentError unless each token names distinct experts in 0..num_experts-1, or ABSENT any number of times.

    `maker` is a sentence about what computed the ids, nothing of given ones.
    """
    has_absent = check_experts(topk_ids, num_experts, who, maker)
    if topk_ids.shape[-1] == 1:
        return
    ordered = np.sort(topk_ids, axis=-1)
    is_repeated = ordered[..., 1:] == ordered[..., :-1]
    if has_absent:
        is_repeated &= ordered[..., 1:] != ABSENT
    if is_repeated.any():
        repeated = np.argwhere(is_repeated)
        token = tuple(int(i) for i in repeated[0][:-1])
        check_argument(False, who, f"topk_ids{list(token)}", topk_ids[token].tolist(), "distinct experts for each token",
                       "A router's top-k gives distinct ids; add the weights of repeated ones beforehand."
                       + maker)


def make_routing(topk_ids: PerRank, num_experts: int, num_tokens: Sequence[int] | None = None,
                 capacity: Capacity | None = None, topk_weights: Sequence[np.ndarray] | None = None,
                 placement: Placement | None = None, sort: Sort = stable_order, alignment: int = 1,
                 tp_size: int = 1) -> Routing:
    """Places the entries of all ranks.

    Args:
        topk_ids: for each rank, int [tokens, top_k] of the model's experts, or ABSENT.
        num_experts: of all ranks together, each shard counted, a multiple of the number of ranks.
        num_tokens: how many leading tokens of each rank count; all of them by default.
        capacity: what each expert takes of each rank at most; everything by default.
        topk_weights: for each rank, [tokens, top_k]; read where the policy is "probs".
        placement: which ranks hold copies of experts, and what they take; none where None.
        sort: which entry comes where in a stable sort of ids.
        alignment: the rows of an expert that has any are filled up to a multiple of it.
        tp_size: shards of each expert, which take the same entries.

    Raises:
        ArgumentError: an expert is over its capacity and nothing may be dropped, or a weight that decides is not a number.

    Example:
        >>> routing = make_routing([np.array([[1, 0], [1, 2]])], num_experts=3)
        >>> routing.tokens_per_expert(0).tolist(), routing.entry_of_row[0].tolist()
        ([1, 2, 1], [1, 0, 2, 3])
    """
    ep_size, choices, of_model = len(topk_ids), topk_ids[0].shape[-1], num_experts // tp_size
    if num_experts % ep_size:
        raise ArgumentError(f"hpmoe: {num_experts} experts do not divide over {ep_size} ranks")
    lengths = tuple(int(n) for n in (num_tokens if num_tokens is not None else [len(i) for i in topk_ids]))
    real = [np.asarray(ids[:n]) for ids, n in zip(topk_ids, lengths, strict=True)]
    counts = np.stack([kept_counts(ids, of_model, capacity, r, ep_size) for r, ids in enumerate(real)])
    chosen = np.stack([chosen_counts(ids, of_model) for ids in real])
    kept = tuple(_kept(real[r], of_model, capacity, topk_weights[r] if topk_weights else None, r, ep_size, sort)
                 for r in range(ep_size))
    dropped, local = (chosen - counts).astype(np.int32), num_experts // ep_size
    if tp_size > 1:
        counts = of_shards(counts, local, tp_size)
        kept = tuple(np.tile(k.reshape(-1, choices), tp_size).reshape(-1) for k in kept)
    orders = (sort(shard_ids(ids, local, tp_size).reshape(-1)) for ids in real)
    order = tuple(o[k[o]] for o, k in zip(orders, kept, strict=True))
    if placement is not None:
        order = tuple(_divided(o, counts[r], placement, r) for r, o in enumerate(order))
        counts, local = np.stack([_of_copies(c, placement, r) for r, c in enumerate(counts)]), placement.num_local
    entries, sources = _received(order, counts, local, alignment)
    if alignment > 1:
        counts = counts + _padding(counts, local, alignment)
    return Routing(num_experts, local, choices * tp_size, lengths, max(map(len, topk_ids)), counts.astype(np.int64), dropped,
                   kept, order, entries, sources, placement)


def _padding(counts: np.ndarray, local: int, alignment: int) -> np.ndarray:
    """What fills the rows of each rank for each expert up to a multiple: each rank's own, [ep, ep * local]."""
    ep_size, rows = len(counts), counts.sum(axis=0)
    is_own = np.arange(ep_size * local) // local == np.arange(ep_size)[:, None]
    return np.where(is_own, padded(rows, alignment) - rows, 0)


def _received(order: Sequence[np.ndarray], counts: np.ndarray, local: int,
              alignment: int = 1) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """For each rank, the entry and the source of each row that it receives."""
    ep_size = len(order)
    first = np.concatenate([np.zeros((ep_size, 1), np.int64), np.cumsum(counts, axis=1)], axis=1)
    entries, sources = [], []
    for rank in range(ep_size):
        pieces = []
        for e in range(rank * local, (rank + 1) * local):
            pieces += [(source, order[source][first[source, e]:first[source, e + 1]]) for source in range(ep_size)]
            rows = int(counts[:, e].sum())
            pieces.append((rank, np.full(padded(rows, alignment) - rows, PADDING)))
        entries.append(np.concatenate([p for _, p in pieces]).astype(np.int64))
        sources.append(np.repeat([s for s, _ in pieces], [len(p) for _, p in pieces]))
    return tuple(entries), tuple(sources)


def relay_of(source: np.ndarray | int, rank: np.ndarray | int, node_size: int) -> np.ndarray:
    """The rank that passes on what a source sends to a rank: that at the source's place in the rank's node."""
    return np.asarray(rank) // node_size * node_size + np.asarray(source) % node_size


def routing_to_ranks(experts: Routing, node_size: int | None = None) -> Routing:
    """Where tokens go that are sent once to each rank that has experts for them, whatever the number of these; or, where
    ranks are in nodes of a size, once to a relay in each node that has.

    A rank counts as one expert. Of a token's entries for a rank the first one stands for the token; the others have no row.

    Example:
        >>> experts = make_routing([np.array([[1, 0], [2, 1]]), np.array([[2, 3], [0, 3]])], num_experts=4)
        >>> ranks = routing_to_ranks(experts)
        >>> ranks.counts.tolist(), ranks.entry_of_row[1].tolist(), ranks.sources[1].tolist()
        ([[2, 1], [1, 2]], [2, 0, 3], [0, 1, 1, 2])
    """
    ep_size, kept, order, counts = experts.ep_size, [], [], []
    for rank in range(ep_size):
        to = np.arange(ep_size) if node_size is None else relay_of(rank, np.arange(ep_size), node_size)
        peers = _peers(experts, rank, to)
        of_token = peers.reshape(-1, experts.top_k)
        again = [(of_token[:, :k] == of_token[:, k:k + 1]).any(axis=1) for k in range(experts.top_k)]
        kept.append((peers >= 0) & ~np.stack(again, axis=1).reshape(-1))
        in_order = stable_order(peers)
        order.append(in_order[kept[rank][in_order]])
        counts.append(np.bincount(peers[kept[rank]], minlength=ep_size))
    entries, sources = _received(order, np.stack(counts), 1)
    return Routing(ep_size, 1, experts.top_k, experts.num_tokens, experts.max_tokens, np.stack(counts),
                   np.zeros((ep_size, ep_size), np.int32), tuple(kept), tuple(order), entries, sources, experts=experts,
                   node_size=node_size)


def _peers(experts: Routing, rank: int, to: np.ndarray) -> np.ndarray:
    """Of a rank's entries, what `to` has for the rank of their expert; -1 for those without a row."""
    peers, sent = np.full(len(experts.kept[rank]), -1), experts.counts[rank].reshape(len(to), -1).sum(axis=1)
    sent[rank] -= experts.padding[rank]
    peers[experts.order[rank]] = np.repeat(to, sent)
    return peers


def rows_of_ranks(topk_ids: PerRank, num_experts: int, capacity: Capacity | None = None,
                  placement: Placement | None = None, alignment: int = 1, tp_size: int = 1) -> list[int]:
    """Rows that each rank receives by the ids of all ranks' tokens; arguments are those of `make_routing`, and errors.

    Example:
        >>> rows_of_ranks([np.array([[1, 0], [1, 2]]), np.array([[0, 1], [1, 0]])], num_experts=4)
        [7, 1]
    """
    ep_size = len(topk_ids)
    if ep_size == 1 and capacity is None and alignment == 1:
        return [int(np.count_nonzero(topk_ids[0] != ABSENT))]
    total: np.ndarray | int = 0
    for rank, ids in enumerate(topk_ids):
        total = total + counts_of_rank(ids, num_experts, capacity, placement, rank, ep_size, tp_size)
    return rows_by_counts(np.asarray(total), ep_size, alignment)


def rows_by_counts(of_experts: np.ndarray, ep_size: int, alignment: int = 1) -> list[int]:
    """Rows that each rank receives, by how many entries of all ranks each physical expert takes, [ep * num_local_experts].

    Example:
        >>> rows_by_counts(np.array([3, 0, 4, 5]), ep_size=2, alignment=4)
        [4, 12]
    """
    return padded(of_experts.astype(np.int64), alignment).reshape(ep_size, -1).sum(axis=1).tolist()


def counts_of_rank(ids: np.ndarray, num_experts: int, capacity: Capacity | None, placement: Placement | None, rank: int,
                   ep_size: int, tp_size: int = 1) -> np.ndarray:
    """A rank's row of `Routing.counts`, by the ids of its tokens; raises as `kept_counts`.

    Example:
        >>> counts_of_rank(np.array([[1, 0], [1, 2]]), 4, None, None, rank=0, ep_size=2).tolist()
        [1, 2, 1, 0]
    """
    counts = of_shards(kept_counts(ids, num_experts // tp_size, capacity, rank, ep_size), num_experts // ep_size, tp_size)
    return counts if placement is None else _of_copies(counts, placement, rank)


def _of_copies(counts: np.ndarray, placement: Placement, rank: int) -> np.ndarray:
    """What each physical expert takes of a rank's entries for each logical one."""
    return np.diff(placement.split(counts, rank), axis=1)[:, 0]


def _divided(order: np.ndarray, counts: np.ndarray, placement: Placement, rank: int) -> np.ndarray:
    """A rank's entries, sorted by expert, sorted by physical expert."""
    first = (np.cumsum(counts) - counts)[placement.parts[:, 0]]
    ranges = placement.split(counts, rank) + first[:, None]
    return np.concatenate([order[start:stop] for start, stop in ranges])


def _kept(ids: np.ndarray, num_experts: int, capacity: Capacity | None, weights: np.ndarray | None, rank: int,
          ep_size: int, sort: Sort) -> np.ndarray:
    if capacity is None or not capacity.drops:
        return ids.reshape(-1) != ABSENT
    if capacity.policy == "probs":
        weights = np.asarray(weights)[:len(ids)]
        check_topk_weights(ids, weights, rank, ep_size)
    return kept_entries(ids, num_experts, capacity, weights, sort)


def add_choices(out: np.ndarray, ranks: Route, index: np.ndarray, rows: np.ndarray) -> None:
    """Adds rows of a rank's experts, of those the ones at `index`, to their tokens' rows, in the order of the choices; but
    for those of padding."""
    routing, rank = ranks.routing, ranks.rank
    is_row = routing.sources[rank][index] != PADDING
    index, rows = index[is_row], rows[is_row]
    choice = known(routing.experts).entry_of_row[rank][index] % routing.top_k
    for k in range(routing.top_k):
        mine = choice == k
        out[routing.sources[rank][index[mine]]] += rows[mine]
