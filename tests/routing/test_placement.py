"""place_replicas: plans of copies, alone."""

import numpy as np
import pytest

from hpmoe.routing.balance import place_replicas
from hpmoe.routing.placement import WHOLE, Placement


def rank_loads(placement, loads):
    """Returns the planned load of each rank."""
    out = np.asarray(loads, float).reshape(placement.ep_size, -1).sum(axis=1)
    for rank, (experts, shares) in enumerate(zip(placement.experts, placement.shares, strict=True)):
        for e, share in zip(experts, shares, strict=True):
            if e >= 0:
                out[rank] += loads[e] * share / WHOLE
                out[e // placement.num_own] -= loads[e] * share / WHOLE
    return out


def assert_well_formed(placement, replicas):
    """No copy beside its owner or another one of the same expert; the shares of an expert are all of it, without gaps."""
    for rank, (experts, shares) in enumerate(zip(placement.experts, placement.shares, strict=True)):
        held = [e for e in experts if e >= 0]
        assert len(experts) == replicas and len(set(held)) == len(held)
        assert all(e // placement.num_own != rank for e in held)
        assert all((0 < s <= WHOLE) if e >= 0 else s == 0 for e, s in zip(experts, shares, strict=True))
    parts = placement.parts
    for e in range(placement.num_experts):
        mine = parts[parts[:, 0] == e]
        mine = mine[np.lexsort((mine[:, 2], mine[:, 1]))]
        assert mine[0, 1] == 0 and mine[-1, 2] == WHOLE and (mine[1:, 1] == mine[:-1, 2]).all()


def test_random_loads():
    """No rank gets more than the most loaded one had, and every entry has one place."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        ep, own, replicas = int(rng.integers(1, 9)), int(rng.integers(1, 5)), int(rng.integers(1, 4))
        loads = rng.zipf(1.5, ep * own).clip(max=1000) * rng.integers(0, 2, ep * own)
        placement = place_replicas(loads, ep_size=ep, replicas=replicas)
        assert_well_formed(placement, min(replicas, (ep - 1) * own))
        before = loads.reshape(ep, -1).sum(axis=1).max()
        assert rank_loads(placement, loads).max() <= before + 1e-3 * max(before, 1)
        assert placement == place_replicas(loads, ep_size=ep, replicas=replicas)
        for rank in range(ep):
            ranges = placement.split(loads, rank)
            taken = np.zeros(ep * own, int)
            has = placement.parts[:, 0] >= 0
            np.add.at(taken, placement.parts[has, 0], np.diff(ranges[has], axis=1)[:, 0])
            assert (taken == loads).all()


@pytest.mark.parametrize("imbalance", [1.5, 2.0, 4.0, 7.0])
def test_one_hot_rank_comes_down_to_the_mean(imbalance):
    loads = np.full((8, 8), (8 - imbalance) / 7 / 8)
    loads[3] = imbalance / 8
    placement = place_replicas(loads.reshape(-1), ep_size=8)
    assert_well_formed(placement, 1)
    assert rank_loads(placement, loads.reshape(-1)).max() < 1.02


def test_ranks_share_what_is_rounded():
    """One entry on each of four ranks, shares of a half: two go to each of the two."""
    placement = Placement(4, ((-1,), (0,), (-1,), (-1,)), ((0,), (WHOLE // 2,), (0,), (0,)))
    physical = [int(np.flatnonzero(np.diff(placement.split(np.array([1, 0, 0, 0]), r), axis=1)[:, 0])[0]) for r in range(4)]
    assert sorted(physical) == [0, 0, 3, 3]


def test_copies_take_at_least_so_much():
    loads = [8, 0, 0, 0, 0, 0, 0, 0]
    for least, copies in ((0, 7), (0.9, 7), (1.1, 0)):
        assert place_replicas(loads, ep_size=8, min_load=least).most_copies == copies


def test_no_more_slots_than_experts_of_other_ranks():
    placement = place_replicas([6, 2, 0, 0], ep_size=2, replicas=2**30)
    assert (placement.num_replicas, placement.most_copies) == (2, 1)
    assert place_replicas([7, 1], ep_size=1, replicas=2**30).num_replicas == 0


def test_no_load_no_copies():
    assert place_replicas([0, 0, 0, 0], ep_size=2).most_copies == 0
    assert place_replicas([5, 5, 5, 5], ep_size=4, replicas=2).most_copies == 0
    assert place_replicas([7, 1], ep_size=1).most_copies == 0


def test_planned_loads_give_the_expected_rows_of_an_expert():
    placement = place_replicas([6, 2, 0, 0], ep_size=2)
    assert placement.expected_shares == pytest.approx(np.array([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), abs=1e-4)
    unknown = Placement(4, placement.experts, placement.shares)
    assert (unknown.expected_shares == 1 / 3).all()
