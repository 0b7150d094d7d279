"""Balancer: ranks come to have equal loads, and training goes on as if nothing had moved."""

import mindspore as ms
import numpy as np
import pytest
from mindspore.experimental import optim

import hpmoe
from hpmoe.balance import Balancer, move_experts, physical_ids, states_of
from hpmoe.balance.relocation import relocated

EP, EXPERTS, TOKENS, TOP_K, HIDDEN, INNER = 2, 8, 40, 2, 16, 12


def to_layer(copies=lambda f: f):
    chain = hpmoe.chain(copies, hpmoe.tile_partition(rows=8, cols=16), hpmoe.overlap_comm,
                        hpmoe.assign_queues(machine=hpmoe.cpu(2)), hpmoe.fuse_persistent)
    return hpmoe.spmd(chain(hpmoe.moe_ffn), hpmoe.Mesh(EP))


def make_batch(seed, hot):
    """Tokens most of which go to the hot experts; -1 is among the ids."""
    rng = np.random.default_rng(seed)
    share = np.full(EXPERTS, 0.1)
    share[list(hot)] = 2
    ids = np.argsort(-np.log(share) - rng.gumbel(size=(EP, TOKENS, EXPERTS)), -1)[..., :TOP_K].astype(np.int32)
    ids[:, 3, 1] = -1
    weights = rng.dirichlet(np.ones(TOP_K), (EP, TOKENS)).astype(np.float32)
    return rng.standard_normal((2, EP, TOKENS, HIDDEN)).astype(np.float32), ids, weights


def test_a_balancer_goes_on_from_places_that_are_loaded():
    first, second = (Balancer(to_layer, num_experts=4, ep_size=2, every=1, replicas=1) for _ in range(2))
    assert first.step([9, 8, 2, 1]).moved
    second.step([1, 1, 9, 9])
    ms.load_param_into_net(Holder(second), {"places": ms.Parameter(first.places.asnumpy(), name="places")})
    assert second.experts.tolist() == first.experts.tolist() != [0, 1, 2, 3]
    weight = ms.Tensor(np.array(first.experts, np.float32))
    second.step([2, 9, 8, 1], [weight])
    assert weight.asnumpy().tolist() == second.experts.tolist() != first.experts.tolist()
    second.places.set_data(ms.Tensor([0, 1, 1, 3], ms.int32))
    with pytest.raises(hpmoe.ArgumentError, match="places is .0, 1, 1, 3.; it must be each of 0..3 once"):
        second.step([1, 1, 1, 1])


class Holder(ms.nn.Cell):
    """Cell that a user saves: weights and their places."""

    def __init__(self, balancer):
        super().__init__()
        self.places = balancer.places


class Trainer:
    def __init__(self, balancer=None):
        rng = np.random.default_rng(0)
        self.weights = [ms.Parameter(ms.Tensor(rng.standard_normal(shape).astype(np.float32) / 4), name=name)
                        for name, shape in (("up", (EP, EXPERTS // EP, HIDDEN, 2 * INNER)),
                                            ("down", (EP, EXPERTS // EP, INNER, HIDDEN)))]
        self.optimizer = optim.AdamW(self.weights, lr=1e-2, weight_decay=0.1)
        self.state = [*self.weights, *states_of(self.optimizer, self.weights)]
        self.balancer, self.layer, self.losses = balancer, None if balancer else to_layer(), []

    def step(self, batch):
        (x, target), ids, weights = batch
        places, layer = ms.Tensor(ids), self.layer
        if self.balancer:
            places, layer = physical_ids(places, self.balancer.places), self.balancer.layer

        def loss():
            return ((layer(ms.Tensor(x), places, ms.Tensor(weights), *self.weights) - ms.Tensor(target)) ** 2).mean()

        value, grads = ms.value_and_grad(loss, None, self.weights)()
        self.optimizer(grads)
        self.losses.append(float(value))
        if self.balancer:
            self.balancer.step(np.bincount(ids[ids >= 0], minlength=EXPERTS), self.state)

    def arrays(self):
        """Weights and moments, every expert in its own place."""
        if self.balancer:
            move_experts(self.state, self.balancer.experts, range(EXPERTS))
        return [tensor.asnumpy() for tensor in self.state]


@pytest.mark.parametrize("replicas", [0, 1], ids=["relocated", "copies"])
def test_weights_and_moments_are_those_of_an_unmoved_run(replicas):
    moved = Trainer(Balancer(to_layer, num_experts=EXPERTS, ep_size=EP, every=2, replicas=replicas))
    stayed = Trainer()
    for phase in range(2):
        hot = moved.balancer.experts[:3]  # all on one rank
        for step in range(4):
            batch = make_batch(4 * phase + step, hot)
            moved.step(batch)
            stayed.step(batch)
    assert len(moved.balancer.moves) >= 2 and moved.balancer.experts.tolist() != list(range(EXPERTS))
    assert any(move.copies for move in moved.balancer.moves) == bool(replicas)
    apart = [np.abs(a - b).max() for a, b in zip(moved.arrays(), stayed.arrays(), strict=True)]
    assert len(apart) == 8 and any(state.any() for state in stayed.arrays()[2:])
    if replicas:
        assert max(apart) < 1e-6
        np.testing.assert_allclose(moved.losses, stayed.losses, rtol=1e-6)
    else:
        assert not any(apart) and moved.losses == stayed.losses


@pytest.mark.parametrize("replicas", [0, 1], ids=["relocated", "copies"])
def test_coming_back_plans_nothing(replicas):
    made = []

    def make(copies):
        made.append(to_layer(copies))
        return made[-1]

    trainer = Trainer(Balancer(make, num_experts=EXPERTS, ep_size=EP, every=1, replicas=replicas))
    phases = [make_batch(0, (0, 1, 2)), make_batch(1, (2, 4, 5))]
    planned = []
    for step in range(12):
        trainer.step(phases[step // 2 % 2])
        planned.append((len(made), sum(layer.cache_info().misses for layer in made)))
    moves = trainer.balancer.moves
    later = [move for move in moves if move.step > 4]  # both phases were there
    assert later and not any(move.is_new for move in later)
    assert planned[5:] == planned[5:6] * 7
    assert len(made) == (3 if replicas else 1)


def test_no_change_is_made_for_a_small_gain():
    balancer = Balancer(lambda copies: copies, num_experts=4, ep_size=2, every=1, min_gain=0.2)
    assert balancer.step([6, 5, 5, 4]) is None
    assert balancer.step([0, 0, 0, 0]) is None
    assert balancer.step([9, 9, 1, 1]).after == 1.0


@pytest.mark.parametrize("ep_size, per_rank", [(2, 8), (4, 4), (8, 32), (3, 1)])
def test_relocation_keeps_experts_and_lowers_the_fullest_rank(ep_size, per_rank):
    rng = np.random.default_rng(ep_size)
    loads = rng.pareto(1.2, ep_size * per_rank)
    start = rng.permutation(ep_size * per_rank)
    after = relocated(start, loads, ep_size)
    full, now = (loads[order].reshape(ep_size, -1).sum(1).max() for order in (start, after))
    assert sorted(after) == sorted(start) and now <= full
    assert now <= max(loads.max() + loads.mean() * per_rank, 1.1 * loads.sum() / ep_size)


def test_a_rank_with_all_hot_experts_shares_them():
    loads = np.array([20.0, 20, 20, 3] + [3.0] * 12)
    after = relocated(np.arange(16), loads, 4)
    assert (loads[after].reshape(4, 4) == 20).sum(1).tolist() == [1, 1, 1, 0] or \
        sorted((loads[after].reshape(4, 4) == 20).sum(1)) == [0, 1, 1, 1]
    assert (after != np.arange(16)).sum() == 4
