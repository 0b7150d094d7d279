"""MindSpore's own token operators, which run on Ascend alone: in a trace they are ours."""

from __future__ import annotations

from mindspore import Tensor

from hpmoe.token_ops.permute import permute, unpermute
from hpmoe.tracing.calls import call
from hpmoe.tracing.tracer import Trace


@call("MoeTokenPermute")
def moe_token_permute(recorder: Trace, tokens: Tensor, indices: Tensor, num_out_tokens: int | None = None,
                      padded_mode: bool = False) -> Tensor:
    return permute(tokens, indices, num_out_tokens or 0, padded_mode)


@call("MoeTokenUnpermute")
def moe_token_unpermute(recorder: Trace, permuted_tokens: Tensor, sorted_indices: Tensor, probs: Tensor | None = None,
                        padded_mode: bool = False, restore_shape: tuple[int, int] | None = None) -> Tensor:
    return unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)
