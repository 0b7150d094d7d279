"""Routers and their losses in NumPy and float64, one token at a time, as the papers and the models' code state them."""

import numpy as np


def scores(z, score):
    if score in ("softmax", "softmax_of_chosen"):
        e = np.exp(z - z.max())
        return e / e.sum()
    return 1 / (1 + np.exp(-z)) if score == "sigmoid" else np.sqrt(np.logaddexp(0, z))


def best(values, k):
    """The k largest, of equals the smaller index first."""
    return sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]


def route_token(z, k, score="softmax", bias=None, num_groups=1, topk_groups=1, normalize=True, scale=1.0, dropped=()):
    """Without a bias experts are compared by z, as scores rise with it and round to the same."""
    z, b = z.astype(np.float64), 0 if bias is None else bias
    def scored(z):
        return z if score == "softmax_of_chosen" else scores(z, score)
    groups = (scored(z) + b).reshape(num_groups, -1)
    left_out = np.setdiff1d(np.arange(num_groups), best([np.sort(g)[-2:].sum() for g in groups], topk_groups))
    out = np.zeros(z.shape, bool)
    out.reshape(num_groups, -1)[left_out] = True
    is_dropped = np.isin(np.arange(len(z)), dropped)
    if (~out & ~is_dropped).sum() < k:
        is_dropped[:] = False
    if score.startswith("softmax"):
        z = np.where(is_dropped, -np.inf, z)
    s = scored(z)
    c = z if bias is None else s + bias
    ids = best(np.where(out | is_dropped, -np.inf, c), k)
    w = scores(z[ids], "softmax") if score == "softmax_of_chosen" else s[ids]
    w = w / (w.sum() + 1e-20) if normalize else w
    return ids, w * scale


def route(z, k, dropped=None, **options):
    rows = [route_token(row, k, **options, **({} if dropped is None else {"dropped": np.flatnonzero(dropped[t])}))
            for t, row in enumerate(z)]
    return np.array([ids for ids, _ in rows]), np.array([w for _, w in rows])


def weigh(z, ids, score="softmax", normalize=True, scale=1.0):
    """Weights of given ids; those of -1 are 0."""
    out = np.zeros(ids.shape)
    for t, row in enumerate(z.astype(np.float64)):
        chosen = ids[t] >= 0
        s = (row if score == "softmax_of_chosen" else scores(row, score))[ids[t, chosen]]
        s = scores(s, "softmax") if score == "softmax_of_chosen" and len(s) else s
        out[t, chosen] = s / (s.sum() + 1e-20) if normalize else s
    return out * scale


def replay(routed, record, unset):
    """Unset entries take the best routed experts that the row does not record, from left to right."""
    out = record.copy()
    for t, row in enumerate(record if unset == "route" else ()):
        left = [e for e in routed[t] if e not in row]
        for k in np.flatnonzero(row == -1):
            out[t, k] = left.pop(0)
    return out


def probabilities(z, score):
    p = np.array([scores(row.astype(np.float64), score) for row in z])
    return p / p.sum(1, keepdims=True)


def counts(z, k, score):
    n = np.zeros(z.shape[1])
    for row in z.astype(np.float64):
        n[best(scores(row, score), k)] += 1
    return n


def aux_loss(z, k, score="softmax", n=None):
    """E / (K T^2) sum_i n_i sum_t p_ti."""
    tokens, experts = z.shape
    n = counts(z, k, score) if n is None else n
    return experts / (k * tokens**2) * sum(n[i] * sum(probabilities(z, score)[:, i]) for i in range(experts))


def sequence_loss(z, k, sequences, score="softmax"):
    return np.mean([aux_loss(part, k, score) for part in np.split(z, sequences)])


def global_batch_loss(z, step_counts, k, score="softmax"):
    """By the mean of all-reduced counts over steps, of ranks * T tokens each."""
    n = np.mean(step_counts, axis=0)
    tokens, experts = n.sum() / k, z.shape[1]
    p = probabilities(z, score).mean(0) * tokens
    return experts / (k * tokens**2) * (n * p).sum()


def z_loss(z):
    return np.mean([np.log(np.exp(row.astype(np.float64)).sum()) ** 2 for row in z])


def update_bias(bias, n, rate):
    return [b + rate * np.sign(np.mean(n) - m) for b, m in zip(bias, n, strict=True)]


def philox(row, col, key):
    """philox2x32-10 with Python's integers."""
    left, right = row, col
    for _ in range(10):
        product = left * 0xD256D193
        left, right = (product >> 32) ^ right ^ key, product & 0xFFFFFFFF
        key = (key + 0x9E3779B9) & 0xFFFFFFFF
    return left


def uniform(seed, stream, tokens, experts):
    key = (seed ^ (stream * 0x85EBCA6B)) & 0xFFFFFFFF
    return np.array([[((philox(t, e, key) >> 9) + 0.5) / 2**23 for e in range(experts)] for t in range(tokens)])
