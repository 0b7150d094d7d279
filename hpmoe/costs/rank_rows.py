"""Counts the rows of the tasks of each operation on a rank, for one routing."""

from __future__ import annotations

import numpy as np

from hpmoe.ir import taskflow as tf
from hpmoe.ir.layout import Layout
from hpmoe.support.known import known
from hpmoe.tile_ops.params import Relayed


class RankRows:
    """Rows of the tasks of a taskflow's operations on its ranks, as `layout` has them."""

    def __init__(self, flow: tf.Taskflow, layout: Layout):
        self.ep_size, self.layout = flow.ep_size, layout

    def of_units(self, op: tf.TileOp, rank: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of each unit of an operation, and the expert they are of."""
        return op.domain.rows_of_units(self.layout, rank)

    def of_tasks(self, op: tf.TileOp, rank: int) -> np.ndarray:
        """Of each task of one column range of a local operation that is not empty."""
        rows, _ = self.of_units(op, rank)
        return rows if op.domain.sums_rows else rows[rows > 0]

    def of_token(self, op: tf.TileOp, rank: int) -> float:
        """Of tokens sent once, the rows that the rank's experts, or those of its node, have of each; see Work.by_routing."""
        if not op.has_fan:
            return 0.0
        routing = self.layout.routings[op.domain.route]
        rows = self.layout.relayed[op.params.route].kept[rank].sum() if isinstance(op.params, Relayed) else \
            known(routing.experts).num_rows(rank)
        return float(rows) / max(1, routing.num_rows(rank))

    def moved(self, op: tf.TileOp, rank: int, node_size: int) -> tuple[np.ndarray, float]:
        """Of a put, those that leave and reach the rank, inside its node and between nodes, [4]; and those that stay."""
        out = np.zeros(4)
        if op.primitive.is_notice:
            return out, 0.0
        routing = self.layout.routings[op.domain.route]
        to_rank = routing.counts.reshape(self.ep_size, self.ep_size, -1).sum(axis=2)
        if op.is_relayed:
            sources = self.layout.sent_by(op).source_of_row
            to_rank = np.stack([np.bincount(of, minlength=self.ep_size) for of in sources], axis=1)
        if op.primitive.moves_copies:
            to_rank = np.zeros_like(to_rank)
            for owner, copies in enumerate(known(routing.placement).copies):
                np.add.at(to_rank[owner], [copy.host for copy in copies], op.params.height)
        sent = to_rank.T if op.primitive.is_back else to_rank
        for peer in range(self.ep_size):
            if peer != rank:
                first = 0 if peer // node_size == rank // node_size else 2
                out[first] += sent[rank, peer]
                out[first + 1] += sent[peer, rank]
        return out, float(sent[rank, rank])
