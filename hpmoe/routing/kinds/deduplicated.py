"""Deduplicated: a token goes once to each rank that has experts for it, however many experts these are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from hpmoe.routing.kinds.kind import ByIds
from hpmoe.routing.kinds.of_tokens import OfTokens


@dataclasses.dataclass(frozen=True)
class Deduplicated(OfTokens):
    """Tokens that go to the ranks of their experts by `kind`, once to each."""

    kind: ByIds

    def rows_of(self, of_experts: int, tokens: Sequence[int] | None = None, rank: int = 0) -> int:
        return min(of_experts, self.most_rows() if tokens is None else sum(tokens))
