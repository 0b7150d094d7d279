"""Balancer: places the experts of a layer again every few steps, by the loads since the last decision."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
from mindspore import Parameter, Tensor

from hpmoe.balance.monitor import Counts, summed_counts
from hpmoe.balance.moving import move_experts
from hpmoe.balance.places import experts_at, places_in_order
from hpmoe.balance.relocation import relocated
from hpmoe.routing.balance import place_replicas
from hpmoe.routing.placement import WHOLE, Placement
from hpmoe.support.errors import check_argument, is_int, is_number
from hpmoe.support.keywords import suggests_keywords
from hpmoe.support.trees import Function
from hpmoe.transforms.replicate_experts import replicate_experts

WHO = "hpmoe.balance.Balancer"
MOST_SEEN = 16  # arrangements whose layers, and so whose plans, are kept


class Move(NamedTuple):
    """A change of the places or replicas of experts, which `Balancer.step` returns.

    Attributes:
        step: number of steps before the change.
        moved: number of experts that have another place now.
        copies: number of replicas of hot experts from now on.
        before, after: load of the most loaded rank over the mean, by the counts of these steps, before and after the change.
        is_new: True if the arrangement is a new one, for which kernels are planned; False if it was used before.
    """

    step: int
    moved: int
    copies: int
    before: float
    after: float
    is_new: bool


@dataclasses.dataclass(frozen=True)
class Arrangement:
    """The expert at each place, [E], and the placement of expert replicas, or None if there are no replicas."""

    experts: tuple[int, ...]
    placement: Placement | None = None

    def imbalance(self, loads: np.ndarray, ep_size: int) -> float:
        """Returns the load of the most loaded rank over the mean, from the loads [E] of the experts."""
        held = loads[list(self.experts)]
        if self.placement is not None:
            expert, first, last = self.placement.parts.T
            held = np.where(expert >= 0, held[expert], 0.0) * (last - first) / WHOLE
        return float(held.reshape(ep_size, -1).sum(1).max() * ep_size / max(loads.sum(), 1e-300))


def _unchanged(f: Function) -> Function:
    return f


@suggests_keywords
class Balancer:
    """Places the experts of a layer again every `every` steps, by the loads since the last decision.

    Experts of the most loaded rank change places with experts of other ranks. If loads still differ and ranks can hold
    `replicas` copies, hot experts get replicas (`hpmoe.replicate_experts`). A change that would gain less than `min_gain`
    is not made. An earlier arrangement is used again if it does as well as a new one, since its kernels are planned
    already. Places are data, so relocation without replicas plans no kernel.

    Weights lie in the order of places. Results do not depend on the Balancer, except that weight gradients of
    replicated experts are summed in another order.

    Args:
        make: from a transform to the layer: lambda copies: spmd(chain(copies, tile_partition, ...)(f), mesh). The transform
            is `replicate_experts` for an arrangement, or returns its function unchanged.
        num_experts: number of experts of all ranks together.
        ep_size: number of ranks.
        every: steps between two decisions.
        replicas: the most expert replicas of a rank; with 0, experts are only relocated.
        min_load: least number of rows that a replica must take in a step; see `hpmoe.replicate_experts`.
        min_gain: least fall of `Move.before` to `Move.after` for which a change is made.
        places: the Parameter that says where each expert lies; None makes one of experts in order.

    Attributes:
        layer: the layer that `make` returned for the present arrangement.
        places: [E] int32 Parameter, where each expert lies, for `hpmoe.balance.physical_ids`. Weights mean nothing without
            their places: give `places` to the Cell that has the weights, so that a checkpoint has both. The Balancer goes on
            from the places that a checkpoint sets.
        experts: [E], the expert at each place.
        moves: the Move of each change so far.

    Raises:
        ArgumentError: an option has a wrong type or value, or counts of a step have another number of experts.

    Example:
        >>> import hpmoe
        >>> def to_layer(copies):
        ...     return hpmoe.spmd(hpmoe.chain(copies, hpmoe.tile_partition)(hpmoe.moe_ffn), hpmoe.Mesh(2))
        >>> balancer = Balancer(to_layer, num_experts=4, ep_size=2, every=1)
        >>> balancer.step([6, 6, 2, 2])
        Move(step=1, moved=2, copies=0, before=1.5, after=1.0, is_new=True)
        >>> balancer.experts.tolist(), balancer.places.asnumpy().tolist()
        ([2, 1, 0, 3], [2, 1, 0, 3])
    """

    def __init__(self, make: Callable[[Function], Function], *, num_experts: int, ep_size: int,
                 every: int, replicas: int = 0, min_load: float = 0.0, min_gain: float = 0.1,
                 places: Parameter | None = None) -> None:
        check_argument(callable(make), WHO, "make", repr(make), "a function from a transform to a layer")
        check_argument(is_int(ep_size), WHO, "ep_size", repr(ep_size), "a positive int")
        check_argument(is_int(num_experts) and num_experts % ep_size == 0, WHO, "num_experts", repr(num_experts),
                       f"a positive multiple of {ep_size} ranks")
        check_argument(is_int(every), WHO, "every", repr(every), "a positive int")
        check_argument(is_int(replicas, 0), WHO, "replicas", repr(replicas), "an int that is not negative")
        for name, value in (("min_load", min_load), ("min_gain", min_gain)):
            check_argument(is_number(value) and value >= 0, WHO, name, repr(value), "a number that is not negative")
        is_places = places is None or isinstance(places, Parameter) and places.shape == (num_experts,)
        check_argument(is_places, WHO, "places", repr(places), f"a Parameter of {num_experts} places, or None")
        self._make, self._ep_size, self._every = make, ep_size, every
        self._replicas, self._min_load, self._min_gain = replicas, min_load, min_gain
        self._counted, self._steps = np.zeros(num_experts), 0
        self._layers: dict[Placement | None, Function] = {}
        self._seen: collections.OrderedDict[Arrangement, None] = collections.OrderedDict()
        self.moves: list[Move] = []
        self.places = places_in_order(num_experts) if places is None else places
        self._take(Arrangement(tuple(map(int, self.experts))))

    @property
    def experts(self) -> np.ndarray:
        return experts_at(WHO, self.places)

    @property
    def layer(self) -> Function:
        return self._layers[self._placement]

    @property
    def _now(self) -> Arrangement:
        """Returns the present arrangement: experts at the places of the Parameter, which a checkpoint may have set."""
        return Arrangement(tuple(map(int, self.experts)), self._placement)

    def step(self, counts: Counts, tensors: Iterable[Tensor] = ()) -> Move | None:
        """Ends a training step; every `every` steps experts may move, and `tensors` are then reordered in place.

        Args:
            counts: [..., E], the tokens that chose each expert in this step, by logical ids, of each rank or of all.
            tensors: all arrays with a part for each expert: weights, `states_of` an optimizer, main weights and gradients.

        Returns:
            The change, or None if experts stay where they are.
        """
        self._counted += summed_counts(f"{WHO}.step", counts, len(self._counted))
        self._steps += 1
        if self._steps % self._every:
            return None
        loads, self._counted = self._counted / self._every, np.zeros_like(self._counted)
        before, taken = self._now, self._best(loads)
        if taken == before:
            return None
        move_experts(tensors, before.experts, taken.experts)
        is_new = taken not in self._seen
        self._take(taken)
        copies = sum(map(len, taken.placement.copies)) if taken.placement else 0
        moved = sum(a != b for a, b in zip(before.experts, taken.experts, strict=True))
        was, now = (round(each.imbalance(loads, self._ep_size), 3) for each in (before, taken))
        self.moves.append(Move(self._steps, moved, copies, was, now, is_new))
        return self.moves[-1]

    def _best(self, loads: np.ndarray) -> Arrangement:
        """Returns the present arrangement, an earlier one or a new one: the first that does about as well as the new one."""
        new = self._new(loads)
        enough = new.imbalance(loads, self._ep_size) + self._min_gain
        known = [self._now, *(each for each in reversed(self._seen) if each != self._now)]
        return next((each for each in known if each.imbalance(loads, self._ep_size) <= enough), new)

    def _new(self, loads: np.ndarray) -> Arrangement:
        experts = relocated(self.experts, loads, self._ep_size)
        arrangement = Arrangement(tuple(map(int, experts)))
        if not self._replicas:
            return arrangement
        placement = place_replicas(loads[experts], ep_size=self._ep_size, replicas=self._replicas, min_load=self._min_load)
        return dataclasses.replace(arrangement, placement=placement) if placement.most_copies else arrangement

    def _take(self, arrangement: Arrangement) -> None:
        """Makes an arrangement the present one, and forgets the layers of arrangements that were not used for long."""
        self._placement = arrangement.placement
        self._seen[arrangement] = None
        self._seen.move_to_end(arrangement)
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        kept = {each.placement for each in self._seen}
        self._layers = {placement: layer for placement, layer in self._layers.items() if placement in kept}
        if arrangement.placement not in self._layers:
            self._layers[arrangement.placement] = self._make(self._copies(arrangement.placement))
        self.places.copy_(Tensor(np.argsort(arrangement.experts).astype(np.int32)))  # in place: compiled graphs follow

    def _copies(self, placement: Placement | None) -> Function:
        if placement is None:
            return _unchanged
        return replicate_experts(loads=placement.loads, replicas=self._replicas, min_load=self._min_load)

    def __repr__(self) -> str:
        return f"Balancer(ep_size={self._ep_size}, experts={self.experts.tolist()}, moves={len(self.moves)})"
