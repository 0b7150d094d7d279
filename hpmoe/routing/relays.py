"""Relays: ids by which a token crosses to a node once, to one rank of it, and those by which that rank spreads it there."""

from __future__ import annotations

import numpy as np

from hpmoe.routing.capacity import ABSENT


def relay_ids(topk_ids: np.ndarray, num_local_experts: int, node_size: int,
              to_all: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The two routes of tokens that cross to a node once.

    Rank r of its node sends to rank r of another one, its relay there. Tokens that have no expert in a node do not go
    there, unless they go to all. A relay's tokens are the rows that it receives by the first route, in their order.

    Args:
        topk_ids: [ep, T, K], global expert ids or ABSENT.
        num_local_experts: experts of each rank.
        node_size: ranks of each node, of which there is a whole number.
        to_all: whether every token goes to every node, as an all-gather does it.

    Returns:
        [ep, T, nodes], each token's relays, as ids of one expert a rank; and [ep, nodes * T, K], for each rank the ids of
        the rows that it receives by these, those of other nodes' experts ABSENT. Rows past the received ones are all ABSENT.

    Example:
        >>> first, second = relay_ids(np.array([[[0, 3]], [[2, -1]], [[1, 0]], [[3, 1]]]), num_local_experts=1, node_size=2)
        >>> first.tolist()
        [[[0, 2]], [[-1, 3]], [[0, -1]], [[1, 3]]]
        >>> second.tolist()
        [[[0, -1], [1, 0]], [[-1, 1], [-1, -1]], [[-1, 3], [-1, -1]], [[2, -1], [3, -1]]]
    """
    ep_size, num_tokens, top_k = topk_ids.shape
    nodes = np.arange(ep_size // node_size)
    node_of_entry = np.where(topk_ids < 0, ABSENT, topk_ids // (num_local_experts * node_size))
    goes = (node_of_entry[..., None] == nodes).any(axis=2) | to_all
    relays = nodes * node_size + np.arange(ep_size)[:, None, None] % node_size
    spread = np.full((ep_size, len(nodes) * num_tokens, top_k), ABSENT, topk_ids.dtype)
    for rank in range(ep_size):
        node = rank // node_size
        of_node = np.where(node_of_entry == node, topk_ids, ABSENT)[rank % node_size::node_size]
        received = of_node[goes[rank % node_size::node_size, :, node]]
        spread[rank, :len(received)] = received
    return np.where(goes, relays, ABSENT).astype(topk_ids.dtype), spread
