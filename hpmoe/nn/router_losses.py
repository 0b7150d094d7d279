"""The losses that a layer returns beside its output, by MindFormers' names of their options."""

from __future__ import annotations

import dataclasses

from mindspore import Tensor

from hpmoe.nn.top_k_router import Choice
from hpmoe.router.losses import aux_loss, balance_terms, sequence_loss, z_loss
from hpmoe.support.errors import check_argument, is_name, is_number

KINDS = ("aux_loss", "seq_aux_loss", "global_aux_loss")


@dataclasses.dataclass(frozen=True)
class Losses:
    """Coefficients of both losses, and over what the auxiliary one is."""

    kind: str
    aux: float
    z: float

    def __call__(self, logits: Tensor, choice: Choice, num_sequences: int) -> tuple[Tensor, ...]:
        """Of one rank's logits: its loss, a scalar; of the global kind without the auxiliary one, whose terms [E] follow."""
        z = z_loss(logits, coefficient=self.z)
        if self.kind == "global_aux_loss":
            return z, *balance_terms(logits, choice.top_k, choice.score)
        if self.kind == "aux_loss":
            return (z + aux_loss(logits, choice.top_k, score=choice.score, coefficient=self.aux),)
        return (z + sequence_loss(logits, choice.top_k, num_sequences, score=choice.score, coefficient=self.aux),)


def make_losses(who: str, kind: str, aux: float, z: float | None) -> Losses:
    """Losses by the arguments of a layer."""
    check_argument(is_name(kind, KINDS), who, "moe_router_load_balancing_type", repr(kind), f"one of {', '.join(KINDS)}")
    z = 0.0 if z is None else z
    check_argument(is_number(aux), who, "moe_aux_loss_coeff", repr(aux), "a number")
    check_argument(is_number(z), who, "moe_z_loss_coeff", repr(z), "a number, or None")
    return Losses(kind, float(aux), float(z))
