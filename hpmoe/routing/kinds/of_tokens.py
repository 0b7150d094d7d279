"""OfTokens: a row stands for a token, which stops at a rank on its way to its experts."""

from __future__ import annotations

import math

from hpmoe.routing.kinds.kind import ByIds, OfKind, RouteKind


class OfTokens(OfKind, RouteKind):
    """A token goes once to each stop on the way to the ranks of its experts by `kind`. Each rank counts as one expert.

    A subclass says with `stop` where tokens stop.
    """

    kind: ByIds
    capacity = None
    placement = None
    alignment = 1
    num_own_experts = 1
    num_local_experts = 1
    is_of_tokens = True

    @property
    def num_experts(self) -> int:
        return self.ep_size

    @property
    def by_ids(self) -> ByIds:
        return self.kind

    def rows_of_token(self) -> float:
        """The expected number of rows that the experts of a stop's ranks have of a token that arrives there.

        The mean is over all choices of distinct experts. Ranks are taken as whole groups of shards if there are several.

        Example:
            >>> from hpmoe.routing.kinds.deduplicated import Deduplicated
            >>> from hpmoe.routing.kinds.direct import Direct
            >>> round(Deduplicated(Direct(ep_size=2, num_tokens=8, num_choices=2, num_model_experts=4)).rows_of_token(), 3)
            1.2
        """
        of, ranks = self.kind, self.ranks_of_stop
        there, groups = max(1, ranks // of.tp_size), of.ep_size // of.tp_size
        elsewhere = math.comb(of.num_model_experts - of.num_own_experts * there, of.num_choices)
        others = elsewhere / math.comb(of.num_model_experts, of.num_choices)
        return min(ranks, of.tp_size) * of.num_choices / (groups / there * (1.0 - others))

    def text(self, ids: str, of: int) -> str:
        return f"once to each of {self.num_experts} ranks of route {of}"
