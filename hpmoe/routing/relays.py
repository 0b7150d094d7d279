"""Relays of an all-gather across nodes: ids by which a token goes to a rank of every node, and by which that spreads it."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.capacity import ABSENT


def relay_ids(topk_ids: np.ndarray, num_local_experts: int, node_size: int) -> tuple[np.ndarray, np.ndarray]:
    """The two routes of tokens that go to every node, whether it has experts for them or not.

    Rank r of its node sends to rank r of another one, its relay there. A relay's tokens are the rows that it receives by the
    first route, in their order.

    Args:
        topk_ids: [ep, T, K], global expert ids or ABSENT.
        num_local_experts: experts of each rank.
        node_size: ranks of each node, of which there is a whole number.

    Returns:
        [ep, T, nodes], each token's relays, as ids of one expert a rank; and [ep, nodes * T, K], for each rank the ids of
        the rows that it receives by these, those of other nodes' experts ABSENT.

    Example:
        >>> first, second = relay_ids(np.array([[[0, 3]], [[2, -1]], [[1, 0]], [[3, 1]]]), num_local_experts=1, node_size=2)
        >>> first.tolist()
        [[[0, 2]], [[1, 3]], [[0, 2]], [[1, 3]]]
        >>> second.tolist()
        [[[0, -1], [1, 0]], [[-1, -1], [-1, 1]], [[-1, 3], [-1, -1]], [[2, -1], [3, -1]]]
    """
    ep_size, num_tokens, top_k = topk_ids.shape
    ranks, nodes = np.arange(ep_size), np.arange(ep_size // node_size)
    relays = np.broadcast_to(nodes * node_size + ranks[:, None, None] % node_size, (ep_size, num_tokens, len(nodes)))
    received = np.stack([topk_ids[rank % node_size::node_size].reshape(-1, top_k) for rank in ranks])
    node_of = np.where(received < 0, ABSENT, received // (num_local_experts * node_size))
    return relays.astype(topk_ids.dtype), np.where(node_of == ranks[:, None, None] // node_size, received, ABSENT)
