"""Placement: the ranks that hold copies of each expert, and the part of its entries that each copy takes.

Every rank has, after its own experts, the same number of replica slots; a slot holds a copy of another rank's expert or is
empty. Own experts and slots together are the physical experts, numbered rank by rank; the model knows logical ones.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

WHOLE = 1 << 16  # the share of an expert on a single rank
SHOWN = 4  # copies in the text of a placement


class Copy(NamedTuple):
    """Replica slot `slot` of rank `host`, a copy of local expert `expert` of its owner."""

    expert: int
    host: int
    slot: int


@dataclasses.dataclass(frozen=True)
class Placement:
    """Expert of each replica slot and the share of entries that the replica takes; made by `place_replicas`."""

    num_experts: int  # logical experts of all ranks
    experts: tuple[tuple[int, ...], ...]  # [ep][replicas], the logical expert of each slot, or -1
    shares: tuple[tuple[int, ...], ...]  # [ep][replicas], in parts of WHOLE; an owner keeps what its copies leave
    loads: tuple[float, ...] = dataclasses.field(default=(), repr=False)  # [num_experts], planned for; none if not known

    @property
    def ep_size(self) -> int:
        return len(self.experts)

    @property
    def num_replicas(self) -> int:
        """Replica slots of each rank."""
        return len(self.experts[0])

    @property
    def num_own(self) -> int:
        """Experts that each rank owns."""
        return self.num_experts // self.ep_size

    @property
    def num_local(self) -> int:
        """Physical experts of each rank."""
        return self.num_own + self.num_replicas

    @functools.cached_property
    def parts(self) -> np.ndarray:
        """[ep * num_local, 3]: the logical expert of each physical one or -1, and the range of its shares in 0..WHOLE.

        An expert's owner comes first, its copies follow in the order of their ranks.
        """
        parts = np.full((self.ep_size, self.num_local, 3), (-1, 0, 0), np.int64)
        parts[:, :self.num_own, 0] = np.arange(self.num_experts).reshape(self.ep_size, -1)
        parts[:, self.num_own:, 0] = self.experts
        parts = parts.reshape(-1, 3)
        share = np.full((self.ep_size, self.num_local), WHOLE, np.int64)
        share[:, self.num_own:] = self.shares
        share = share.reshape(-1)
        for e in range(self.num_experts):
            mine = np.flatnonzero(parts[:, 0] == e)
            mine = np.concatenate([mine[self._is_own(mine)], mine[~self._is_own(mine)]])
            kept = share[mine]
            kept[0] = WHOLE - kept[1:].sum()
            parts[mine, 2] = np.cumsum(kept)
            parts[mine, 1] = parts[mine, 2] - kept
        return parts

    def _is_own(self, physical: np.ndarray) -> np.ndarray:
        return physical % self.num_local < self.num_own

    @functools.cached_property
    def copies(self) -> tuple[tuple[Copy, ...], ...]:
        """Replicas of each rank's experts, in the order of their hosts."""
        out: list[list[Copy]] = [[] for _ in range(self.ep_size)]
        for host, slots in enumerate(self.experts):
            for slot, expert in enumerate(slots):
                if expert >= 0:
                    out[expert // self.num_own].append(Copy(expert % self.num_own, host, slot))
        return tuple(map(tuple, out))

    @property
    def most_copies(self) -> int:
        """The most copies that any rank has of its experts."""
        return max(map(len, self.copies))

    @functools.cached_property
    def expected_shares(self) -> np.ndarray:
        """Rows of each physical expert by the planned loads, the busiest rank having 1 of all its experts, [ep, num_local];
        all equal if no loads are known."""
        expert, first, last = self.parts.T
        if not any(self.loads):
            return np.full((self.ep_size, self.num_local), 1 / self.num_local)
        rows = np.where(expert >= 0, np.array(self.loads)[expert], 0.0) * (last - first)
        return rows.reshape(self.ep_size, -1) / rows.reshape(self.ep_size, -1).sum(axis=1).max()

    def split(self, counts: np.ndarray, rank: int) -> np.ndarray:
        """Returns [P, 2], the first and last of the `counts[e]` entries for each expert that each physical expert takes.

        A rank's entries for an expert are cut into runs, one for each copy, as its shares say; fractions are rounded with
        an offset that differs from rank to rank, so that they add up to the shares over all ranks.
        """
        expert, ranges = self.parts[:, 0], self.parts[:, 1:]
        offset = WHOLE * (2 * rank + 1) // (2 * self.ep_size)
        return (np.where(expert >= 0, counts[expert], 0)[:, None] * ranges + offset) // WHOLE

    def __str__(self) -> str:
        """Returns expert@rank for each of the first few replicas."""
        copies = [f"{e}@{rank}" for rank, experts in enumerate(self.experts) for e in experts if e >= 0]
        return ",".join(copies[:SHOWN] + [f"+{len(copies) - SHOWN}"] * (len(copies) > SHOWN))
