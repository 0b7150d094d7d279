"""Counts the rows that each rank sends to each other rank, [ep, ep], by loops over tokens; ids of -1 are masked."""

import numpy as np


def tokens_of(ids, num_local, num_tokens):
    """(rank, the ranks of its experts with repetitions) of each token."""
    for source, mine in enumerate(ids):
        for token in mine[:None if num_tokens is None else num_tokens[source]]:
            yield source, [int(e) // num_local for e in token if e >= 0]


def rows_for_experts(ids, num_local, num_tokens=None, once=False):
    """Entries for the experts of each rank; of a token one where `once`."""
    rows = np.zeros((len(ids), len(ids)), int)
    for source, owners in tokens_of(ids, num_local, num_tokens):
        for owner in set(owners) if once else owners:
            rows[source, owner] += 1
    return rows


def crossings(ids, num_local, node_size, num_tokens=None, once=False):
    """To the relays of nodes that have experts, and from these to the ranks of experts, for each of them or `once`."""
    crossed, passed = np.zeros((2, len(ids), len(ids)), int)
    for source, owners in tokens_of(ids, num_local, num_tokens):
        for node in {owner // node_size for owner in owners}:
            crossed[source, node * node_size + source % node_size] += 1
        for owner in set(owners) if once else owners:
            passed[owner // node_size * node_size + source % node_size, owner] += 1
    return crossed, passed


def bytes_between(scheme, ids, num_local, node_size, row, num_tokens=None):
    """Returns the bytes of the forward and backward pass of a layer with rows of `row` bytes and float32 weights: rows in
    both directions, weights if sums are made elsewhere; backward also weights and their gradients, by entry."""
    entries = rows_for_experts(ids, num_local, num_tokens)
    crossed, passed = crossings(ids, num_local, node_size, num_tokens)
    _, passed_once = crossings(ids, num_local, node_size, num_tokens, once=True)
    rows, weights = {"direct": (entries, 0),
                     "deduplicated": (rows_for_experts(ids, num_local, num_tokens, once=True), entries),
                     "hierarchical+deduplicated": (crossed + passed_once, entries),
                     "hierarchical": (crossed + passed, crossed * ids.shape[-1])}[scheme]
    both_ways = (rows + rows.T) * row
    return both_ways + weights * 4, both_ways + (entries + entries.T) * 4


def across_nodes(matrix, node_size):
    """Returns the part of [ep, ep] that each rank sends to other nodes."""
    node = np.arange(len(matrix)) // node_size
    return np.where(node[:, None] != node, matrix, 0).sum(1)
