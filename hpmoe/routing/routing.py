"""Routing: where every (token, choice) entry goes, computed from topk_ids; the reference for the kernel's prologue."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from hpmoe.routing.capacity import ABSENT, PerRank, Sort, chosen_counts, stable_order
from hpmoe.routing.kinds.kind import ByIds, RouteKind
from hpmoe.routing.placement import Placement
from hpmoe.routing.slots import padded
from hpmoe.support.errors import ArgumentError, check_argument
from hpmoe.support.known import known

FEW = 64  # ids that Python checks in less time than NumPy's functions take to be called
PADDING = -1  # entry of a row of padding


@dataclasses.dataclass(frozen=True, eq=False)
class Routing:
    """Placement of all ranks' entries; entry i of a rank is entry i % top_k of token i // top_k.

    A rank's received rows are compact and ordered by (local expert, source rank, entry). Entries that are dropped, or whose
    id is ABSENT, have no row. Rows of zeros that fill an expert's up to a multiple come after these; they are counted as
    sent by the rank that has them, and are of no entry, PADDING.
    """

    kind: RouteKind
    num_tokens: tuple[int, ...]  # tokens of each rank
    max_tokens: int  # rows of the token arrays, tokens and padding
    counts: np.ndarray  # [ep, ep * num_local_experts], kept entries of each rank for each expert or copy
    dropped: np.ndarray  # [ep, experts of the model], entries of each rank that each of them had no capacity for
    kept: tuple[np.ndarray, ...]  # for each rank, which entries of its tokens have a row
    order: tuple[np.ndarray, ...]  # for each rank, its kept entries sorted stably by expert and copy
    entry_of_row: tuple[np.ndarray, ...]  # for each rank, the entry that each received row came from
    source_of_row: tuple[np.ndarray, ...]  # for each rank, the rank that each received row came from
    experts: Routing | None = None  # if a row stands for a token, the Routing to the token's experts; else None

    @property
    def top_k(self) -> int:
        return self.kind.top_k

    @property
    def num_local_experts(self) -> int:
        return self.kind.num_local_experts

    @property
    def placement(self) -> Placement | None:
        return self.kind.placement

    @functools.cached_property
    def padding(self) -> tuple[int, ...]:
        return tuple(int((entries == PADDING).sum()) for entries in self.entry_of_row)

    @property
    def ep_size(self) -> int:
        return len(self.counts)

    @functools.cached_property
    def sources(self) -> tuple[np.ndarray, ...]:
        """Source of each expert's row in a routing to ranks: the received row that it copies, or PADDING."""
        out, experts = [], known(self.experts)
        for rank in range(self.ep_size):
            mine, theirs = (r.source_of_row[rank] * self.max_tokens + r.entry_of_row[rank] // self.top_k
                            for r in (self, experts))
            out.append(np.where(experts.entry_of_row[rank] == PADDING, PADDING, np.searchsorted(mine, theirs)))
        return tuple(out)

    def tokens_per_expert(self, rank: int) -> np.ndarray:
        """Returns the number of rows of each local expert of `rank`, [num_local_experts]."""
        local = self.num_local_experts
        return self.counts[:, rank * local:(rank + 1) * local].sum(axis=0)

    def num_rows(self, rank: int) -> int:
        """Returns the number of rows that `rank` receives."""
        return int(self.tokens_per_expert(rank).sum())

    def own_rows(self, rank: int) -> np.ndarray:
        """Returns the start of a rank's own rows among the rows of each of its local experts."""
        local = self.num_local_experts
        return self.counts[:rank, rank * local:(rank + 1) * local].sum(axis=0)

    def expert_of_row(self, rank: int) -> np.ndarray:
        """Returns the local expert of each received row."""
        return np.repeat(np.arange(self.num_local_experts), self.tokens_per_expert(rank))

    def row_of_entry(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Returns (destination rank, received row there) of each rank's entries; -1 for entries without a row."""
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
    """Returns True if some ids are ABSENT; raises ArgumentError unless the others are in 0..num_experts-1."""
    unsigned = topk_ids.view(f"u{topk_ids.itemsize}")  # where negative ids are large ones
    has_absent = bool(topk_ids.size) and bool(np.maximum.reduce(unsigned, axis=None) >= num_experts)
    if has_absent and (bad := np.argwhere((topk_ids < ABSENT) | (topk_ids >= num_experts))).size:
        where = tuple(int(i) for i in bad[0])
        check_argument(False, who, f"topk_ids{list(where)}", int(topk_ids[where]),
                       f"an expert id in 0..{num_experts - 1}, or {ABSENT} for none",
                       f"Ids out of range: {len(bad)}.{maker}")
    return has_absent


def check_topk_ids(topk_ids: np.ndarray, num_experts: int, who: str = "hpmoe.dispatch", maker: str = "") -> None:
    """Raises ArgumentError unless each token names distinct experts in 0..num_experts-1, or ABSENT any number of times.

    `maker` is a sentence about what computed the ids, nothing of given ones.
    """
    if topk_ids.size <= FEW and all(len({*ids}) == len(ids) and min(ids) >= 0 and max(ids) < num_experts
                                    for ids in topk_ids.reshape(-1, topk_ids.shape[-1]).tolist()):
        return
    has_absent = check_experts(topk_ids, num_experts, who, maker)
    if topk_ids.shape[-1] == 1:
        return
    ordered = topk_ids.copy()
    ordered.sort(axis=-1)
    is_repeated = ordered[..., 1:] == ordered[..., :-1]
    if has_absent:
        is_repeated &= ordered[..., 1:] != ABSENT
    if np.logical_or.reduce(is_repeated, axis=None):
        repeated = np.argwhere(is_repeated)
        token = tuple(int(i) for i in repeated[0][:-1])
        check_argument(False, who, f"topk_ids{list(token)}", topk_ids[token].tolist(), "distinct experts for each token",
                       "A router's top-k gives distinct ids; add the weights of repeated ones beforehand."
                       + maker)


def make_routing(kind: ByIds, topk_ids: PerRank, num_tokens: Sequence[int] | None = None,
                 topk_weights: Sequence[np.ndarray] | None = None, sort: Sort = stable_order) -> Routing:
    """Places the entries of all ranks.

    Args:
        kind: RouteKind by which entries are routed.
        topk_ids: for each rank, int [tokens, choices] of the model's experts, or ABSENT.
        num_tokens: number of leading tokens of each rank that count; all by default.
        topk_weights: for each rank, [tokens, choices]; read if they decide what is dropped.
        sort: function that sorts ids stably.

    Example:
        >>> from hpmoe.routing.kinds.direct import Direct
        >>> kind = Direct(ep_size=1, num_tokens=2, num_choices=2, num_model_experts=3)
        >>> routing = make_routing(kind, [np.array([[1, 0], [1, 2]])])
        >>> routing.tokens_per_expert(0).tolist(), routing.entry_of_row[0].tolist()
        ([1, 2, 1], [1, 0, 2, 3])
    """
    if kind.num_experts % kind.ep_size:
        raise ArgumentError(f"hpmoe: the number of experts is {kind.num_experts}; it must be a multiple of "
                            f"{kind.ep_size}, the number of ranks")
    lengths = tuple(int(n) for n in (num_tokens if num_tokens is not None else [len(i) for i in topk_ids]))
    real = [np.asarray(ids[:n]) for ids, n in zip(topk_ids, lengths, strict=True)]
    counts = np.stack([kind.counts(rank, ids) for rank, ids in enumerate(real)])
    kept = [kind.kept(rank, ids, topk_weights[rank] if topk_weights else None, sort) for rank, ids in enumerate(real)]
    of_model = (mine.reshape(-1, kind.top_k)[:, :kind.num_choices] for mine in kept)
    dropped = np.stack([chosen_counts(np.where(mine, ABSENT, ids), kind.num_model_experts)
                        for ids, mine in zip(real, of_model, strict=True)]).astype(np.int32)
    order = [kind.order(rank, ids, kept[rank], sort) for rank, ids in enumerate(real)]
    entries, sources = _received(order, counts, kind.num_local_experts, kind.alignment)
    if kind.alignment > 1:
        counts = counts + _padding(counts, kind.num_local_experts, kind.alignment)
    return Routing(kind, lengths, max(map(len, topk_ids)), counts.astype(np.int64), dropped, tuple(kept), tuple(order),
                   entries, sources)


def routing_of_tokens(kind: RouteKind, experts: Routing) -> Routing:
    """Returns the Routing of tokens, which go to their stops by `kind`, from the Routing to their experts.

    Of a token's entries for one stop the first entry stands for the token; the others have no row.

    Example:
        >>> from hpmoe.routing.kinds.stops import Deduplicated
        >>> from hpmoe.routing.kinds.direct import Direct
        >>> kind = Direct(ep_size=2, num_tokens=2, num_choices=2, num_model_experts=4)
        >>> experts = make_routing(kind, [np.array([[1, 0], [2, 1]]), np.array([[2, 3], [0, 3]])])
        >>> ranks = routing_of_tokens(Deduplicated(kind), experts)
        >>> ranks.counts.tolist(), ranks.entry_of_row[1].tolist(), ranks.sources[1].tolist()
        ([[2, 1], [1, 2]], [2, 0, 3], [0, 1, 1, 2])
    """
    ep_size, kept, order, counts = experts.ep_size, [], [], []
    for rank in range(ep_size):
        peers = _peers(experts, rank, kind.stop(rank, np.arange(ep_size)))
        of_token = peers.reshape(-1, experts.top_k)
        again = [(of_token[:, :k] == of_token[:, k:k + 1]).any(axis=1) for k in range(experts.top_k)]
        kept.append((peers >= 0) & ~np.stack(again, axis=1).reshape(-1))
        in_order = stable_order(peers)
        order.append(in_order[kept[rank][in_order]])
        counts.append(np.bincount(peers[kept[rank]], minlength=ep_size))
    entries, sources = _received(order, np.stack(counts), 1)
    return Routing(kind, experts.num_tokens, experts.max_tokens, np.stack(counts), np.zeros((ep_size, ep_size), np.int32),
                   tuple(kept), tuple(order), entries, sources, experts)


def _peers(experts: Routing, rank: int, to: np.ndarray) -> np.ndarray:
    """Returns `to` of the expert's rank for each entry of a rank; -1 for entries without a row."""
    peers, sent = np.full(len(experts.kept[rank]), -1), experts.counts[rank].reshape(len(to), -1).sum(axis=1)
    sent[rank] -= experts.padding[rank]
    peers[experts.order[rank]] = np.repeat(to, sent)
    return peers


def _padding(counts: np.ndarray, local: int, alignment: int) -> np.ndarray:
    """Returns the rows of padding that each rank adds for each of its own experts, [ep, ep * local]."""
    ep_size, rows = len(counts), counts.sum(axis=0)
    is_own = np.arange(ep_size * local) // local == np.arange(ep_size)[:, None]
    return np.where(is_own, padded(rows, alignment) - rows, 0)


def _received(order: Sequence[np.ndarray], counts: np.ndarray, local: int,
              alignment: int = 1) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Returns the entry and the source of each received row, one array of each for every rank."""
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
