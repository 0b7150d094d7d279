"""The token operators of CANN written from their formulas, in NumPy: values and gradients of each.

Letters: N tokens, K choices of each, i an entry of N * K, S the places of entries. A stable sort is that of Python's lists.
"""

import numpy as np


def places_of(indices):
    """S = argsort(argsort(indices, stable))."""
    flat = indices.reshape(-1).tolist()
    order = sorted(range(len(flat)), key=flat.__getitem__)
    places = np.empty(len(flat), np.int64)
    places[order] = np.arange(len(flat))
    return places


def kept(places, start, end):
    """(entry, its row) of the entries whose place is in the range."""
    return [(i, s - start) for i, s in enumerate(places.tolist()) if start <= s < end]


def permute(tokens, places, top_k, start, end):
    """out[S[i] - start] = tokens[i // K]."""
    out = np.zeros((end - start, tokens.shape[1]))
    for i, row in kept(places, start, end):
        out[row] = tokens[i // top_k]
    return out


def permute_grad(grad, places, top_k, start, end):
    """The sum over j of grad[S[i K + j] - start], zero outside of the range."""
    out = np.zeros((len(places) // top_k, grad.shape[1]))
    for i, row in kept(places, start, end):
        out[i // top_k] += grad[row]
    return out


def unpermute(rows, places, top_k, start, probs=None):
    """out[i] = the sum over j of probs[i, j] * rows[S[i K + j] - start]."""
    out = np.zeros((len(places) // top_k, rows.shape[1]))
    for i, row in kept(places, start, start + len(rows)):
        out[i // top_k] += (1 if probs is None else probs.reshape(-1)[i]) * rows[row]
    return out


def unpermute_grad(grad, rows, places, top_k, start, probs=None):
    """d_rows[S[iK+j] - start] = grad[i] * probs[i,j]; d_probs[i,j] = <grad[i], rows[S[iK+j] - start]>."""
    d_rows, d_probs = np.zeros(rows.shape), np.zeros(len(places))
    for i, row in kept(places, start, start + len(rows)):
        d_rows[row] = grad[i // top_k] * (1 if probs is None else probs.reshape(-1)[i])
        d_probs[i] = grad[i // top_k] @ rows[row]
    return (d_rows,) if probs is None else (d_rows, d_probs.reshape(probs.shape))


def pick(tokens, index):
    """Padded mode: the row of each expert's place is that of the token which `index` names."""
    return np.stack([tokens[t] for t in index.reshape(-1)])


def sum_picked(rows, index, num_tokens, probs=None):
    """Padded mode, back: each token gets the sum of the rows that name it, weighted."""
    out = np.zeros((num_tokens, rows.shape[1]))
    for i, token in enumerate(index.reshape(-1).tolist()):
        out[token] += (1 if probs is None else probs.reshape(-1)[i]) * rows[i]
    return out


def sum_picked_grad(grad, rows, index, probs=None):
    d_rows = np.stack([grad[t] * (1 if probs is None else p)
                       for t, p in zip(index.reshape(-1), index.reshape(-1) if probs is None else probs.reshape(-1),
                                       strict=True)])
    if probs is None:
        return (d_rows,)
    return d_rows, np.array([grad[t] @ row for t, row in zip(index.reshape(-1), rows, strict=True)]).reshape(probs.shape)


def places_with_capacity(indices, experts, capacity):
    """Entry after entry the next place of its expert, e * capacity + place; -1 where none is left."""
    used, out = [0] * experts, []
    for e in indices.reshape(-1).tolist():
        out.append(e * capacity + used[e] if used[e] < capacity else -1)
        used[e] += 1
    return np.array(out)


def counts(indices, experts):
    return np.array([int((indices == e).sum()) for e in range(experts)])
