"""More of error_cases.py: arguments of hpmoe.route and hpmoe.router that do not fit."""

import mindspore as ms
import numpy as np
from error_cases import cases
from mindspore import Tensor
from router_runs import traced

import hpmoe
from hpmoe import router

Z = Tensor(np.zeros((6, 4), np.float32))
IDS = Tensor(np.zeros((6, 2), np.int32))  # of a token an expert twice
RECORD = Tensor(np.zeros((6, 3, 2), np.int32))


def _route(logits=Z, top_k=2, **options):
    return lambda: hpmoe.route(logits, top_k, **options)


cases("route", {
    "no experts": _route(top_k=0),
    "a score of its own": _route(score="relu"),
    "a score of groups of its own": _route(group_score="mean"),
    "a sparsemixer with a bias": _route(score="sparsemixer", bias=Tensor(np.zeros(4, np.float32))),
    "a negative epsilon": _route(epsilon=-1.0),
    "a bias of another size": _route(bias=Tensor([1.0, 2.0])),
    "groups that do not divide": _route(num_groups=3),
    "more groups than there are": _route(num_groups=2, topk_groups=3),
    "groups of too few": _route(top_k=3, num_groups=4, topk_groups=2),
    "a scale of words": _route(scale="2.5"),
    "no temperature": _route(temperature=0.0),
    "all of the jitter": _route(jitter=1.0),
    "all experts dropped": _route(expert_dropout=1.0),
    "a fusion of words": _route(fusion="first"),
    "weights that may add up to 1": _route(normalize="maybe"),
    "a seed of floats": _route(seed=0.5),
    "a seed for each token": _route(seed=Tensor(np.zeros(6, np.int32))),
})
cases("router", {
    "ids of floats": lambda: router.weigh(Z, Z),
    "ids of no experts": lambda: router.weigh(Z, IDS + Z.shape[1]),
    "ids of other tokens": lambda: router.weigh(Z, IDS[:3]),
    "weights of a sparsemixer": lambda: router.weigh(Z, IDS, score="sparsemixer"),
    "a replay without a choice": lambda: router.replay(IDS, IDS, unset="drop"),
    "routed ids of floats": lambda: router.replay(Z, IDS, unset="mask"),
    "a record of floats": lambda: router.replay(IDS, Z[:, :2], unset="route"),
    "a record of other tokens": lambda: router.replay(IDS, IDS[:3], unset="route"),
    "a layer that was not recorded": lambda: router.replay(IDS, RECORD, unset="route", layer=3),
    "counts of floats": lambda: router.tokens_per_expert(Z, num_experts=4),
    "counts of no experts": lambda: router.tokens_per_expert(IDS, num_experts=0),
    "a rate of words": lambda: router.update_bias(Z[0], IDS[0], rate="fast"),
    "a bias of other experts": lambda: router.update_bias(Z[0], IDS[0]),
    "a bias of two dimensions": lambda: router.update_bias(Z, IDS),
    "a bias of some experts by their ids": lambda: router.update_bias(Z[0], IDS[:4, 0], where=IDS[:4, 1]),
    "a table of one dimension": lambda: router.hash_ids(IDS[:, 0], IDS[0]),
    "words without a row in the table": lambda: router.hash_ids(IDS[:, 0] + 6, IDS),
    "an expert twice": lambda: router.tokens_per_expert(IDS, num_experts=4),
    "ids of no experts in a program": lambda: traced(router.weigh)(Z, IDS - 2),
    "fewer than no tokens": lambda: router.balanced_ids(-1, 4, 2),
    "balance over no experts": lambda: router.balanced_ids(3, 0, 1),
    "more choices than experts": lambda: router.uniform_ids(3, 4, 5, seed=1),
    "a jitter that turns signs": lambda: router.jitter(Z, 1.5, seed=1),
    "values for other gradients": lambda: router.straight_through(Z, Z[:3]),
    "a loss by words": lambda: router.z_loss(Z, coefficient="0.001"),
    "a loss of another score": lambda: router.aux_loss(Z, 2, score="max"),
    "sequences that do not divide": lambda: router.sequence_loss(Z, 2, 4),
    "counts of other experts": lambda: router.global_batch_loss(Z, Tensor(np.zeros(3, np.int32))),
    "a draw by floats": lambda: hpmoe.trace(lambda z: router.uniform_ids(3, 4, 2, z), Tensor([0.5])),
    "a route of integers that is traced": lambda: hpmoe.trace(lambda z: hpmoe.route(z, 2), Z.astype(ms.int32)),
})
