"""MindSpore's own token operators, which run on Ascend alone: in a trace they are ours."""

from __future__ import annotations

from typing import Any

from hpmoe.token_ops.permute import permute, unpermute
from hpmoe.tracing.calls import call


@call("MoeTokenPermute")
def moe_token_permute(recorder: Any, tokens: Any, indices: Any, num_out_tokens: Any = None,
                      padded_mode: bool = False) -> Any:
    return permute(tokens, indices, num_out_tokens or 0, padded_mode)


@call("MoeTokenUnpermute")
def moe_token_unpermute(recorder: Any, permuted_tokens: Any, sorted_indices: Any, probs: Any = None,
                        padded_mode: bool = False, restore_shape: Any = None) -> Any:
    return unpermute(permuted_tokens, sorted_indices, probs, padded_mode, restore_shape)
