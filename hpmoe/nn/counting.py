"""Counting: the tokens of the calls that an update of the bias, or a move of experts, goes by.

A call counts if its Cell is in training mode, or if a gradient passes through it. In training mode the call itself adds its
counts; a forward pass that is run again for its gradient adds nothing. Otherwise the backward pass of the call adds them,
which runs once, also under recomputation. An evaluation adds nothing.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops

from hpmoe.support.errors import check_argument
from hpmoe.support.mindspore_private import AskedByCompiler, Differentiable, recomputes, takes_gradient


def count(is_training: bool, out: Tensor, loss: Tensor, tokens: Tensor, counted: Parameter) -> tuple[Tensor, Tensor]:
    """The output and loss of a call; adds its tokens [E] int64 to each row of `counted` [N, E] if the call counts."""
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
    """Returns the output and loss; their gradient adds the tokens to what is counted."""

    def __call__(self, out: Tensor, loss: Tensor, tokens: Tensor, counted: Parameter) -> tuple[Tensor, Tensor]:
        """PyNative; a compiled graph takes `construct` and `bprop`."""
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


class _IsRecomputed(AskedByCompiler):
    """Whether this is the second forward pass of a recomputed call. In a graph it is not: assignments are not recomputed."""

    def __init__(self):
        super().__init__("hpmoe_recomputes")

    def __infer__(self):
        return {"shape": (), "dtype": ms.bool_, "value": False}

    def __call__(self):
        return recomputes()


class _CheckCounted(AskedByCompiler):
    """Raises ArgumentError if no call has counted; a graph, which knows no values when it is compiled, does not."""

    def __init__(self):
        super().__init__("hpmoe_check_counted")

    def __infer__(self, *args):
        return {"shape": (), "dtype": ms.bool_, "value": True}

    def __call__(self, who: str, tokens: Tensor) -> bool:
        check_argument(bool(tokens.asnumpy().any()), who, "counted_tokens", "0 for every expert",
                       "those of a call since the last one, in training mode or with a gradient",
                       "Write layer.set_train() before the forward pass.")
        return True


class _CheckWhole(AskedByCompiler):
    """Raises ArgumentError unless counts that a user gives are numbers of tokens; a graph does not."""

    def __init__(self):
        super().__init__("hpmoe_check_whole")

    def __infer__(self, *args):
        return {"shape": (), "dtype": ms.bool_, "value": True}

    def __call__(self, who: str, counts: Tensor) -> bool:
        found = counts.astype(ms.float32).asnumpy()
        is_whole = np.isfinite(found) & (found >= 0) & (found == np.floor(found))
        check_argument(bool(is_whole.all()), who, "counts", found.tolist(), "whole numbers that are not negative",
                       "Write the sum over steps and ranks in place of a mean.")
        return True


_by_backward, is_recomputed, check_counted, check_whole = _ByBackward(), _IsRecomputed(), _CheckCounted(), _CheckWhole()
