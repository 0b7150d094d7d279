"""MindSpore's own token permutation, which is a primitive here."""

from __future__ import annotations

from typing import Any

from hpmoe.primitives.permute import permute, unpermute
from hpmoe.tracing.calls import call
from hpmoe.tracing.errors import not_traceable
from hpmoe.tracing.recorder import Recorder


@call("MoeTokenPermute")
def moe_token_permute(r: Recorder, tokens: Any, indices: Any, num_out_tokens: Any = None, padded_mode: bool = False) -> Any:
    return permute(tokens, indices, num_out_tokens or 0, padded_mode)


@call("MoeTokenUnpermute")
def moe_token_unpermute(r: Recorder, permuted_tokens: Any, sorted_indices: Any, probs: Any = None, padded_mode: bool = False,
                        restore_shape: Any = None) -> Any:
    if padded_mode or restore_shape is not None:
        raise not_traceable("moe_token_unpermute with padding", "the primitive keeps every row", "padded_mode=False")
    return unpermute(permuted_tokens, sorted_indices, probs)


@call("GroupedMatmul", "GroupedMatmulV2", "GroupedMatmulV4")
def grouped_matmul(r: Recorder, *args: Any, **kwargs: Any) -> Any:
    raise not_traceable("ops.grouped_matmul", "its groups are not tied to a route",
                        "rows, route = hpmoe.dispatch(...); hpmoe.grouped_matmul(rows, weight, route)")
