"""More of error_cases.py: arguments of token operators that do not fit."""

import mindspore as ms
import numpy as np
from error_cases import cases
from mindspore import Tensor
from router_runs import traced

import hpmoe

X, IDS = Tensor(np.zeros((4, 3), np.float32)), Tensor(np.zeros((4, 2), np.int32))
PLACES = Tensor(np.arange(8, dtype=np.int32))
PROBS = Tensor(np.zeros((4, 2), np.float32))
_, ROUTE = hpmoe.token_ops.exchange(X, Tensor(np.array([[0, 1], [1, 0]], np.int32)), num_local_experts=2)


def _permute(*args, **options):
    return lambda: hpmoe.token_ops.permute(*args, **options)


def _unpermute(*args, **options):
    return lambda: hpmoe.token_ops.unpermute(*args, **options)


def _routing(*args, **options):
    return lambda: hpmoe.token_ops.init_routing(X, *args, **options)



def _second_derivative():
    def first(x):
        return ms.grad(lambda x: hpmoe.token_ops.permute(x, IDS)[0].sum())(x).sum()
    return ms.grad(first)(X)


cases("tokens", {
    "integers": _permute(X.astype(ms.int32), IDS),
    "too many choices": _permute(X, Tensor(np.zeros((4, 513), np.int32))),
    "too many entries": _permute(Tensor(np.zeros((2**15, 1), np.float32)), Tensor(np.zeros((2**15, 512), np.int32))),
    "padded by a number": _permute(X, IDS, padded_mode=1),
    "padded by one dimension": _permute(X, PLACES, padded_mode=True),
    "padded by no token": _permute(X, IDS + 4, padded_mode=True),
    "padded by no token in a program": lambda: traced(lambda x,
                                                      i: hpmoe.token_ops.permute(x, i, padded_mode=True)[0])(X, IDS + 4),
    "padded and cut": _permute(X, IDS, 1, True),
    "unpadded by a number": _unpermute(X, PLACES, padded_mode=1),
    "a shape without padding": _unpermute(X, PLACES, restore_shape=(4, 3)),
    "another shape": _unpermute(X, PLACES[:4], None, True, (4, 4)),
    "padded rows of others": _unpermute(X, PLACES, None, True, (4, 3)),
    "padded probs of others": _unpermute(X, PLACES[:4], PROBS, True, (4, 3)),
    "probs of too many choices": _unpermute(X, PLACES, Tensor(np.zeros((4, 513), np.float32))),
    "probs of other tokens": _unpermute(X, PLACES, Tensor(np.zeros((2, 2), np.float32))),
    "a row twice": lambda: ms.grad(lambda r: hpmoe.token_ops.unpermute(r, PLACES * 0).sum())(X),
    "a gradient of the gradient": _second_derivative,
    "a range past the end": lambda: hpmoe.token_ops.permute_with_ep(X, IDS, None, (3, 9)),
    "probs of another shape": lambda: hpmoe.token_ops.permute_with_ep(X, IDS, X),
    "rows of another range": lambda: hpmoe.token_ops.unpermute_with_ep(X, PLACES, None, (1, 3)),
    "an id of no expert": _routing(IDS + 2, 0, 1, 2, 1),
    "counts of an id of no expert": _routing(IDS + 2, 0, 0, 2, 0, "count"),
    "wide ids": _routing(IDS.astype(ms.int64)),
    "a third mode": _routing(IDS, drop_pad_mode=2),
    "no such counts": _routing(IDS, counts="all"),
    "counts of no experts": _routing(IDS, counts="count"),
    "capacity for more than there are": _routing(IDS, 0, 5, 2, 1),
    "too many places": _routing(IDS, 0, 4, 2**23, 1),
    "exchange of other rows": lambda: hpmoe.token_ops.exchange(X[:2], Tensor(np.array([[0, 1], [1, 0]], np.int32)),
                                                     num_local_experts=2),
    "exchange of no rows": lambda: hpmoe.token_ops.exchange(None, IDS, num_local_experts=2),
    "exchange to no experts": lambda: hpmoe.token_ops.exchange(X, IDS, num_local_experts=0),
    "exchange by no route": lambda: hpmoe.token_ops.exchange_back(X, IDS),
    "exchange back of other rows": lambda: hpmoe.token_ops.exchange_back(X[:2], ROUTE),
    "exchange back of no rows": lambda: hpmoe.token_ops.exchange_back(None, ROUTE),
    "exchange of other rows in a trace": lambda: hpmoe.trace(
        lambda x, i: hpmoe.token_ops.exchange(x, i, num_local_experts=2)[0], X, IDS),
    "exchange between shards": lambda: hpmoe.trace(
        lambda x, i: hpmoe.token_ops.exchange(hpmoe.token_ops.permute(x, i)[0], i, num_local_experts=2)[0], X, IDS,
        mesh=hpmoe.Mesh(1, tp=2)),
    "exchange back of other rows in a trace": lambda: hpmoe.trace(
        lambda x, i: hpmoe.token_ops.exchange_back(x, hpmoe.token_ops.exchange(hpmoe.token_ops.permute(x, i)[0], i,
                                                                               num_local_experts=2)[1]), X, IDS),
})
