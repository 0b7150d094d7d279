"""Losses that a layer returns beside its output, by MindFormers' names of their options."""

from __future__ import annotations

import dataclasses

from mindspore import Tensor, mint

from hpmoe.router.losses import balance_loss, balance_sums, num_tokens_of, sequence_sums, z_sum
from hpmoe.router.scores import LEAST_SUM
from hpmoe.support.errors import check_argument, is_name, is_number

KINDS = ("aux_loss", "seq_aux_loss", "global_aux_loss")


@dataclasses.dataclass(frozen=True)
class Losses:
    """Coefficients of both losses, and a flag for an auxiliary loss of each sequence; see `hpmoe.router.losses`."""

    by_sequence: bool
    aux: float
    z: float
    top_k: int

    def sums(self, logits: Tensor, score: str, num_sequences: int, is_real: Tensor | None = None
             ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns float32 sums over the tokens of one rank, which ranks add up; the first two have no gradient.

        Tokens whose `is_real` [T, 1] is 0 do not count.
        """
        if self.by_sequence:
            loss, num_sequences_here = sequence_sums(logits, self.top_k, num_sequences, score, is_real)
            return num_tokens_of(logits, is_real), num_sequences_here, loss, z_sum(logits, is_real)
        n, p, may_choose = balance_sums(logits, self.top_k, score, is_real)
        return n, may_choose, p, z_sum(logits, is_real)

    def total(self, counts: Tensor, more_counts: Tensor, balance: Tensor, z: Tensor) -> Tensor:
        """Returns the loss of all tokens, a scalar, or the part of it that `balance` and `z` of some ranks make."""
        if self.by_sequence:
            tokens, loss = counts, balance / (more_counts + LEAST_SUM)
        else:
            tokens, loss = mint.sum(counts) / self.top_k, balance_loss(counts, balance, more_counts, self.top_k)
        return loss * self.aux + z / (tokens + LEAST_SUM) * self.z


def make_losses(who: str, kind: str, aux: float, z: float | None, top_k: int) -> Losses:
    """Returns Losses from the arguments of a layer; "aux_loss" and "global_aux_loss" are the same loss."""
    check_argument(is_name(kind, KINDS), who, "moe_router_load_balancing_type", repr(kind), f"one of {', '.join(KINDS)}")
    z = 0.0 if z is None else z
    check_argument(is_number(aux), who, "moe_aux_loss_coeff", repr(aux), "a finite float32 number")
    check_argument(is_number(z), who, "moe_z_loss_coeff", repr(z), "a finite float32 number, or None")
    return Losses(kind == "seq_aux_loss", float(aux), float(z), top_k)
