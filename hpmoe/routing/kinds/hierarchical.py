"""Hierarchical: a token goes once to each node that has experts for it, to the rank at its source's place in the node."""

from __future__ import annotations

import dataclasses

import numpy as np

from hpmoe.routing.kinds.stops import Stops


@dataclasses.dataclass(frozen=True)
class Hierarchical(Stops):
    """Tokens that go to relays, one in each node of `node_size` ranks, which pass on rows to the ranks of their node.

    Example:
        >>> from hpmoe.routing.kinds.direct import Direct
        >>> kind = Hierarchical(Direct(ep_size=4, num_tokens=1, num_choices=1, num_model_experts=4), node_size=2)
        >>> kind.stop(1, np.arange(4))
        array([1, 1, 3, 3])
    """

    node_size: int

    def stop(self, source: np.ndarray | int, dest: np.ndarray | int) -> np.ndarray:
        return np.asarray(dest) // self.node_size * self.node_size + source % self.node_size

    def is_possible(self) -> bool:
        return self.node_size >= 1 and not self.ep_size % self.node_size and super().is_possible()
