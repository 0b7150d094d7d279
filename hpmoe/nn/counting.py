"""Counts of the tokens of each expert, for an update of the bias or a move of experts.

A call counts if its Cell is in training mode, or if a gradient passes through it. In training mode the call itself adds its
counts; a forward pass that is run again for its gradient adds nothing. Otherwise the backward pass of the call adds them,
which runs once, also under recomputation. An evaluation adds nothing.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from hpmoe.support.errors import check_argument
from hpmoe.support.mindspore_private import Differentiable, Eager, recomputes, takes_gradient


def count(is_training: bool, out: Tensor, loss: Tensor, tokens: Tensor, counted: Parameter) -> tuple[Tensor, Tensor]:
    """Returns the output and loss of a call; adds its tokens [E] to each row of `counted` [N, E] if the call counts."""
    tokens = mint.broadcast_to(tokens, counted.shape)
    if not is_training:
        return _by_backward(out, loss, tokens, counted)
    if not is_recomputed():
        ops.assign_add(counted, tokens)
    return out, loss


def clear(counted: Parameter, row: int) -> None:
    """Sets a row of `counted` to 0, in its memory, which compiled graphs write to."""
    kept = Tensor([[int(i != row)] for i in range(counted.shape[0])], ms.int64)
    ops.assign(counted, counted * kept)


class _ByBackward(nn.Cell):
    """Returns the output and loss unchanged; their gradient adds the tokens to the counts."""

    def __call__(self, out: Tensor, loss: Tensor, tokens: Tensor, counted: Parameter) -> tuple[Tensor, Tensor]:
        """Runs in PyNative; a compiled graph takes `construct` and `bprop`."""
        return _Counted.apply(tokens, counted, out, loss) if takes_gradient() else (out, loss)

    def construct(self, out, loss, tokens, counted):
        return out, loss

    def bprop(self, out, loss, tokens, counted, outputs, grads):
        grad = ops.depend(grads[0], ops.assign_add(counted, tokens))
        return grad, grads[1], ops.zeros_like(tokens), ops.zeros_like(counted)


class _Counted(Differentiable):
    tokens: Tensor  # both of the context, which MindSpore passes
    counted: Parameter

    @staticmethod
    def forward(ctx: _Counted, tokens: Tensor, counted: Parameter, out: Tensor, loss: Tensor) -> tuple[Tensor, Tensor]:
        ctx.tokens, ctx.counted = tokens, counted
        return out, loss

    @staticmethod
    def backward(ctx: _Counted, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ops.assign_add(ctx.counted, ctx.tokens)
        return (None, None, *grads)


def _check_counted(who: str, tokens: Tensor) -> bool:
    """Raises ArgumentError if no call has counted."""
    check_argument(bool(tokens.asnumpy().any()), who, "counted_tokens", "0 for every expert",
                   "those of a call since the last one, in training mode or with a gradient",
                   "Write layer.set_train() before the forward pass.")
    return True


def _check_whole(who: str, counts: Tensor) -> bool:
    """Raises ArgumentError unless counts that a user gives are numbers of tokens."""
    found = counts.astype(ms.float32).asnumpy()
    is_whole = np.isfinite(found) & (found >= 0) & (found == np.floor(found))
    check_argument(bool(is_whole.all()), who, "counts", found.tolist(), "whole numbers that are not negative",
                   "Write the sum over steps and ranks, not a mean.")
    return True


_by_backward = _ByBackward()
# A graph knows no values when it is compiled, so it checks nothing; it does not recompute assignments.
is_recomputed = Eager("hpmoe_recomputes", recomputes, in_graph=False)
check_counted = Eager("hpmoe_check_counted", _check_counted, in_graph=True)
check_whole = Eager("hpmoe_check_whole", _check_whole, in_graph=True)
